# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands that ``adagc-run`` refuses, or of which AdaGC misses a process."""

from run.scripts import (
    LOOP,
    PLAIN_LOOP,
    REPLACES,
    SCRIPT,
    STARTS,
    STEPS,
    WITH_PATH,
    Form,
    refused,
    settings,
    subclass,
    without,
)

PRINTS_CLIP = r"AdamW without AdaGC: Mine has given it None"
TWO_LINES = r"two lines to add:\n    clip = .*\n    AdamW\(..., grad_clip=clip"
FORMS = [
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
        (
            r"records AdamW of Linear into rec\n",
            r"look at it: adagc-report rec\n",
        ),
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
