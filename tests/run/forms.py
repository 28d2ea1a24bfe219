# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands before which people put ``adagc-run``, and what happens to each.

The tests run this list, and the table in ``docs/use.md`` is made of it:
``python tests/core/integrations/run_forms.py`` prints it.
"""

import dataclasses
import json
import re

TRAIN = """
import os, sys
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments
{more}
path = sys.argv[-1].partition("=")[2] or sys.argv[-1].lstrip("@")
{read}
trainer = Trainer(args=args)
trainer.train()
"""
READ = "[args] = PdArgumentParser(TrainingArguments).parse_json_file(path)"
SCRIPT = TRAIN.format(more="", read=READ)
YAML = TRAIN.format(
    more="import yaml",
    read="""
values = yaml.safe_load(open(path))
values = values.get("trainer_args", values)
[args] = PdArgumentParser(TrainingArguments).parse_dict(values)
""",
)
OWN = TRAIN.format(
    more="import json",
    read="args = TrainingArguments(**json.load(open(path)))",
)


def subclass(body, base="Trainer"):
    """A script whose Trainer has this body."""
    more = f"import paddle, types\nclass Mine({base}):\n{body}\nTrainer = Mine"
    return TRAIN.format(more=more, read=READ)


STARTS = """
import os, subprocess, sys
subprocess.run([sys.executable, {flags}"train.py", "job.json"], {more})
"""
SLOWLY = '{"seconds_per_step": 0.2, "max_steps": 200}'
SPAWNS = """
import multiprocessing, runpy, sys
def train():
    sys.argv = ["train.py", "job.json"]
    runpy.run_path("train.py")
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=train)
    child.start()
    child.join()
