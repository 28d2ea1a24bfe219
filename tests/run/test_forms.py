# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run before commands that know nothing of it.

They import a small Trainer from packages of PaddleNLP's and PaddleFleet's
names. tests/contract/test_run.py has signals, statuses and terminals.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from helpers import slow_but

PROGRAMS = str(Path(sys.executable).parent)
RUN = (sys.executable, "-m", "paddle_adagc.run")
MODULE = """
from core.integrations import trainers

class Trainer(trainers.Trainer):
    def __init__(self, *args, optimizers=(None, None), **more):
        super().__init__(*args, **more)
        self.optimizer = optimizers[0]

    def create_optimizer(self, lr_scheduler=None):
        return self.optimizer or super().create_optimizer()
"""
HEAD = """
import pickle, sys, tempfile
import paddle
from paddlenlp.trainer import Trainer
from paddle_adagc import ClipGradByAdaGC
"""
TRAIN = """
def train(steps=6, **more):
    trainer = Trainer(tempfile.mkdtemp(dir="."), max_steps=steps, **more)
    trainer.train()
    print("trained with", trainer.optimizer._grad_clip)
    return trainer
"""
SCRIPT = HEAD + TRAIN + "train()\n"
OPTIMIZERS = """
model, clip = paddle.nn.Linear(2, 1), ClipGradByAdaGC(t_start=4)
parameters = model.parameters()
optimizer = paddle.optimizer.AdamW(parameters=parameters, grad_clip=clip)
clip.bind(model)
train(model=model, optimizers=(optimizer, None))
"""
PROCESS = """
import multiprocessing, runpy
child = multiprocessing.get_context("fork").Process(
    target=runpy.run_path, args=["train.py"]
)
child.start()
child.join()
"""
TWICE = """
python train.py
PYTHONPATH=/mine:$PYTHONPATH python train.py &
wait $!
"""
ZIP = """
python -m zipfile -c nlp.zip paddlenlp
mkdir bin && mv train.py bin
PYTHONPATH=$PWD/nlp.zip:$PYTHONPATH python bin/train.py
"""
SITE = """
import os
for name in [*os.environ]:
    if name.startswith("PADDLE"):
        del os.environ[name]
raise ValueError("mine")
"""
LOOP = """
import paddle
from paddle_adagc import ClipGradByAdaGC
model = paddle.nn.Linear(4, 1)
optimizer = paddle.optimizer.{}(parameters=model.parameters(){})
def closure():
    loss = model(paddle.ones([1, 4])).mean()
    loss.backward()
    return loss
for _ in range(3):
    {}
"""
STEPS = "closure(); optimizer.step()"


def subclass(body, base="Trainer", head=""):
    """A script whose Trainer has this body."""
    mine = f"{head}\nclass Mine({base}):\n{body}\nTrainer = Mine\n"
    return HEAD + mine + TRAIN + "trainer = train()\n"


class Form(NamedTuple):
    """A command, the files around it, and what happens."""

    said: tuple[str, ...]
    """Patterns of what ``adagc-run`` and the processes say."""

    script: str = SCRIPT
    command: str = "python train.py"
    options: str = "--t-start 2"
    num: int = 1
    """Processes, or Trainers, that end with AdaGC."""

    files: Mapping[str, str] = MappingProxyType({})
    status: int = 0


GIVEN = r"lambda_abs=1\.0 \(max_grad_norm\), t_start=2 \(--t-start\)"


def in_force(settings=GIVEN, num=6):
    return (
        rf"adagc-run: AdaGC in force: {settings}; 2 tensors",
        rf"\nadagc-run: AdaGC clipped {num} steps",
    )


def loop(said, optimizer="AdamW", clip="", step=STEPS, **more):
    script = LOOP.format(optimizer, clip, step)
    return Form((said,), script, num=0, **{"options": "--", **more})


