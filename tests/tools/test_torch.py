# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC in PyTorch is AdaGC, and its experiment runs; needs PyTorch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))


def of_torch(case):
    """Return of each step the clipped gradients and gamma, by name."""
    from torch_adagc import AdaGC

    if case.num_ranks > 1:
        raise NotImplementedError("one process")
    shapes = {
        name: gradient.shape
        for step in case.steps
        for name, gradient in step.items()
        if gradient is not None
    }
    parameters = {
        n: torch.nn.Parameter(torch.zeros(s)) for n, s in shapes.items()
    }
    clips = [AdaGC(parameters.items(), **case.arguments) for _ in "12"]
    clip, steps = clips[0], []
    for t, gradients in enumerate(case.steps, 1):
        for name, parameter in parameters.items():
            gradient = gradients.get(name)
            parameter.grad = (
                None if gradient is None else torch.from_numpy(gradient.copy())
            )
        clip.step()
        out = {
            name: None if p.grad is None else p.grad.numpy()
            for name, p in parameters.items()
        }
        steps.append((out, clip.state_dict()["gamma"]))
        if t == case.resume_after:
            clips[1].load_state_dict(clip.state_dict())
            clip = clips[1]
    return steps


def run(*words):
    ended = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_kit_holds():
    """The default of ours aside, which lets a bad warm-up step not count."""
    printed = run("tests/conformance/kit.py", "tests.tools.test_torch:of_torch")
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
