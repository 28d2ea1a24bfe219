# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command ``adagc-run``: set the environment, and become the command.

So process id, terminal, signals, exit status and standard streams are the
command's own. What is imported here is the standard library's, as the command
has to start at once.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from paddle_adagc.run.isolation import check_command
from paddle_adagc.run.settings import (
    CLIP,
    RECORD,
    Values,
    as_number,
    check,
    read_file,
    shown,
)

VARIABLE = "PADDLE_ADAGC_RUN"
"""Environment variable of the command: a :class:`Plan`, as JSON."""

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
_LIBRARIES = ("paddlenlp", "paddleformers", "paddlefleet")
_HELP = """\
usage: adagc-run [options] [--CLIP-ARGUMENT VALUE ...] [--] COMMAND ...
       adagc-run --watch [--record DIR] [--skip-above K] [--] COMMAND ...

  adagc-run paddleformers-cli train my.yaml
  adagc-run --t-start 200 -- \\
      python -m paddle.distributed.launch --gpus 0,1 run_pretrain.py my.json

Run a training command so that its Trainer (PaddleNLP, PaddleFormers,
PaddleFleet) clips with AdaGC. The first training process of each node says
"AdaGC in force" and the settings. Unless you give lambda_abs, it is the
Trainer's max_grad_norm.

  --settings FILE          YAML or JSON with a section "clip"; options win
  --require                end a process at its first step without AdaGC
  --check                  print the settings and where they come from, and exit
  --missing-state start    switch a job: if its checkpoint has no clip's state,
                           start with the warm-up (default: refuse it)
  --new-tensors start      if the model has tensors that the checkpoint lacks
                           (LoRA, another head), start these anew (default:
                           refuse it)

  --watch                  record any Paddle training under its own clip, and
                           what AdaGC would have done
  --record DIR             folder of the record (default: OUTPUT_DIR/record with
                           a Trainer, adagc-record without one). A new run gets
                           DIR-2 if DIR holds a record; a resumed one goes on in
                           the newest: give each job its own DIR
  --no-record              do not record
  --skip-above K           leave out a step whose global norm or loss is K
                           deviations above the median of the last 128
  --stop-on nan            end a Trainer's run when a loss is not finite; save a
                           checkpoint if the weights are finite
  --on-alarm 'COMMAND'     run this in a shell at each alarm, which it reads as
                           a line from standard input: 'curl -d @- https://...'

Every argument of ClipGradByAdaGC is an option: --t-start 200, --lambda-rel
1.04, --nonfinite propagate, --init warmup_ema. With several nodes, use it on
each."""

_FLAGS: dict[str, tuple[str, Any]] = {
    "--check": ("check", True),
    "--help": ("help", True),
    "-h": ("help", True),
    "--watch": ("watch", True),
    "--require": ("require", True),
    "--no-record": ("record", False),
}
_WORDS = {"true": True, "false": False, "none": None, "inf": math.inf}


class Plan(NamedTuple):
    """What a process of the command has to know."""

    values: Values
    """Settings of the options and the file."""

    record: bool | str
    """Folder; True: the default one; False: none."""

    watch: bool
    require: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Become the command.

    Returns:
        0 after --check and --help; 2: a mistake here.
    """
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    try:
        options, command = _divided(words)
        if options.pop("help", False):
            print(_HELP)
            return 0
        if not command:
            raise ValueError(
                "give the command to run:\n    adagc-run python train.py"
            )
        is_check = options.pop("check", False)
        plan = _plan(options)
        check_command(command)
        if is_check:
            for line in _checked(plan, command):
                print(f"adagc-run: {line}")
            return 0
        _become(command, plan)
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"adagc-run: {error}", file=sys.stderr)
        return 2


def _divided(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Read ``--t-start 200`` as ``{"t_start": 200}``, up to the command."""
    options: dict[str, Any] = {}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, has_value, value = word.partition("=")
        if name in _FLAGS:
            if has_value:
                raise ValueError(f"{name} takes no value, got {value!r}")
            key, options[key] = _FLAGS[name][0], _FLAGS[name][1]
            continue
        if not word.startswith("--"):
            raise ValueError(
                f"{word!r} is no option: put -- before the command"
            )
        if not has_value:
            if not words or words[0].startswith("--"):
                raise ValueError(f"{word} lacks its value")
            value = words.pop(0)
        key = name[2:].replace("-", "_")
        is_text = key in ("record", "settings", "on_alarm")
        options[key] = value if is_text else _value(value)
    return options, words


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return as_number(text)


def _plan(options: dict[str, Any]) -> Plan:
    """Collect the settings.

    Raises:
        ImportError: The file is YAML, and PyYAML is missing.
        OSError: There is no such file.
        ValueError: Settings are wrong, or do not go together.
    """
    watch, require = options.pop("watch", False), options.pop("require", False)
    record, file = options.pop("record", True), options.pop("settings", None)
    if record == "":
        raise ValueError("--record is empty: name a folder")
    if isinstance(record, str):
        record = os.path.abspath(record)
    plan = Plan({}, record, watch, require)
    found = {} if file is None else read_file(str(file))
    given = [(name, value, str(file)) for name, value in found.items()]
    for name, value in options.items():
        given.append((name, value, "--" + name.replace("_", "-")))
    for name, value, where in given:
        check(name, value, where)
        plan.values[name] = value, where
        if watch and name not in RECORD:
            raise ValueError(f"{where}: --watch keeps the clip, see --help")
        if record is False and name in RECORD:
            raise ValueError(f"{where} needs the record: leave --no-record out")
    if watch and (require or record is False):
        option = "--require" if require else "--no-record"
        raise ValueError(f"--watch only records: leave {option} out")
    return plan


def _checked(plan: Plan, command: Sequence[str]) -> list[str]:
    """Return what --check says.

    Raises:
        ValueError: The clip refuses a setting.
    """
    import importlib.util

    lines = []
    if plan.watch:
        lines.append("would record the run and leave its clip as it is")
    else:
        if importlib.util.find_spec("paddle") is not None:
            from paddle_adagc import ClipGradByAdaGC

            of_clip = plan.values.keys() & CLIP.keys()
            clip = ClipGradByAdaGC(**{k: plan.values[k][0] for k in of_clip})
            lines.append(f"would clip with {clip}")
        lines += [f"settings: {shown(plan.values)}"] * bool(plan.values)
        if "lambda_abs" not in plan.values:
            lines.append(
                "lambda_abs would be the Trainer's max_grad_norm, or 1.0 if "
                "that is not above 0"
            )
        lines.append(
            "if the Trainer's arguments have adaptive_norm_clip: true, ERNIE's "
            "values (adaptive_norm_...) would count for what is not given here"
        )
    lines.append(f"would run {shlex.join(command)}")
    for name in ("paddle", *_LIBRARIES):
        is_here = importlib.util.find_spec(name) is not None
        lines.append(f"{name} {'is' if is_here else 'is not'} installed here")
    return lines


def _become(command: Sequence[str], plan: Plan) -> NoReturn:
    if VARIABLE in os.environ:
        raise ValueError("this runs within another adagc-run: leave one out")
    if not plan.watch:
        print(
            "adagc-run: the first training process of each node will say "
            "'AdaGC in force'. Without that line a node trains without AdaGC.",
            file=sys.stderr,
            flush=True,
        )
    path = os.environ.get("PYTHONPATH")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (SITE, path))),
        VARIABLE: json.dumps(plan._asdict()),
    }
    # Python ignores these, and exec would keep that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], [*command], environment)
    except OSError as error:
        raise OSError(f"{error.strerror}: {command[0]!r}") from None
