# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``adagc-run`` before a script of PaddleNLP's Trainer."""

import importlib.util
import json
import os
import sys

import pytest
from helpers import run_python

from paddle_adagc import load_state

SCRIPT = """
import sys
import paddle
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments

class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(2, 1)

    def forward(self, x):
        return self.linear(x).square().mean()

[args] = PdArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])
rows = [{"x": paddle.ones([2]).numpy()}] * 8
Trainer(args=args)  # as some scripts do, for its arguments alone
Trainer(model=Net(), args=args, train_dataset=rows).train()
"""
COMMAND = """
import sys
from importlib.metadata import entry_points
[script] = entry_points(group="console_scripts", name="adagc-run")
sys.exit(script.load()())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "options", "bound", "reason"),
    [
        (0.5, (), 0.5, "max_grad_norm"),
        (0.0, (), 1.0, "max_grad_norm is 0.0"),
        (0.5, ("--lambda-abs", "2"), 2.0, "--lambda-abs"),
    ],
)
def test_the_warm_up_has_the_job_s_threshold(
    norm, options, bound, reason, tmp_path
):
    if importlib.util.find_spec("paddlenlp") is None:
        pytest.skip("it needs PaddleNLP")
    job = {
        "output_dir": "out",
        "max_steps": 2,
        "save_steps": 2,
        "device": "cpu",
        "max_grad_norm": norm,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [*options, "--", sys.executable, "train.py", "job.json"]
    path = os.pathsep.join(filter(None, sys.path))
    ended = run_python(tmp_path, "-c", COMMAND, *command, PYTHONPATH=path)
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0, printed
    assert f"lambda_abs={bound} ({reason})" in printed
    state = load_state(tmp_path / "out/checkpoint-2")
    assert state["config"]["lambda_abs"] == bound
