# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scripts of a user, and how a form of a command is written down."""

import dataclasses
import json

TRAIN = """
import sys
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments
{more}
[args] = PdArgumentParser(TrainingArguments).parse_json_file(sys.argv[-1])
trainer = Trainer(args=args{given})
trainer.train()
"""
SCRIPT = TRAIN.format(more="", given="")


def subclass(body, base="Trainer", given="", head=""):
    """A script whose Trainer has this body."""
    more = f"import paddle, pickle\n{head}\nclass Mine({base}):\n{body}\n"
    more += "Trainer = Mine"
    return TRAIN.format(more=more, given=given)


OWN_OPTIMIZER = """
    def {name}(self, *_):
        self.optimizer = paddle.optimizer.AdamW(
            parameters=self.model.parameters(),
            grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
        )
"""
DPO = """
    def create_optimizer(self, lr_scheduler=None):
        optimizer = super().create_optimizer(lr_scheduler)
        optimizer._grad_clip = paddle.nn.ClipGradByGlobalNorm(2.0)
        return optimizer
"""
REPLACES = """
    def _tell(self, event):
        self.optimizer._grad_clip = None
"""
ARGUMENTS = """
import dataclasses
@dataclasses.dataclass
class TrainingArguments(TrainingArguments):
    adaptive_norm_clip: bool = False
    adaptive_norm_clip_ratio: float = 1.03
    adaptive_norm_start_clip_steps: int = 100
"""
ERNIE = TRAIN.format(more=ARGUMENTS, given="")
OPTIMIZER = """
import paddle
from paddle_adagc import ClipGradByAdaGC
model = paddle.nn.Linear(4, 1)
optimizer = paddle.optimizer.AdamW(
    parameters=model.parameters(), grad_clip={}
)
"""
GIVEN = ", model=model, optimizers=(optimizer, None)"
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
PLAIN_LOOP = LOOP.format("AdamW", "", STEPS)
STARTS = """
import os, subprocess, sys
subprocess.run([sys.executable, {flags}"train.py", "job.json"], {more})
"""
PROCESS = """
import multiprocessing, runpy, sys
def train():
    sys.argv = ["train.py", "job.json"]
    runpy.run_path("train.py")
if __name__ == "__main__":
    child = multiprocessing.get_context("{}").Process(target=train)
    child.start()
    child.join()
"""
TMUX = """
tmux="tmux -S ./socket"
{before}
$tmux new-session -d "python train.py job.json > printed 2>&1
$tmux wait-for -S done"
$tmux wait-for done
$tmux kill-server
cat printed
"""
SERVER = "env -u PADDLE_ADAGC_RUN -u PYTHONPATH $tmux new-session -d 'sleep 99'"
WITH_PATH = "import sys; sys.path[:0] = {path}\n" + SCRIPT
JOB = '{"max_steps": 6}'
T_START = "--t-start 2"


@dataclasses.dataclass
class Form:
    """A command, the files around it, and what happens."""

    name: str
    command: str
    trained: tuple[str, ...] = ()
    """What each process that finished its training trained with."""

    said: tuple[str, ...] = ()
    """Patterns of what ``adagc-run`` and the processes say."""

    files: dict[str, str] = dataclasses.field(default_factory=dict)
    options: str = ""
    status: int = 0
    needs: str = "paddle"
    """A package or program; empty: it ends before Paddle is imported."""


def clips(
    name, command="python train.py job.json", num=1, script=SCRIPT, **more
):
    """A form in which AdaGC is in force in ``num`` processes."""
    clip = more.pop("clip", "lambda_abs=1.0 t_start=2")
    origin = more.pop(
        "origin", r"lambda_abs=1\.0 \(max_grad_norm\), t_start=2 \(--t-start\)"
    )
    said = (
        rf"adagc-run: AdaGC in force: {origin}; 2 tensors",
        rf"\nadagc-run: AdaGC clipped {more.pop('steps', 6)} steps\n",
        *more.pop("said", ()),
    )
    more = {"options": T_START, **more}
    files = {"train.py": script, **more.pop("files", {})}
    trained = (f"ClipGradByAdaGC {clip}",) * num
    return Form(name, command, trained, said, files, **more)


def without(name, said, command="python loop.py", **more):
    """A form of a process that AdaGC does not reach."""
    return Form(name, command, more.pop("trained", ()), said, **more)


def refused(name, command, message, **more):
    """A form that ends before the command starts."""
    return Form(name, command, (), (message,), status=2, needs="", **more)


def settings(name, text, message, file="clip.yaml"):
    """A file of settings that is refused."""
    more = {"options": f"--settings {file}", "files": {file: text}}
    return refused(name, "echo started", message, **more)


def write_files(form, folder, path):
    """Write a form's files; ``path`` is what ``sys.path`` needs."""
    files = {"train.py": SCRIPT, "job.json": JOB, **form.files}
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.replace("{path}", json.dumps(path)))
