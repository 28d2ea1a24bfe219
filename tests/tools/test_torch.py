# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC in PyTorch is AdaGC, and its experiment runs; needs PyTorch."""

import importlib.util
import json
import subprocess
import sys

import pytest
from pages import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch"
)


def run(*words):
    ended = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_kit_holds():
    """The default of ours aside, which lets a bad warm-up step not count."""
    printed = run("tests/conformance/kit.py", "tests.tools.torch_run:run")
    verdicts = [
        line.split("|")[2].strip() for line in printed.split("\n")[2:18]
    ]
    assert {*verdicts} <= {"holds", "not run"}
    assert verdicts.count("holds") >= 15


def test_two_cells_run_and_are_not_run_again(tmp_path):
    output = tmp_path / "cells.jsonl"
    words = ("README.md", f"--output={output}", "--size=1m", "--steps=3")
    for cells in (2, 1):
        run("examples/torch_rates.py", *words, f"--cells={cells}")
    made = [json.loads(line) for line in output.read_text().splitlines()]
    assert [cell["clip"] for cell in made] == [
        "GlobalGC 1",
        "AdaGC",
        "warmup_ema",
    ]
    assert all(len(cell["losses"]) == 3 for cell in made)
    assert made[0]["losses"][0] == made[1]["losses"][0]
