# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Show the Sphinx markup of docstrings in the API pages; needs no script."""

import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

_MATH = re.compile(r":math:`([^`]+)`")
_ROLE = re.compile(r":(?:\w+:)?\w+:`~?(?:[^`<]*<)?([^`>]+)>?`")
_FORMULA = re.compile(r"^\.\. math::\n\n((?:[ ]{4}.*\n|\n)+)", re.MULTILINE)


class RstRoles(griffe.Extension):
    """Turn formulas into MathML, other roles into code."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of every object."""
        if obj.docstring is not None:
            text = _FORMULA.sub(_as_block, obj.docstring.value + "\n")
            text = _MATH.sub(_as_span, text)
            text = _ROLE.sub(r"`\1`", text)
            obj.docstring.value = text.replace("\nExample:", "\nExamples:")


def _as_span(match: re.Match[str]) -> str:
    return f"<span>{_as_mathml(match[1])}</span>"


def _as_block(match: re.Match[str]) -> str:
    formula = textwrap.dedent(match[1]).strip().replace("&", "")
    lines = [_as_mathml(line, "block") for line in formula.split("\\\\")]
    return "\n\n".join(lines) + "\n\n"


def _as_mathml(formula: str, display: str = "inline") -> str:
    return convert(" ".join(formula.split()), display=display)
