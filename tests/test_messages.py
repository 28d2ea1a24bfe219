# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Messages and options that the documentation names stand in the code."""

import ast
import functools
import inspect
import re

import pytest
from pages import PAGES, ROOT, page_name, prose

from paddle_adagc import ClipGradByAdaGC

_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_VALUE = re.compile(
    r"\.\.\.|\S*\d\S*|'[^']*'|\S+=\S*|\b[A-Z]{4,}\b|\(|ClipGrad\w+"
)
"""Where a message is cut: at numbers, quoted values, arguments, brackets."""

FOREIGN_MESSAGES = {
    "assert isinstance(layers, PipelineLayer)",  # Paddle
    "Unimplemented cpu kernel for CReduceScatterOp",
    "PADDLE_TRAINER_ENDPOINTS cannot be found",
    "only 0-dimensional arrays can be converted to Python scalars",  # NumPy
    "--gpus: expected one argument",  # paddle.distributed.launch
    "No matching distribution found for paddlepaddle-gpu",  # pip
    "No module named 'adagc_lab'",  # Python
    "No module named 'paddlenlp'",
}
FOREIGN_OPTIONS = {
    "--extra-index-url": "pip",
    "--no-deps": "pip",
    "--model": "lm_eval",
    "--num_fewshot": "lm_eval",
    "--signal": "SLURM",
    "--gpus": "paddle.distributed.launch",
    "--nproc_per_node": "paddle.distributed.launch",
    "--master": "paddle.distributed.launch",
    "--max_steps": "PaddleNLP",
}
OURS = {f"--{name}" for name in inspect.signature(ClipGradByAdaGC).parameters}
OURS = {name.replace("_", "-") for name in OURS}
"""``adagc-run`` makes options of the clip's arguments."""


@functools.cache
def sources():
    return [
        path.read_text("utf-8")
        for folder in ("paddle_adagc", "tools")
        for path in (ROOT / folder).rglob("*.py")
    ]


@functools.cache
def texts():
    """All texts of the code, a space for what they fill in."""
    found = []
    for source in sources():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.JoinedStr):
                parts = (getattr(part, "value", "") for part in node.values)
                found.append(" ".join(p for p in parts if isinstance(p, str)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sdr]", " ", node.value))
    return squeezed("\n".join(found))


def squeezed(text):
    return re.sub(r"[ ]+", " ", text)


def messages(page):
    """Messages that a page explains: first in a bullet or a table's row."""
    text = page.read_text("utf-8")
    for part in re.findall(
        r"(?:\*\*When it fails\*\*|## When it fails|## 出错时)\n\n"
        r"((?:(?:- |  ).*\n)+)",
        text,
    ):
        yield from re.findall(r"(?m)^- `([^`]+)`", part)
    for part in re.findall(r"(?m)^\| line \|.*\n\|.*\n((?:\|.*\n)+)", text):
        yield from re.findall(r"(?m)^\| `([^`]+)` \|", part)


CASES = [(page, text) for page in PAGES for text in messages(page)]


@pytest.mark.parametrize(
    ("page", "message"),
    CASES,
    ids=[f"{page.name}-{text}" for page, text in CASES],
)
def test_documented_messages_stand_in_the_code(page, message):
    if message in FOREIGN_MESSAGES or message.startswith(
        ("adagc-run ", "LBFGS")
    ):
        return
    pieces = [piece.strip(" :;,()") for piece in _VALUE.split(message)]
    pieces = [piece for piece in pieces if len(piece.split()) > 1]
    assert pieces, f"{message!r} is all values"
    for piece in pieces:
        assert squeezed(piece) in texts(), f"{page.name}: {piece!r}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_documented_options_stand_in_the_code(page):
    for span in _SPAN.findall(prose(page)):
        for option in re.findall(r"(?<!\S)--[a-z][\w-]*", span):
            is_known = option in OURS or option in FOREIGN_OPTIONS
            is_ours = any(option in source for source in sources())
            assert is_known or is_ours, f"{page.name}: {span}"
