# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands behind ``adagc-run``, and what happens in their processes.

tests/contract/test_run.py has signals, statuses and terminals.
"""

import dataclasses

TRAIN = """
import json, sys
from paddlenlp.trainer import Trainer, TrainingArguments
{more}
args = TrainingArguments(**json.load(open(sys.argv[-1])))
trainer = Trainer(args=args{given})
trainer.train()
"""
SCRIPT = TRAIN.format(more="", given="")


def subclass(body, base="Trainer", head=""):
    """A script whose Trainer has this body."""
    more = f"import paddle, pickle\n{head}\nclass Mine({base}):\n{body}\n"
    return TRAIN.format(more=more + "Trainer = Mine", given="")


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
$tmux new-session -d "python train.py job.json > printed 2>&1
$tmux wait-for -S done"
$tmux wait-for done
$tmux kill-server
cat printed
"""
ZIP = """
nlp=$(python -c 'import paddlenlp; print(*paddlenlp.__path__)')
python -m zipfile -c nlp.zip $nlp
PYTHONPATH=$PWD/nlp.zip:$PYTHONPATH python train.py job.json
"""
SITE = """
import os
for name in [*os.environ]:
    if name.startswith("PADDLE"):
        del os.environ[name]
raise ValueError("mine")
"""
STARTS = """
import subprocess, sys
subprocess.run([sys.executable, "train.py", "job.json"], env={})
"""
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
    needs: str = ""
    """A program."""


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
        r"\nadagc-run: AdaGC clipped 6 steps",
        *more.pop("said", ()),
    )
    more = {"options": T_START, **more}
    files = {"train.py": script, **more.pop("files", {})}
    trained = more.pop("trained", (f"ClipGradByAdaGC {clip}",) * num)
    return Form(name, command, trained, said, files, **more)


def without(name, said, command="python loop.py", **more):
    """A form of a process that AdaGC does not reach."""
    return Form(name, command, more.pop("trained", ()), said, **more)


