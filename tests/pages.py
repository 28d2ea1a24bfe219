# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pages of the documentation, and what stands on them; tools."""

import functools
import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
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


@functools.cache
def load_tool(name):
    """Import ``tools/NAME.py`` under a name that no package has."""
    folder = str(ROOT / "tools")
    if folder not in sys.path:
        sys.path.append(folder)  # tools import ``command``
    path = f"{folder}/{name}.py"
    spec = importlib.util.spec_from_file_location(f"tools.{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
