# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every example runs as a user starts it."""

import json
import re

import pytest
from helpers import run_python
from pages import ROOT

EXAMPLES = {path.stem for path in (ROOT / "examples").glob("*.py")}
# test_real_trainers.py, test_watch.py and tools/test_torch.py have these.
EXAMPLES -= {"paddleformers_trainer", "spiking_loop"}
EXAMPLES -= {"torch_adagc", "torch_rates"}
LAUNCHER = ("-m", "paddle.distributed.launch", "--nproc_per_node", "2")


def run_example(name, directory):
    """Everything that the example prints, standard error included."""
    before = LAUNCHER if name == "fleet_hybrid" else ()
    script = str(ROOT / "examples" / f"{name}.py")
    path = f"{ROOT}:{ROOT / 'tools'}"
    done = run_python(directory, *before, script, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_example_runs_and_clips(name, tmp_path):
    printed = run_example(name, tmp_path)
    assert re.search(r"clipped_fraction|clipped \d+%", printed)


def test_the_notebook_shows_what_the_clip_does_to_an_outlier():
    notebook = json.loads((ROOT / "examples/adagc.ipynb").read_text())
    names = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    h = [step["tensors"]["0.weight"]["h"] for step in names["numbers"]]
    assert h[60] < 1e-3 < min(h[20:60] + h[61:])
    assert names["after"](names["adagc"]) < names["after"](names["plain"])