"""
LOOP = """
import paddle
model = paddle.nn.Linear(4, 1)
optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
model(paddle.ones([1, 4])).mean().backward()
optimizer.step()
"""
HAS_CLIP = "from paddle_adagc import ClipGradByAdaGC" + LOOP.replace(
    "parameters())", "parameters(), grad_clip=ClipGradByAdaGC())", 1
)
HAS_MIXIN = subclass(
    "    def __init__(self, **given):\n"
    "        super().__init__(clip=ClipGradByAdaGC(), **given)\n",
    "ClippingMixin, Trainer",
).replace(
    "import paddle, types\n",
    "from paddle_adagc import ClipGradByAdaGC\n"
    "from paddle_adagc.integrations.paddlenlp import ClippingMixin\n",
)
JOB = '{"clip": {"t_start": 2}}'
NO_SECTION = '{"max_steps": 6}'
CLIPS = "ClipGradByAdaGC"
PREDICTS = SCRIPT.replace("trainer.train()", "print(trainer.predict())")
FAILS = SCRIPT + "raise SystemExit(7)\n"


@dataclasses.dataclass
class Form:
    """A command, the files around it, and what happens."""

    name: str
    command: str
    outcome: str  # for the table
    said: tuple[str, ...] = ()
    """Patterns of what ``adagc-run`` and the processes say."""

    trained: tuple[str, ...] = ()
    """What each process that finished its training trained with."""

    files: dict[str, str] = dataclasses.field(default_factory=dict)
    options: str = ""
    status: int = 0
    starts: bool = True
    """The command starts; else it is refused before."""


def clips(
    name, command, where="`job.json`", t_start=2, processes=1, says="", **more
):
    """A form in which the clip is in force in each process."""
    origin = re.escape(f", arguments from {where.strip('`')}")
    said = rf"AdaGC\(.*t_start={t_start},.* is in force: 2 tensors"
    if where == "none":
        origin, where = "", "the defaults"
    if where == "options":
        origin, where = "", "the options"
    rank = f", rank 0 of {processes}" if processes > 1 else ""
    return Form(
        name,
        command,
        f"clips; arguments from {where}",
        (
            f"{said}{rank}{origin}, warm-up of {t_start} steps\n",
            rf"{CLIPS} made 6 steps in {processes} process",
            says,
        ),
        (f"{CLIPS} t_start={t_start}",) * processes,
        **more,
    )


def refused(name, command, message, **more):
    """A form that ends before the command starts."""
    outcome = f"refused before the start: `{message}`"
    said = (re.escape(message),)
    return Form(name, command, outcome, said, status=2, starts=False, **more)


FORMS = [
    clips("a script", "python train.py job.json"),
    clips("an option", "python train.py --config=job.json"),
    clips("KEY=PATH", "python train.py config=job.json"),
    clips("@PATH", "python train.py @job.json"),
    clips(
        "YAML, ERNIE's nested sections",
        "python train.py --configs job.yaml",
        "`job.yaml`",
        files={
            "train.py": YAML,
            "job.yaml": "trainer_args:\n  max_steps: 6\n  clip:\n"
            "    t_start: 2\n    lambda_abs: 5e-1\n",
        },
    ),
    clips(
        "ERNIE's former keys",
        "python train.py former.json",
        "`former.json`",
        files={
            "former.json": '{"adaptive_norm_clip": true, '
            '"adaptive_norm_start_clip_steps": 2}'
        },
    ),
    clips(
        "`TrainingArguments(**values)`",
        "python train.py job.json",
        files={"train.py": OWN},
    ),
    clips(
        "a shell script that names the file",
        "bash job.sh",
        files={"job.sh": "python train.py job.json\n"},
    ),
    clips(
        "a shell script with a variable",
        "bash job.sh",
        files={"job.sh": "NAME=job\npython train.py $NAME.json\n"},
    ),
    clips(
        "a script that trains in the background",
        "bash job.sh",
        files={"job.sh": "(sleep 2; python train.py job.json) &\n"},
        says="the command has ended, not 1 of its processes",
    ),
    clips("`bash -c`", "bash -c 'python train.py job.json'"),
    clips(
        "`--settings FILE`",
        "python train.py plain.json",
        "`clip.yaml`",
        t_start=3,
        options="--settings clip.yaml",
        files={"plain.json": NO_SECTION, "clip.yaml": "clip: {t_start: 3}"},
    ),
    clips(
        "the clip's options",
        "python train.py plain.json",
        "options",
        t_start=4,
        options="--t-start 4",
        files={"plain.json": NO_SECTION},
    ),
    clips(
        "`python -c`",
        """python -c "import runpy; runpy.run_path('train.py')" job.json""",
    ),
    clips("`python -m`", "python -m train job.json"),
    clips("standard input", "bash -c 'python - job.json < train.py'"),
    clips(
        "`exec`",
        "python start.py",
        files={
            "start.py": "import os, sys\n"
            'os.execv(sys.executable, [sys.executable, "train.py", '
            '"job.json"])\n'
        },
    ),
    clips(
        "`multiprocessing`, spawn",
        "python start.py",
        files={"start.py": SPAWNS},
    ),
    clips(
        "Paddle's launcher, two ranks",
        "python -m paddle.distributed.launch --nproc_per_node 2 train.py "
        "job.json",
        processes=2,
    ),
    clips(
        "names that are not ASCII",
        "python 训练.py 配置/job.json",
        "`配置/job.json`",
        files={"训练.py": SCRIPT, "配置/job.json": JOB},
    ),
    clips(
        "a `sitecustomize` of yours that raises",
        "python train.py job.json",
        files={"sitecustomize.py": "raise ValueError('mine')\n"},
        says="ValueError: mine",
    ),
    clips(
        "a Trainer with `__new__`",
        "python train.py job.json",
        files={
            "train.py": subclass(
                "    def __new__(cls, *args, **kwargs):\n"
                "        return object.__new__(cls)\n"
            )
        },
    ),
    clips(
        "a model's config with its own key `clip`",
        "python train.py job.json",
        files={
            "train.py": SCRIPT + "open('model.json').read()\n",
            "model.json": '{"clip": {"vision": {}, "text": {}}}',
        },
    ),
    Form(
        "two configs of one name",
        "python train.py a/conf.json b/conf.json",
        "clips; each file stays where it is",
        (r"is in force: 2 tensors, arguments from a/conf\.json",),
        (f"{CLIPS} t_start=2",),
        {
            "train.py": "import sys; sys.argv.pop()\n" + SCRIPT,
            "a/conf.json": JOB,
            "b/conf.json": '{"other": 1}',
        },
    ),
    Form(
        "JSON lines, and paths beside a config",
        "python train.py a/conf.json a/rows.json",
        "clips; each file stays where it is",
        (r"is in force: 2 tensors, arguments from a/conf\.json",),
        (f"{CLIPS} t_start=2",),
        {
            "train.py": "import pathlib, sys\n"
            "rows = pathlib.Path(sys.argv.pop())\n"
            "assert len(rows.read_text().splitlines()) == 2\n"
            "beside = pathlib.Path(sys.argv[-1]).with_name('names.txt')\n"
            "assert beside.read_text() == 'x'\n" + SCRIPT,
            "a/conf.json": JOB,
            "a/names.txt": "x",
            "a/rows.json": '{"clip": {"t": 1}}\n{"clip": {"t": 2}}\n',
        },
    ),
    Form(
        "`--clip global_norm`",
        "python train.py plain.json",
        "the Trainer's own clip, with `--lambda-abs`",
        (r"ClipGradByGlobalNorm.* is in force",),
        ("ClipGradByGlobalNorm",),
        {"plain.json": NO_SECTION},
        "--clip global_norm --lambda-abs 0.3",
    ),
    Form(
        "`--clip global_norm` alone",
        "python train.py plain.json",
        "the Trainer's own clip, with its `max_grad_norm`",
        (r"ClipGradByGlobalNorm.*0\.25.* is in force",),
        ("ClipGradByGlobalNorm",),
        {"plain.json": '{"max_steps": 6, "max_grad_norm": 0.25}'},
        "--clip global_norm",
    ),
    Form(
        "a Trainer that has the mixin, with options",
        "python train.py plain.json",
        "an error where it is made: `--t-start, --record would not be used`",
        (
            r"RuntimeError: adagc-run: Mine has its clip from the script, so "
            r"--t-start, --record would not be used: leave it out",
        ),
        (),
        {"train.py": HAS_MIXIN, "plain.json": NO_SECTION},
        "--t-start 4 --record mine",
        status=1,
    ),
    Form(
        "a loop that clips with AdaGC, with options",
        "python loop.py",
        "an error at its first step: `--lambda-abs would not be used`",
        (r"RuntimeError: adagc-run: AdamW has its clip from the script, so",),
        (),
        {"loop.py": HAS_CLIP},
        "--lambda-abs 0.2",
        status=1,
    ),
    Form(
        "`--watch`",
        "python train.py plain.json",
        "the Trainer's own clip; recorded",
        (r"\nadagc-run: look at it: adagc-report out/record\n",),
        ("ClipGradByGlobalNorm",),
        {"plain.json": NO_SECTION},
        "--watch",
    ),
    Form(
        "`--no-record`",
        "python train.py job.json",
        "clips; records nothing",
        (r"(?s)^(?!.*(records AdamW|adagc-report)).*ClipGradByAdaGC made 6",),
        ("ClipGradByAdaGC t_start=2",),
        options="--no-record",
    ),
    Form(
        "a callback that replaces the clip",
        "python train.py job.json",
        "an error at that step: `since train.py:8 (on_step_end) replaced it`",
        (
            r"RuntimeError: adagc-run: Mine: AdamW of 2 parameters clips with "
            r".*and not with ClipGradByAdaGC.*, since train\.py:8 "
            r"\(on_step_end\) replaced it\. To train so: --no-strict-run",
            r"ClipGradByAdaGC made 1 steps",
        ),
        (),
        {
            "train.py": subclass(
                "    def _tell(self, event):\n"
                "        on_step_end(self)\n"
                "def on_step_end(trainer):\n"
                "    trainer.optimizer._grad_clip = None\n"
            ).replace("import paddle, types\n", "")
        },
        status=1,
    ),
    Form(
        "a Trainer that trains with its own loop",
        "python train.py job.json",
        "an error at its first step: `AdamW of 2 parameters clips with None`",
        (
            r"RuntimeError: adagc-run: Mine: AdamW of 2 parameters clips with "
            r"None and not with ClipGradByAdaGC",
            r"not clipped in process \d+: Mine",
        ),
        (),
        {
            "train.py": subclass(
                f"    def train(self):\n{LOOP}".replace("\n", "\n        ")
            )
        },
        status=1,
    ),
    Form(
        "a callback that replaces the clip, `--no-strict-run`",
        "python train.py job.json",
        "trains on; named at that step and at the end",
        (
            r"\nadagc-run: Mine: AdamW of 2 parameters clips with None",
            r"not clipped in process \d+: Mine",
        ),
        ("NoneType",),
        {
            "train.py": subclass(
                "    def _tell(self, event):\n"
                "        self.optimizer._grad_clip = None\n"
            )
        },
        "--no-strict-run",
    ),
    Form(
        "a Trainer with `shard_optimizer` that replaces the clip",
        "python train.py job.json",
        "an error at that step, as without `shard_optimizer`",
        (
            r"RuntimeError: adagc-run: Mine: _ShardOptimizer of 2 parameters "
            r"clips with None and .*, since train\.py:\d+ \(_tell\) replaced",
        ),
        (),
        {
            "train.py": subclass(
                "    def create_optimizer(self, lr_scheduler=None):\n"
                "        from paddle.distributed import shard_optimizer\n"
                "        inner = super().create_optimizer(lr_scheduler)\n"
                "        self.optimizer = shard_optimizer(inner)\n"
                "        return self.optimizer\n"
                "    def _tell(self, event):\n"
                "        self.optimizer._grad_clip = None\n"
            )
        },
        status=1,
    ),
    Form(
        "a loop without a Trainer",
        "python loop.py",
        "trains as it is, recorded; named at its first step, exit status 2",
        (
            r"\nadagc-run: AdamW of 2 parameters steps with None: no Trainer "
            r"made it, .*:\n    clip = .*\n    AdamW\(.*, grad_clip=clip\)\n",
            r"look at it: adagc-report adagc-record\n",
            r"not clipped in process \d+: AdamW of 2 parameters",
        ),
        (),
        {"loop.py": LOOP},
        status=2,
    ),
    Form(
        "a Trainer that only predicts",
        "python train.py job.json",
        "runs; `made a Trainer, and no step with the clip`, exit status 2",
        (r"process \d+ made a Trainer, and no step with the clip",),
        (),
        {"train.py": PREDICTS},
        status=2,
    ),
    Form(
        "a command without Paddle",
        "python -c pass",
        "runs; `no process made a Trainer`, exit status 2",
        (r"no process made a Trainer of paddlenlp, .*nothing was clipped",),
        status=2,
    ),
    Form(
        "a command that fails",
        "python train.py job.json",
        "its exit status; the same lines at the end",
        (r"is in force", r"ClipGradByAdaGC made 6 steps in 1 process"),
        (f"{CLIPS} t_start=2",),
        {"train.py": FAILS},
        status=7,
    ),
    Form(
        "settings that the command does not read",
        "python train.py plain.json other.json",
        "clips with them if no other file has some; else `were not used`, "
        "exit status 2",
        (r"the clip's settings of other\.json were not used",),
        (f"{CLIPS} t_start=2",),
        {
            "train.py": "import sys; sys.argv.pop()\n"
            + SCRIPT.replace("path)", "path)", 1),
            "plain.json": JOB,
            "other.json": '{"clip": {"t_start": 9}}',
        },
        status=2,
    ),
    Form(
        "a program that starts `python -I`",
        "python start.py",
        "ended within seconds: `runs Paddle without adagc-run ... -I`",
        (
            r"process \d+ runs Paddle without adagc-run: .*: it runs with -I\n"
            r"adagc-run: ends the command\. To train so: --no-strict-run",
        ),
        (),
        {
            "start.py": STARTS.format(flags='"-I", ', more=""),
            "train.py": "import sys; sys.path[:0] = {path}\n" + SCRIPT,
            "job.json": SLOWLY,
        },
        status=2,
    ),
    Form(
        "a program that empties the environment",
        "python start.py",
        "ended within seconds: `its environment was emptied`",
        (r"runs Paddle without adagc-run: .*: its environment was emptied",),
        (),
        {
            "start.py": STARTS.format(flags="", more="env={}"),
            "train.py": "import sys; sys.path[:0] = {path}\n" + SCRIPT,
            "job.json": SLOWLY,
        },
        status=2,
    ),
    Form(
        "a script that sets `PYTHONPATH` and does not show it",
        "bash job.sh",
        "ended within seconds: `PYTHONPATH is ...`",
        (r"runs Paddle without adagc-run: .*: PYTHONPATH is '",),
        (),
        {
            "job.sh": "P=PYTHONPATH\nexport $P=/nowhere\n"
            "python train.py job.json\n",
            "train.py": "import sys; sys.path[:0] = {path}\n" + SCRIPT,
            "job.json": SLOWLY,
        },
        status=2,
    ),
    refused(
        "`python -I`",
        "python -I train.py job.json",
        "python -I keeps adagc-run out: leave -I out",
    ),
    refused(
        "`python -S`",
        "python -S -m train job.json",
        "python -S keeps adagc-run out: leave -S out",
    ),
    refused(
        "`python -E`, in `bash -c`",
        "bash -c 'python -uE train.py job.json'",
        "python -uE keeps adagc-run out: leave -uE out",
    ),
    refused(
        "`env -i`",
        "env -i python train.py job.json",
        "env -i keeps adagc-run out: leave -i out",
    ),
    refused(
        "another `PYTHONPATH`",
        "env PYTHONPATH=/mine python train.py job.json",
        "PYTHONPATH=/mine drops adagc-run's entry: write "
        "PYTHONPATH=/mine:$PYTHONPATH",
    ),
    refused(
        "a script that shows it",
        "bash job.sh",
        "PYTHONPATH=./mine drops adagc-run's entry",
        files={"job.sh": "export PYTHONPATH=./mine\npython train.py\n"},
    ),
    refused(
        "a file whose section cannot be read",
        "python train.py torn.yaml",
        "torn.yaml has a section 'clip' and cannot be read",
        files={"torn.yaml": "clip:\n  t_start: [2\n"},
    ),
    refused(
        "two files with settings, one of them `--settings`",
        "python train.py job.json",
        "differ in the clip's settings: keep one",
        options="--settings clip.yaml",
        files={"clip.yaml": "clip: {t_start: 3}"},
    ),
    refused(
        "a file that cannot be run",
        "./train.py job.json",
        "Permission denied: './train.py'",
    ),
    refused(
        "no such command",
        "trian job.json",
        "No such file or directory: 'trian'",
    ),
]


def table():
    """The table of ``docs/use.md``."""
    rows = ["| what follows `adagc-run` | as | what happens |", "|---|---|---|"]
    for form in FORMS:
        words = f"{form.options} {form.command}".strip()
        rows.append(f"| {form.name} | `{words}` | {form.outcome} |")
    return "\n".join(rows) + "\n"


def write_files(form, folder, path):
    """Write a form's files; ``path`` is what ``sys.path`` needs."""
    files = {"train.py": SCRIPT, "job.json": JOB, **form.files}
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.replace("{path}", json.dumps(path)))


if __name__ == "__main__":
    print(table(), end="")
