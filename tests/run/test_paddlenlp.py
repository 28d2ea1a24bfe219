# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run before PaddleNLP's own Trainer, and one of PaddleFleet's shape."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
from helpers import run_python

from paddle_adagc import load_state

if importlib.util.find_spec("paddlenlp") is None:
    pytest.skip("PaddleNLP is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow
RUN = (sys.executable, "-m", "paddle_adagc.run")
SUBCLASSES = {
    "own clip": """
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.clip = 0.2
    def training_step(self, *given):
        assert self.clip == 0.2
        return super().training_step(*given)
""",
    "create_optimizer returns None": """
    def create_optimizer(self, lr_scheduler=None):
        self.optimizer = paddle.optimizer.AdamW(
            lr_scheduler,
            parameters=self.model.parameters(),
            grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
        )
""",
    "create_optimizer_and_scheduler": """
    def create_optimizer_and_scheduler(self, num_training_steps):
        self.create_scheduler(num_training_steps)
        self.optimizer = paddle.optimizer.AdamW(
            self.lr_scheduler,
            parameters=self.model.parameters(),
            grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
        )
""",
}


PADDLENLP = """
import sys
import numpy as np, paddle
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments
from paddlenlp.trainer.trainer_utils import get_last_checkpoint

x = np.random.default_rng(0).normal(size=[400, 4]).astype("float32")
rows = [{"x": row, "labels": row[:1]} for row in x]

class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return ((self.linear(x) - labels) ** 2).mean()

class MyTrainer(Trainer):
    def create_optimizer(self, lr_scheduler=None):
        return super().create_optimizer(lr_scheduler)

[args] = PdArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])
paddle.seed(0)
trainer = MyTrainer(model=Net(), args=args, train_dataset=rows)
assert type(trainer).__name__ == "MyTrainer"
resumes = len(sys.argv) > 2
found = get_last_checkpoint(args.output_dir) if resumes else None
trainer.train(resume_from_checkpoint=found)
print("clip:", trainer.optimizer._grad_clip)
"""


THREE = (
    PADDLENLP[: PADDLENLP.index("class MyTrainer")]
    + "".join(
        f"class Mine{i}(Trainer):\n{body}\n"
        for i, body in enumerate(SUBCLASSES.values())
    )
    + """
for kind in (Mine0, Mine1, Mine2):
    [args] = PdArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])
    paddle.seed(0)
    trainer = kind(model=Net(), args=args, train_dataset=rows)
    trainer.train()
    print("weights", *trainer.model.linear.weight.flatten().tolist())
    print("trained with", type(trainer.optimizer._grad_clip).__name__)
"""
)


def write_job(folder, train=True, **values):
    """A user's script and its config."""
    if train:
        (folder / "train.py").write_text(PADDLENLP)
    values = {
        "output_dir": str(folder / "out"),
        "max_steps": 6,
        "save_steps": 3,
        "logging_steps": 3,
        "learning_rate": 0.01,
        "device": "cpu",
        "report_to": "visualdl",
        **values,
    }
    (folder / "job.json").write_text(json.dumps(values))


def adagc_run(*words, status=0):
    """Run the command before the script; return all that it prints."""
    command = [*RUN, *words, sys.executable, "train.py", "job.json"]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert ended.returncode == status, ended.stdout
    return ended.stdout


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A user's folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_of_paddlenlp_s_trainer(folder):
    write_job(folder, max_grad_norm=0.5)
    printed = adagc_run("--beta", "0.9", "--t-start=2", "--")
    clip = "clip: ClipGradByAdaGC(lambda_rel=1.04, beta=0.9, lambda_abs=0.5"
    assert clip in printed
    assert "clip_global_grad_norm" in printed
    settings = "beta=0.9 (--beta), lambda_abs=0.5 (max_grad_norm), t_start=2 ("
    assert f"AdaGC in force: {settings}--t-start); 2 tensors\n" in printed
    state = load_state(folder / "out/checkpoint-3")
    assert state["step"] == 3
    assert {*state["gamma"]} == {"linear.weight", "linear.bias"}


def test_numbers_without_the_command_s_options_are_the_same(folder):
    """In the warm-up AdaGC is the clip by the global norm."""
    write_job(folder)
    (folder / "train.py").write_text(THREE)
    without = run_python(folder, "train.py", "job.json")
    with_clip = adagc_run()
    weights = [
        [
            float(value)
            for line in re.findall("weights (.*)", printed)
            for value in line.split()
        ]
        for printed in (without.stdout, with_clip)
    ]
    assert with_clip.count("trained with ClipGradByAdaGC") == 3
    assert with_clip.count("AdaGC in force:") == 3
    assert len(weights[0]) == 12
    assert weights[0] == pytest.approx(weights[1], rel=1e-4)


def test_a_running_job_resumes_and_switches(folder):
    write_job(folder)
    run_python(folder, "train.py", "job.json").check_returncode()
    write_job(folder, max_steps=9)
    resumes = PADDLENLP.replace("len(sys.argv) > 2", "True")
    (folder / "train.py").write_text(resumes)
    printed = adagc_run(status=1)
    assert "give missing_state='start' (adagc-run: --missing-state" in printed
    adagc_run("--missing-state", "start")
    write_job(folder, max_steps=12, train=False)
    assert "; resumed after 3 steps\n" in adagc_run()


def test_a_trainer_of_paddlefleet_s_shape(folder):
    package = folder / "paddlefleet/trainer"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    imported = "from {} import Trainer\n"
    (package / "__init__.py").write_text(imported.format(".trainer"))
    (package / "trainer.py").write_text(
        imported.format("core.integrations.trainers")
    )
    script = imported.format("paddlefleet.trainer")
    (folder / "train.py").write_text(f"{script}Trainer(max_steps=3).train()")
    printed = adagc_run("--t-start=1")
    assert printed.count("'clip_global_grad_norm':") == 3
    state = load_state(folder / "out/checkpoint-3")
    assert (state["step"], {*state["gamma"]}) == (3, {"weight", "bias"})