ADD_TWO_LINES = (
    r"AdamW without AdaGC: it belongs .*\. "
    r"Add these lines:\n    from .* import .*\n    clip = .*\n    AdamW\("
)
FORMS = {
    "a script": Form(in_force(), options="--require --t-start 2"),
    "a Trainer of PaddleFleet": Form(
        in_force(), SCRIPT.replace("paddlenlp", "paddlefleet")
    ),
    "a shell script that trains twice": Form(
        in_force(), command="bash job.sh", num=2, files={"job.sh": TWICE}
    ),
    "a child that was forked": Form(
        in_force(), command="python start.py", files={"start.py": PROCESS}
    ),
    "Paddle's launcher, two ranks": Form(
        (*in_force(), r"; rank 0 of 2\n"),
        command="python -m paddle.distributed.launch --nproc_per_node 2 "
        "train.py",
        num=2,
    ),
    "a `sitecustomize` that drops variables and raises": Form(
        (*in_force(), "ValueError: mine"), files={"sitecustomize.py": SITE}
    ),
    "a Trainer with `__new__`, `clip`, metaclass; its type is pickled": Form(
        in_force(),
        subclass(
            "    clip = 0.2\n"
            "    def __new__(cls, *args, **kwargs):\n"
            "        return object.__new__(cls)\n"
            "    def create_optimizer_and_scheduler(self, num=None):\n"
            "        assert self.clip == 0.2\n"
            "        self.optimizer = paddle.optimizer.AdamW(\n"
            "            parameters=self.model.parameters(),\n"
            "            grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))\n",
            "Trainer, metaclass=Meta",
            head="class Meta(type): pass\n",
        )
        + "assert pickle.loads(pickle.dumps(type(trainer))) is Mine\n",
    ),
    "`optimizers=` with AdaGC": Form(
        (
            *in_force(r"t_start=4 \(the script\)"),
            "; the script's own, without t_start\n",
        ),
        HEAD + TRAIN + OPTIMIZERS,
        options="--t-start 2 --missing-state start",
    ),
    "a Trainer that has the mixin": Form(
        (
            *in_force(r"t_start=4 \(the script\)"),
            "; the script's own, without record, t_start\n",
        ),
        subclass(
            "    def __init__(self, *args, **given):\n"
            "        clip = ClipGradByAdaGC(t_start=4)\n"
            "        super().__init__(*args, clip=clip, **given)\n",
            "ClippingMixin, Trainer",
            head="from paddle_adagc.integrations.trainer import ClippingMixin",
        ),
        options="--no-record --t-start 2",
    ),
    "`train()` twice, and a second Trainer; from a zip": Form(
        (
            *in_force(),
            r"in force: lambda_abs=0\.25 \(max_grad_norm\), t_start=2",
        ),
        HEAD
        + TRAIN
        + "trainer = train(2)\n"
        + "trainer.args.output_dir = 'again'\ntrainer.train()\n"
        + "train(2, max_grad_norm=0.25)\n",
        command="bash job.sh",
        num=2,
        files={"job.sh": ZIP},
    ),
    "a loop that has AdaGC": loop(
        r"in force: t_start=9 \(the script\)\n.*AdaGC clipped 3 steps",
        clip=", grad_clip=ClipGradByAdaGC(t_start=9)",
    ),
    "a loop with `--require`": loop(
        rf"RuntimeError: adagc-run --require: {ADD_TWO_LINES}",
        options="--require",
        status=1,
    ),
    "LBFGS": loop(
        r"3 steps of LBFGS without AdaGC: it calls no clip",
        "LBFGS",
        step="optimizer.step(closure)",
    ),
    "a callback that replaces the clip": Form(
        (
            "AdaGC clipped 1 step",
            "5 steps of AdamW without AdaGC: Mine has given it None",
        ),
        subclass(
            "    def call(self, event, **more):\n"
            "        super().call(event, **more)\n"
            "        if event == 'on_step_end':\n"
            "            self.optimizer._grad_clip = None\n"
        ),
        num=0,
    ),
    "a Trainer that only predicts": Form(
        (r"\nadagc-run: a Trainer was made, but it made no step\n",),
        HEAD + "print(Trainer().model(paddle.ones([1, 2])))\n",
        num=0,
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder, with the two packages."""
    for name in ("paddlenlp", "paddlefleet"):
        package = tmp_path / name / "trainer"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (package / "__init__.py").write_text("from .trainer import Trainer\n")
        (package / "trainer.py").write_text(MODULE)
    path = [str(tmp_path), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("PATH", os.pathsep.join([PROGRAMS, os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", slow_but("a script", FORMS))
def test_a_form(folder, name):
    form = FORMS[name]
    for file, text in {"train.py": form.script, **form.files}.items():
        (folder / file).write_text(text)
    words = [*RUN, *shlex.split(form.options), *shlex.split(form.command)]
    ended = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    printed = ended.stdout
    for path in folder.glob("log/workerlog.[1-9]"):
        printed += path.read_text()
    assert ended.returncode == form.status, printed
    for pattern in form.said:
        assert re.search(pattern, printed, re.DOTALL), printed
    assert printed.count("trained with ClipGradByAdaGC(") == form.num, printed
