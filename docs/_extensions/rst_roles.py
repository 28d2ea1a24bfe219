# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Show the Sphinx markup of docstrings as Markdown in the API pages."""

import re
import textwrap
from typing import Any

import griffe

_ROLE = re.compile(r":(?:\w+:)?\w+:`~?(?:[^`<]*<)?([^`>]+)>?`")
_MATH = re.compile(r"^\.\. math::\n\n((?:[ ]{4}.*\n|\n)+)", re.MULTILINE)


class RstRoles(griffe.Extension):
    """Turn roles and formulas into code, which needs no script to show."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of every object."""
        if obj.docstring is not None:
            text = _MATH.sub(_as_code, obj.docstring.value + "\n")
            obj.docstring.value = _ROLE.sub(r"`\1`", text).rstrip()


def _as_code(match: re.Match[str]) -> str:
    formula = textwrap.dedent(match[1]).strip()
    return f"```latex\n{formula}\n```\n"
