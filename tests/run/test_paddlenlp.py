# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run before PaddleNLP's own Trainer, and one of PaddleFleet's shape."""

import importlib.util
import json
import re
import sys

import pytest
from helpers import run_python

from paddle_adagc import load_state

if importlib.util.find_spec("paddlenlp") is None:
    pytest.skip("PaddleNLP is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow
SCRIPT = """
import json
import numpy as np, paddle
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments

x = np.random.default_rng(0).normal(size=[400, 4]).astype("float32")
rows = [{"x": row, "labels": row[:1]} for row in x]

class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return ((self.linear(x) - labels) ** 2).mean()

class OwnClip(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.clip = 0.2

    def training_step(self, *given):
        assert self.clip == 0.2
        return super().training_step(*given)

def adamw(trainer):
    return paddle.optimizer.AdamW(
        trainer.lr_scheduler,
        parameters=trainer.model.parameters(),
        grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
    )

class ReturnsNone(Trainer):
    def create_optimizer(self, lr_scheduler=None):
        self.optimizer = adamw(self)

class MakesBoth(Trainer):
    def create_optimizer_and_scheduler(self, num_training_steps):
        self.create_scheduler(num_training_steps)
        self.optimizer = adamw(self)

for kind in (OwnClip, ReturnsNone, MakesBoth):
    [args] = PdArgumentParser(TrainingArguments).parse_json_file("job.json")
    paddle.seed(0)
    trainer = kind(model=Net(), args=args, train_dataset=rows)
    trainer.train()
    weights = trainer.model.linear.weight.flatten().tolist()
    print("weights:", json.dumps(weights))
    print("clip:", trainer.optimizer._grad_clip)
"""
JOB = {
    "output_dir": "out",
    "max_steps": 6,
    "save_steps": 3,
    "learning_rate": 0.01,
    "device": "cpu",
    "report_to": "visualdl",
}


@pytest.fixture
def run(tmp_path):
    """Run a script, behind ``adagc-run`` if that has options.

    Returns:
        All that is printed, and the weights of each Trainer.
    """

    def run(script, *options):
        (tmp_path / "train.py").write_text(script)
        (tmp_path / "job.json").write_text(json.dumps(JOB))
        before = ("-m", "paddle_adagc.run", *options, sys.executable)
        command = (*(before if options else ()), "train.py")
        ended = run_python(tmp_path, *command, PYTHONPATH=":".join(sys.path))
        assert ended.returncode == 0, ended.stderr
        weights = re.findall("weights: (.*)", ended.stdout)
        return ended.stdout + ended.stderr, [*map(json.loads, weights)]

    return run


def test_scripts_of_paddlenlp_s_trainer(run, tmp_path):
    """Bound to the model; in the warm-up with the numbers of GlobalNorm."""
    printed, weights = run(SCRIPT, "--beta", "0.9", "--")
    clip = "ClipGradByAdaGC(lambda_rel=1.04, beta=0.9, lambda_abs=1.0"
    assert printed.count(f"clip: {clip}") == 3
    settings = "beta=0.9 (--beta), lambda_abs=1.0 (max_grad_norm)"
    assert printed.count(f"AdaGC in force: {settings}; 2 tensors\n") == 3
    state = load_state(tmp_path / "out/checkpoint-3")
    assert state["step"] == 3
    assert {*state["gamma"]} == {"linear.weight", "linear.bias"}
    for mine, theirs in zip(weights, run(SCRIPT)[1], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)


PADDLEFLEET = """
from paddlefleet.trainer import Trainer
Trainer(max_steps=3).train()
"""


def test_a_trainer_of_paddlefleet_s_shape(run, tmp_path):
    package = tmp_path / "paddlefleet/trainer"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text("from .trainer import Trainer\n")
    (package / "trainer.py").write_text(
        "from core.integrations.trainers import Trainer\n"
    )
    printed, _ = run(PADDLEFLEET, "--t-start=1")
    assert printed.count("'clip_global_grad_norm':") == 3
    state = load_state(tmp_path / "out/checkpoint-3")
    assert (state["step"], {*state["gamma"]}) == (3, {"weight", "bias"})