TWO_LINES = (
    r"Add these two lines:\n    clip = .*\n    AdamW\(..., grad_clip=clip"
)
FORMS = [
    clips("a script"),
    clips(
        "the bare command",
        options="--",
        clip="lambda_abs=1.0 t_start=100",
        origin=r"lambda_abs=1\.0 \(max_grad_norm\)",
    ),
    clips("`python -m`", "python -m train job.json"),
    clips("standard input", "bash -c 'python - job.json < train.py'"),
    clips(
        "a shell script that trains twice",
        "bash job.sh",
        num=2,
        files={
            "job.sh": "python train.py job.json\n"
            "PYTHONPATH=/mine:$PYTHONPATH python train.py job.json &\nwait $!\n"
        },
    ),
    clips(
        "`tmux`, with its own server",
        "bash job.sh",
        files={"job.sh": TMUX},
        needs="tmux",
    ),
    *(
        clips(
            f"`multiprocessing`, {way}",
            "python start.py",
            files={"start.py": PROCESS.format(way)},
        )
        for way in ("spawn", "fork")
    ),
    clips(
        "Paddle's launcher, two ranks",
        "python -m paddle.distributed.launch --nproc_per_node 2 train.py "
        "job.json",
        num=2,
        said=(r"; rank 0 of 2\n",),
    ),
    clips(
        "a `sitecustomize` that drops variables and raises",
        files={"sitecustomize.py": SITE},
        said=("ValueError: mine",),
    ),
    clips(
        "`max_grad_norm: None`",
        files={"job.json": '{"max_steps": 6, "max_grad_norm": null}'},
        origin=r"lambda_abs=1\.0 \(max_grad_norm is None\), t_start=2 "
        r"\(--t-start\)",
    ),
    clips(
        "`--settings`, JSON, and an option",
        options="--settings clip.json --t-start 2",
        files={"clip.json": '{"clip": {"t_start": 3, "strict": true}}'},
        origin=r"lambda_abs=1\.0 \(max_grad_norm\), t_start=2 \(--t-start\), "
        r"strict=True \(clip\.json\)",
    ),
    clips(
        "a Trainer with a metaclass and `__new__`, whose type is pickled",
        script=subclass(
            "    def __new__(cls, *args, **kwargs):\n"
            "        return object.__new__(cls)\n",
            "Trainer, metaclass=Meta",
            head="class Meta(type): pass\n",
        )
        + "assert pickle.loads(pickle.dumps(type(trainer))) is Mine\n",
    ),
    clips(
        "`optimizers=`",
        script=TRAIN.format(more=OPTIMIZER.format("None"), given=GIVEN),
    ),
    clips(
        "`optimizers=` with AdaGC",
        script=TRAIN.format(
            more=OPTIMIZER.format("ClipGradByAdaGC(t_start=4)"), given=GIVEN
        ),
        options="--t-start 2 --missing-state start",
        clip="lambda_abs=1.0 t_start=4",
        origin=r"t_start=4 \(the script\); the script's own, without "
        "missing_state, t_start",
    ),
    clips(
        "a Trainer that has the mixin",
        script=subclass(
            "    def __init__(self, **given):\n"
            "        clip = ClipGradByAdaGC(t_start=4)\n"
            "        super().__init__(clip=clip, **given)\n",
            "ClippingMixin, Trainer",
            head="from paddle_adagc import ClipGradByAdaGC\n"
            "from paddle_adagc.integrations.paddlenlp import ClippingMixin\n",
        ),
        options="",
        clip="lambda_abs=1.0 t_start=4",
        origin=r"t_start=4 \(the script\)",
    ),
    clips(
        "`train()` twice, and a second Trainer; from a zip",
        "bash job.sh",
        script=SCRIPT
        + "trainer.train()\nargs.max_grad_norm = 0.25\n"
        + "Trainer(args=args).train()\n",
        files={"job.json": '{"max_steps": 2}', "job.sh": ZIP},
        trained=(
            *("ClipGradByAdaGC lambda_abs=1.0 t_start=2",) * 2,
            "ClipGradByAdaGC lambda_abs=0.25 t_start=2",
        ),
        said=(r"in force: lambda_abs=0\.25 \(max_grad_norm\), t_start=2",),
    ),
    clips(
        "a command that fails after its training, `--require`",
        script=SCRIPT + "sys.exit(7)\n",
        options="--require --t-start 2",
        status=7,
    ),
    without(
        "a loop that has AdaGC",
        (
            r"in force: t_start=9 \(the script\)\n",
            r"AdaGC clipped 3 steps",
        ),
        files={
            "loop.py": LOOP.format(
                "AdamW", ", grad_clip=ClipGradByAdaGC(t_start=9)", STEPS
            )
        },
    ),
    without(
        "a loop without a Trainer",
        (rf"\nadagc-run: 3 steps of AdamW without AdaGC: it .*\. {TWO_LINES}",),
        files={"loop.py": PLAIN_LOOP},
    ),
    without(
        "a loop with `--require`",
        (rf"RuntimeError: adagc-run --require: AdamW .*{TWO_LINES}",),
        files={"loop.py": PLAIN_LOOP},
        options="--require",
        status=1,
    ),
    without(
        "LBFGS",
        (r"3 steps of LBFGS without AdaGC: it calls no clip",),
        files={"loop.py": LOOP.format("LBFGS", "", "optimizer.step(closure)")},
    ),
    without(
        "a callback that replaces the clip",
        (
            r"AdaGC clipped 1 step",
            r"5 steps of AdamW without AdaGC: Mine has given it None",
        ),
        "python train.py job.json",
        trained=("NoneType",),
        files={
            "train.py": subclass(
                "    def _tell(self, event):\n"
                "        super()._tell(event)\n"
                "        if event == 'on_step_end':\n"
                "            self.optimizer._grad_clip = None\n"
            )
        },
    ),
    without(
        "a Trainer that only predicts",
        (r"\nadagc-run: a Trainer was made, but it made no step\n",),
        "python train.py job.json",
        files={
            "train.py": SCRIPT.replace("trainer.train()", "trainer.predict()")
        },
    ),
    without(
        "a program that empties the environment",
        (r"\A[^\n]*does not clip\.\n(?!.*adagc-run)",),
        "python start.py",
        trained=("ClipGradByGlobalNorm",),
        files={"start.py": STARTS, "train.py": WITH_PATH},
    ),
]
