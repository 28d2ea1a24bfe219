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
"""Pages of the documentation, and what stands on them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
CHINESE = ROOT / "README_cn.md"
PAGES = [
    README,
    CHINESE,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page_name(page):
    """Path below the repository, for the name of a test."""
    return str(page.relative_to(ROOT))


def blocks(page, language):
    """Code blocks of a page in one language."""
    found = BLOCK.findall(page.read_text("utf-8"))
    return [code for name, code in found if name == language]


def prose(page):
    """A page's text without its code blocks."""
    return BLOCK.sub("", page.read_text("utf-8"))
