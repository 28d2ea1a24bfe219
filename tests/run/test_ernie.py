# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A job under ERNIE's clip moves over at a checkpoint, in PaddleNLP's Trainer.

Clip and callback are those of tests/reference, in their form, not their code.
"""

import importlib.util
import json
import re
import sys

import numpy as np
import pytest
from helpers import run_python
from pages import ROOT

from paddle_adagc import load_state

if importlib.util.find_spec("paddlenlp") is None:
    pytest.skip("PaddleNLP is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow
SCRIPT = """
import dataclasses, json, sys
import numpy as np, paddle
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments
from paddlenlp.trainer import TrainerCallback
from reference import ernie

@dataclasses.dataclass
class Arguments(TrainingArguments):
    adaptive_norm_clip: bool = False
    adaptive_norm_force_clear_state: bool = False
    adaptive_norm_shard_clip: bool = False

draw = np.random.default_rng(0)
x = draw.normal(size=[1600, 4]).astype("float32")
x[::9] *= 8
rows = [{"x": row, "labels": row[:1]} for row in x]

class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.up = paddle.nn.Linear(4, 8)
        self.down = paddle.nn.Linear(8, 1)

    def forward(self, x, labels=None):
        return 0.1 * ((self.down(self.up(x)) - labels) ** 2).mean()

class Ernie(Trainer):
    def create_optimizer(self, lr_scheduler=None):
        self.optimizer = paddle.optimizer.AdamW(
            lr_scheduler, parameters=self.model.parameters(),
            grad_clip=ernie.ClipGradByAdaptiveNorm())
        return self.optimizer

class Gammas(TrainerCallback):
    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        clip = optimizer._grad_clip
        if hasattr(clip, "rule"):
            found = [*clip.rule.values.values()]
        else:
            found = [float(v) for v in clip.state_dict()["gamma"].values()]
        print("gammas", json.dumps([state.global_step, found]))

[args] = PdArgumentParser(Arguments).parse_json_file(sys.argv[1])
paddle.seed(0)
callbacks = [ernie.ClipGradByAdaptiveNormCallback(), Gammas()]
trainer = Ernie(
    args=args, model=Net(), train_dataset=rows, callbacks=callbacks
)
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
"""
RUN = ("-m", "paddle_adagc.run")
START = "theirs/checkpoint-100"


def train(folder, *before, **values):
    """Run the script; return gammas by step, and what it said."""
    job = {
        "output_dir": "out",
        "max_steps": 200,
        "save_steps": 100,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "device": "cpu",
        "report_to": "visualdl",
        "adaptive_norm_clip": True,
        **values,
    }
    (folder / "job.json").write_text(json.dumps(job))
    words = [*before, sys.executable][not before :]
    path = f"{ROOT}:{ROOT / 'tests'}"
    words += ["train.py", "job.json"]
    ended = run_python(folder, *words, PYTHONPATH=path)
    assert ended.returncode == 0, ended.stderr[-4000:]
    lines = re.findall("^gammas (.*)", ended.stdout, re.MULTILINE)
    return dict(map(json.loads, lines)), ended.stderr + ended.stdout


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job of 200 steps under theirs: its folder and gammas."""
    folder = tmp_path_factory.mktemp("ernie")
    (folder / "train.py").write_text(SCRIPT)
    return folder, train(folder, output_dir="theirs")[0]


def test_a_job_moves_over_at_step_100(job):
    folder, gammas = job
    mine, said = train(folder, *RUN, resume_from_checkpoint=START)
    assert [*mine] == [*range(101, 201)]
    for step, values in mine.items():
        rounding = 1e-6 if step < 150 else 1e-5  # it adds up in the weights
        np.testing.assert_allclose(values, gammas[step], rtol=rounding)
    assert "gamma of 4 tensors after 100 steps is taken over" in said
    assert load_state(folder / "out/checkpoint-200")["step"] == 200
    assert (
        "AdaGC in force: lambda_rel=1.03 (ERNIE's adaptive_norm_clip), "
        "beta=0.98 (ERNIE's adaptive_norm_clip), lambda_abs=1.0 (ERNIE's "
        "adaptive_norm_clip), t_start=101 (ERNIE's adaptive_norm_clip, "
        "step 100 included); 4 tensors; resumed after 100 steps\n"
    ) in said


def test_a_resume_without_their_state(job):
    said = train(
        job[0],
        *RUN,
        output_dir="cleared",
        max_steps=102,
        resume_from_checkpoint=START,
        adaptive_norm_force_clear_state=True,
        adaptive_norm_shard_clip=True,
    )[1]
    for text in (
        "AdaGC clipped 2 steps",
        "over, at step 201",
        "adaptive_norm_force_clear_state: no state of the clip is",
        "tensors; adaptive_norm_shard_clip has no effect",
    ):
        assert text in said
