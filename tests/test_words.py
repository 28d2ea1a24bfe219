# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pages, docstrings and names use the field's words, not private ones."""

import ast
import re

import pytest
from pages import CHINESE, PAGES, ROOT, page_name, prose

PRIVATE_WORDS = {
    r"\blost\b": "nonfinite, missing",
    r"\bmet\b": "observed, known",
    r"\btold\b": "reported",
    r"(?:clip|rule|method)s? (?:also )?keeps?\b|\| keeps? \|": "state",
    r"\bslots?\b": "index, entry",
    r"\bheld(?! out\b)": "local, contained",
    r"\bnews\b": "new counts",
    r"\b(?:by|to) the letter\b|\bletter of the\b": "as in the paper",
    r"\bhand(?:s|ed|ing)? (?:over|back)\b": "say who does what",
    r"\b(?:come|comes|came|coming) by\b": "say who does what",
    r"\bg[ai](?:ve|ves|ven|ving) back\b": "say who does what",
    r"\bof (?:its|their|one's) own\b(?! \w)": "its own; separate",
    r"\balike\b": "the same, equal",
}
"""Private word -> the field's. The rest is English: kept for 5 steps; a loop of
your own; data held out."""
_WORDS = re.compile("|".join(f"(?:{word})" for word in PRIVATE_WORDS), re.I)


def docstrings_and_names(path):
    """(line, text) of each docstring, attributes' included, and each name."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Expr(ast.Constant(str() as text)):
                yield node.lineno, text
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield node.lineno, name.replace("_", " ")
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name.replace("_", " ")


def found(text):
    return [word.group() for word in _WORDS.finditer(" ".join(text.split()))]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != CHINESE], ids=page_name
)
def test_pages_have_no_private_words(page):
    assert not found(prose(page))


def test_the_library_has_no_private_words():
    paths = sorted((ROOT / "paddle_adagc").rglob("*.py"))
    assert len(paths) > 50
    words = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in paths
        for line, text in docstrings_and_names(path)
        if (words := found(text))
    ]
    assert not words, "\n".join(words)


def test_the_list_finds_a_word():
    assert found("whose norms are\nlost") == ["lost"]
    assert not found("the last 10% are held out; kept for 5 steps")
