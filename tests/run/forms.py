# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands before which people put ``adagc-run``, and what happens to each."""

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


PRINTS_CLIP = r"AdamW without AdaGC: Mine has given it None"
TWO_LINES = r"two lines to add:\n    clip = .*\n    AdamW\(..., grad_clip=clip"
FORMS = [
    clips("a script"),
    clips(
        "the bare command",
        options="--",
        clip="lambda_abs=1.0 t_start=100",
        origin=r"lambda_abs=1\.0 \(max_grad_norm\)",
    ),
    clips("`python -m`", "python -m train job.json"),
    clips(
        "`python -c`",
        """python -c "import runpy; runpy.run_path('train.py')" job.json""",
    ),
    clips("standard input", "bash -c 'python - job.json < train.py'"),
    clips(
        "a shell script",
        "bash job.sh",
        files={"job.sh": "NAME=job\npython train.py $NAME.json\n"},
    ),
    clips(
        "a script that trains in the background",
        "bash job.sh",
        files={"job.sh": "python train.py job.json &\nwait $!\n"},
    ),
    clips(
        "a script that trains twice",
        "bash job.sh",
        num=2,
        files={"job.sh": "python train.py job.json\n" * 2},
    ),
    clips("`bash -c`", "bash -c 'python train.py job.json'"),
    clips("`bash -c` with more", "bash -c 'cd . && python train.py job.json'"),
    clips(
        "`PYTHONPATH` with ours kept",
        "bash -c 'PYTHONPATH=/mine:$PYTHONPATH python train.py job.json'",
    ),
    clips("`timeout`", "timeout 100 python train.py job.json"),
    clips("`setsid -w`", "setsid -w python train.py job.json"),
    clips("`nohup`", "nohup python train.py job.json"),
    clips("`nice`", "nice -n 5 python train.py job.json"),
    clips("`env`", "env A=b python train.py job.json"),
    clips(
        "`make`",
        "make",
        files={"Makefile": "all:\n\tpython train.py job.json\n"},
        needs="make",
    ),
    clips(
        "`tmux`, with its own server",
        "bash job.sh",
        files={"job.sh": TMUX.format(before="")},
        needs="tmux",
    ),
    without(
        "`tmux`, with a running server",
        (r"\A[^\n]*does not clip\.\n(?!.*adagc-run)",),
        "bash job.sh",
        trained=("ClipGradByGlobalNorm",),
        files={"job.sh": TMUX.format(before=SERVER), "train.py": WITH_PATH},
        needs="tmux",
    ),
    clips(
        "without a network",
        "unshare -r -n python train.py job.json",
        needs="unshare -r -n",
    ),
    clips(
        "`exec`",
        "python start.py",
        files={
            "start.py": "import os, sys\n"
            'os.execv(sys.executable, [sys.executable, "train.py", '
            '"job.json"])\n'
        },
    ),
    *(
        clips(
            f"`multiprocessing`, {way}",
            "python start.py",
            files={"start.py": PROCESS.format(way)},
        )
        for way in ("spawn", "fork", "forkserver")
    ),
    clips(
        "Paddle's launcher, two ranks",
        "python -m paddle.distributed.launch --nproc_per_node 2 train.py "
        "job.json",
        num=2,
        needs="launcher",
        said=(r"; rank 0 of 2\n",),
    ),
    clips(
        "names that are not ASCII",
        "python 训练.py 配置/job.json",
        files={"训练.py": SCRIPT, "配置/job.json": JOB},
    ),
    clips(
        "a `sitecustomize` of yours",
        files={"sitecustomize.py": "print('mine')\n"},
        said=("mine\n",),
    ),
    clips(
        "a `sitecustomize` of yours that raises",
        files={"sitecustomize.py": "raise ValueError('mine')\n"},
        said=("ValueError: mine",),
    ),
    clips(
        "a `sitecustomize` of yours that drops variables",
        files={
            "sitecustomize.py": "import os\n"
            "for name in [*os.environ]:\n"
            "    if name.startswith('PADDLE'):\n"
            "        del os.environ[name]\n"
        },
    ),
    clips(
        "`max_grad_norm`",
        files={"job.json": '{"max_steps": 6, "max_grad_norm": 0.25}'},
        clip="lambda_abs=0.25 t_start=2",
        origin=r"lambda_abs=0\.25 \(max_grad_norm\), t_start=2 \(--t-start\)",
    ),
    clips(
        "`max_grad_norm: 0`",
        files={"job.json": '{"max_steps": 6, "max_grad_norm": 0}'},
        origin=r"lambda_abs=1\.0 \(max_grad_norm is 0\.0\), t_start=2 "
        r"\(--t-start\)",
    ),
    clips(
        "`max_grad_norm: None`",
        script=SCRIPT.replace(
            "trainer =", "args.max_grad_norm = None\ntrainer ="
        ),
        origin=r"lambda_abs=1\.0 \(max_grad_norm is None\), t_start=2 "
        r"\(--t-start\)",
    ),
    clips(
        "`--lambda-abs` beside `max_grad_norm`",
        options="--lambda-abs .5 --t-start=2",
        clip="lambda_abs=0.5 t_start=2",
        origin=r"lambda_abs=0\.5 \(--lambda-abs\), t_start=2 \(--t-start\)",
    ),
    clips(
        "ERNIE's arguments",
        script=ERNIE,
        files={"job.json": '{"max_steps": 6, "adaptive_norm_clip": true}'},
        options="",
        clip="lambda_abs=1.0 t_start=100",
        origin=r"lambda_rel=1\.03 \(adaptive_norm_clip_ratio\), beta=0\.98 "
        r"\(ERNIE's adaptive_norm_clip\), lambda_abs=1\.0 \(ERNIE's "
        r"adaptive_norm_clip\), t_start=100 \(adaptive_norm_start_clip_steps\)",
    ),
    clips("ERNIE's arguments, switched off", script=ERNIE),
    clips(
        "`--settings`, YAML",
        options="--settings clip.yaml",
        files={"clip.yaml": "clip:\n  t_start: 3\n  lambda_abs: 5e-1\n"},
        clip="lambda_abs=0.5 t_start=3",
        origin=r"lambda_abs=0\.5 \(clip\.yaml\), t_start=3 \(clip\.yaml\)",
    ),
    clips(
        "`--settings`, JSON, and an option",
        options="--settings clip.json --t-start 2",
        files={"clip.json": '{"clip": {"t_start": 3, "strict": true}}'},
        origin=r"lambda_abs=1\.0 \(max_grad_norm\), t_start=2 \(--t-start\), "
        r"strict=True \(clip\.json\)",
    ),
    clips(
        "a command's own key `clip`",
        files={"model.json": '{"clip": {"vision": {}}}'},
        script=SCRIPT + "open('model.json').read()\n",
    ),
    clips(
        "a Trainer with `__new__`",
        script=subclass(
            "    def __new__(cls, *args, **kwargs):\n"
            "        return object.__new__(cls)\n"
        ),
    ),
    clips(
        "a Trainer with keywords of its class",
        script=subclass(
            "    pass\n",
            "Kinds, kind='a'",
            head="class Kinds(Trainer):\n"
            "    def __init_subclass__(cls, *, kind):\n"
            "        cls.kind = kind\n",
        ),
    ),
    clips(
        "a Trainer with a metaclass",
        script=subclass(
            "    pass\n",
            "Trainer, metaclass=Meta",
            head="class Meta(type): pass\n",
        ),
    ),
    clips(
        "a Trainer whose type is pickled",
        script=subclass("    pass\n")
        + "assert pickle.loads(pickle.dumps(type(trainer))) is Mine\n",
    ),
    clips(
        "a Trainer that makes its own optimizer, as PromptTrainer",
        script=subclass(OWN_OPTIMIZER.format(name="create_optimizer")),
    ),
    clips(
        "a Trainer that makes optimizer and scheduler itself",
        script=subclass(
            OWN_OPTIMIZER.format(name="create_optimizer_and_scheduler")
        ),
    ),
    clips("a Trainer that sets `_grad_clip`, as DPO", script=subclass(DPO)),
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
        "`train()` twice",
        script=SCRIPT + "trainer.train()\n",
        num=2,
        files={"job.json": '{"max_steps": 3}'},
    ),
    clips(
        "two Trainers of one `args`",
        script=SCRIPT + "Trainer(args=args).train()\n",
        num=2,
        files={"job.json": '{"max_steps": 3, "max_grad_norm": 0.25}'},
        clip="lambda_abs=0.25 t_start=2",
        origin=r"lambda_abs=0\.25 \(max_grad_norm\), t_start=2 \(--t-start\)",
    ),
    clips("`--require`", options="--require --t-start 2"),
    clips("`--no-record`", options="--no-record --t-start 2"),
    clips("a command that fails", script=SCRIPT + "sys.exit(7)\n", status=7),
    without(
        "a loop that has AdaGC",
        (
            r"in force: t_start=9 \(the script\); 2 tensors\n",
            r"AdaGC clipped 3 steps",
        ),
        files={
            "loop.py": LOOP.format(
                "AdamW",
                ", grad_clip=ClipGradByAdaGC(t_start=9)",
                STEPS,
            )
            .replace("def closure", "optimizer._grad_clip.bind(model)\ndef c")
            .replace("def c():", "def closure():")
        },
    ),
    without(
        "a loop without a Trainer",
        (rf"\nadagc-run: 3 steps of AdamW without AdaGC: .*own; {TWO_LINES}",),
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
        "a Trainer that trains with its own loop",
        (r"3 steps of AdamW without AdaGC: its optimizer was made in a loop",),
        "python train.py job.json",
        files={
            "train.py": subclass(
                f"    def train(self):\n{PLAIN_LOOP}".replace(
                    "\n", "\n        "
                )
            )
        },
    ),
    without(
        "a callback that replaces the clip",
        (r"AdaGC clipped 1 step\n", rf"adagc-run: 5 steps of {PRINTS_CLIP}"),
        "python train.py job.json",
        trained=("NoneType",),
        files={"train.py": subclass(REPLACES)},
    ),
    without(
        "a Trainer that replaces the clip, `--require`",
        (rf"RuntimeError: adagc-run --require: {PRINTS_CLIP}",),
        "python train.py job.json",
        files={
            "train.py": subclass(
                "    def _inner_training_loop(self, args, checkpoint):\n"
                "        self.optimizer._grad_clip = None\n"
                "        super()._inner_training_loop(args, checkpoint)\n"
            )
        },
        options="--require",
        status=1,
    ),
    without(
        "a Trainer that only predicts",
        (r"\nadagc-run: a Trainer was made, and no step\n",),
        "python train.py job.json",
        files={
            "train.py": SCRIPT.replace("trainer.train()", "trainer.predict()")
        },
    ),
    without(
        "a command without Paddle",
        (r"\A[^\n]*does not clip\.\nmine\n\Z",),
        "echo mine",
        needs="",
    ),
    without(
        "a Trainer's clip that stays, `--watch`",
        (r"\nadagc-run: look at it: adagc-report out/record\n",),
        "python train.py job.json",
        trained=("ClipGradByGlobalNorm",),
        options="--watch",
    ),
    without(
        "a loop, `--watch`",
        (r"records AdamW into rec\n", r"look at it: adagc-report rec\n"),
        files={"loop.py": PLAIN_LOOP},
        options="--watch --record rec",
    ),
    *(
        without(
            name,
            (r"\A[^\n]*does not clip\.\n(?!.*adagc-run)",),
            "python start.py",
            trained=("ClipGradByGlobalNorm",),
            files={
                "start.py": STARTS.format(flags=flags, more=more),
                "train.py": WITH_PATH,
            },
        )
        for name, flags, more in (
            ("a program that starts `python -I`", '"-I", ', ""),
            ("a program that empties the environment", "", "env={}"),
        )
    ),
    refused(
        "`python -I`",
        "python -I train.py job.json",
        "python -I keeps adagc-run out: leave -I out",
    ),
    refused(
        "`python -S`",
        "timeout 9 python3.11 -W ignore -S -m train",
        "python3.11 -S keeps adagc-run out: leave -S out",
    ),
    refused(
        "`python -E`, in `bash -c`",
        "bash -ec 'cd . ; python -uE train.py job.json'",
        "python -uE keeps adagc-run out: leave -uE out",
    ),
    refused(
        "`env -i`",
        "env -i python train.py job.json",
        "env -i keeps adagc-run out: leave -i out",
    ),
    refused(
        "`env -u PYTHONPATH`",
        "env -C . -u PYTHONPATH python train.py job.json",
        "env -u PYTHONPATH keeps adagc-run out",
    ),
    refused(
        "another `PYTHONPATH`",
        "env PYTHONPATH=/mine python train.py job.json",
        "PYTHONPATH=/mine drops adagc-run's entry: write PYTHONPATH=/mine:",
    ),
    refused(
        "a script that shows it",
        "bash job.sh",
        "PYTHONPATH=./mine drops adagc-run's entry",
        files={"job.sh": "export PYTHONPATH=./mine\npython train.py\n"},
    ),
    Form(
        "a script's words about `python -I`",
        """echo --prompt "how do I run python -I safely" """,
        said=("python -I safely\n",),
        needs="",
    ),
    refused(
        "a file that cannot be run",
        "./job.json",
        "Permission denied: './job.json'",
    ),
    refused(
        "no such command",
        "trian job.json",
        "No such file or directory: 'trian'",
    ),
    settings("a YAML alias of itself", "clip: &a {b: *a}", "an alias"),
    settings(
        "nine levels of YAML aliases",
        "".join(
            f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 0}]\n"
            for i in range(9)
        )
        + "clip: {t_start: *a8}\n",
        "an alias",
    ),
    settings(
        "a YAML tag", "clip: !!python/name:os.system {}", "cannot be read"
    ),
    settings("deep JSON", "[" * 50000, "cannot be read", "clip.json"),
    settings("a file cut short", "clip:\n  t_start: [2\n", "cannot be read"),
    settings("a large file", "#" * 70000, "is larger than 65536 bytes"),
    settings("no section", "t_start: 2\n", "has no section of settings"),
    settings("a misspelt key", "clip: {t_strat: 2}", "mean 't_start'"),
    settings("a wrong value", "clip: {beta: 2}", "beta must be a number in"),
]


def write_files(form, folder, path):
    """Write a form's files; ``path`` is what ``sys.path`` needs."""
    files = {"train.py": SCRIPT, "job.json": JOB, **form.files}
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.replace("{path}", json.dumps(path)))
