# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command ``adagc-run``: plan, run, report.

Every Python process of the command gets a ``sitecustomize``
(:mod:`paddle_adagc.integrations.run.bootstrap`) that waits for the Trainer of
PaddleNLP, PaddleFormers or PaddleFleet to be imported, and puts
:class:`~paddle_adagc.integrations.paddlenlp.ClippingMixin` before the class of
every Trainer that is made. Every optimizer that steps is recorded. No file of
the command is changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from paddle_adagc.integrations.run.bootstrap import LIBRARIES, SITE
from paddle_adagc.integrations.run.isolation import check_words
from paddle_adagc.integrations.run.process import VARIABLE
from paddle_adagc.integrations.run.reports import Listener
from paddle_adagc.integrations.run.settings import (
    DEFAULT,
    OF_RECORDS,
    Settings,
    all_words,
    combined,
    named_files,
    read_settings,
)
from paddle_adagc.integrations.run.summary import summarize
from paddle_adagc.integrations.run.supervise import supervise

_HELP = f"""\
usage: adagc-run [options] [--CLIP-ARGUMENT VALUE ...] [--] COMMAND ...
       adagc-run --watch [--record DIR] [--skip-above K] [--] COMMAND ...

  adagc-run paddleformers-cli train my.yaml
  adagc-run --t-start 200 --lambda-abs 0.5 -- \\
      python -m paddle.distributed.launch --gpus 0,1 run_pretrain.py my.json
  adagc-run --watch python train.py

Run a training command with AdaGC in its Trainer (PaddleNLP, PaddleFormers,
PaddleFleet), and record it. With --watch: run any Paddle training as it is, and
record it. The last line says how to look at the record: adagc-report DIR.

  --watch                  keep the command's own clip, in any Paddle training:
                           record it, and what AdaGC would have done beside it
  --record DIR             folder of the record (default: OUTPUT_DIR/record with
                           a Trainer, else {DEFAULT}); a resumed command
                           goes on in it
  --no-record              do not record

  --skip-above K           leave out a step whose global norm or loss is K
                           deviations above the median of the last 128
  --stop-on nan            save and end a Trainer's run once a loss is not
                           finite

  --clip NAME              global_norm: the Trainer's own clip
                           (default: adagc)
  --missing-state raise    refuse a checkpoint without a clip's state (default)
  --missing-state start    start there with the warm-up: switch a running job
  --new-tensors start      resume a model that has new tensors (LoRA, another
                           head): these start anew
  --settings FILE          a YAML or JSON file with a section "clip"
  --no-strict-run          warn, and train on, where the clip is not in force
  --check                  say what it would do, and stop

Every argument of the clip is an option: --t-start 200, --lambda-rel 1.04,
--nonfinite propagate; --init warmup_ema, not the paper's, starts gamma at the
usual norms. Values also come from a section "clip" of a YAML or JSON file that
the command reads; options win. On several nodes run it on each."""

_AT_CHECKPOINTS = {
    "raise": "a checkpoint without a clip's state is refused; to start there "
    "with the warm-up, add --missing-state start",
    "start": "a checkpoint without a clip's state starts with the warm-up "
    "(--missing-state start)",
}
_TENSORS = (
    "the model is not built here: before the first step the Trainer's log says "
    "how many tensors are clipped, and which are units ('paddle_adagc: N "
    "tensors in M parameters; ...')"
)
_FLAGS = {
    "--check": ("check", True),
    "--help": ("help", True),
    "-h": ("help", True),
    "--watch": ("watch", True),
    "--no-record": ("record", False),
    "--strict-run": ("strict_run", True),
    "--no-strict-run": ("strict_run", False),
}
_TEXTS = ("clip", "record", "settings")
"""Options whose value is a name, whatever it looks like."""

_CHOICES = ("missing_state", "new_tensors")
_WORDS = {"true": True, "false": False, "none": None}


@dataclasses.dataclass
class Plan:
    """What a command line asks for."""

    command: list[str]
    options: dict[str, Any]
    files: dict[str, Settings]
    """Settings by the absolute path of their file."""

    given: str | None  # the file of --settings
    is_strict: bool
    watches: bool
    record: bool | str
    """Folder; True: the default one; False: none."""

    notes: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The command's exit status; 2: it made no step with the clip (with
        ``--watch``: none that was recorded), or a mistake here.
    """
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    try:
        options, command = _divided(words)
        if "help" in options:
            print(_HELP)
            return 0
        if not command:
            raise ValueError("give the command to run, or --help")
        is_check = options.pop("check", False)
        plan = _plan(options, command)
        if is_check:
            plan.notes += _checked(plan)
        for note in plan.notes:
            stream = sys.stdout if is_check else sys.stderr
            print(f"adagc-run: {note}", file=stream, flush=True)
        return 0 if is_check else _run(plan)
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
            key, options[key] = (_FLAGS[name][0], _FLAGS[name][1])
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
        options[key] = value if key in _TEXTS else _value(value)
    return options, words


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    with contextlib.suppress(json.JSONDecodeError):
        return json.loads(text)
    return text


def _plan(options: dict[str, Any], command: list[str]) -> Plan:
    """Find the settings, and refuse what cannot work.

    Raises:
        ImportError: A file is YAML, and PyYAML is missing.
        TypeError, ValueError: The settings are wrong, stand twice, or the
            command keeps ``adagc-run`` out.
    """
    watches = options.pop("watch", False)
    is_strict = options.pop("strict_run", True) and not watches
    record = options.pop("record", True)
    if not isinstance(record, bool):
        record = os.path.abspath(str(record))
    plan = Plan(command, options, {}, None, is_strict, watches, record, [])
    if watches:
        from paddle_adagc.integrations.recording import TrainerRecord

        of_record = {k: options[k] for k in OF_RECORDS if k in options}
        for name in options.keys() - of_record:
            word = "--" + name.replace("_", "-")
            raise ValueError(f"{word} is no option of --watch, see --help")
        if record is False:
            raise ValueError("--watch records: leave --no-record out")
        TrainerRecord(record, **of_record)  # refuses wrong ones
        check_words(*all_words(command))
        plan.notes.append("will leave the clip as it is, and record the run")
        return plan
    _find_settings(plan)
    return plan


def _find_settings(plan: Plan) -> None:
    """Read the clip's settings where the command's words name files."""
    command, options, notes = plan.command, plan.options, plan.notes
    files = plan.files
    words, script_words = all_words(command)
    given: str | None = options.pop("settings", None)
    if given is not None:
        plan.given = given = os.path.abspath(str(given))
        found = read_settings(given, notes)
        if not found:
            raise ValueError(f"--settings {given}: it has no section 'clip'")
        files[given] = found
    for path in named_files([*words, *script_words]):
        found = read_settings(path, notes)
        if not found:
            continue
        if given and found != files[given]:
            raise ValueError(
                f"--settings {given} and {path} differ in the clip's settings: "
                "keep one"
            )
        files[os.path.abspath(path)] = found
    check_words(words, script_words)
    distinct: list[Settings] = []
    for found in files.values():
        distinct += [found] * (found not in distinct)
    from paddle_adagc.integrations.attach import check_choices
    from paddle_adagc.integrations.recording import TrainerRecord
    from paddle_adagc.integrations.run.settings import make_clip

    for found in distinct or [{}]:
        settings = combined(found, options)
        clip = make_clip(**settings["clip"])
        choices = (settings.get(k, "raise") for k in _CHOICES)
        check_choices(clip, *choices)
        of_record = {k: settings[k] for k in OF_RECORDS if k in settings}
        TrainerRecord(plan.record, **of_record)  # refuses wrong ones
        notes.append(f"will clip with {clip}")
        if refused := found.get("clip", {}).keys() - settings["clip"].keys():
            notes.append(f"it does not take {', '.join(sorted(refused))}")
    if len(distinct) > 1:
        notes.append("each process takes those of the file that it reads")


def _checked(plan: Plan) -> list[str]:
    """Return what ``--check`` says more than a run."""
    if plan.watches:
        return [f"would run {shlex.join(plan.command)}"]
    of_files = [*plan.files.values()] or [{}]
    settings = [combined(found, plan.options) for found in of_files]
    choices = {found.get("missing_state", "raise") for found in settings}
    installed = [
        f"{library} {'is' if importlib.util.find_spec(library) else 'is not'} "
        "installed here"
        for library in LIBRARIES
    ]
    return [
        "a loop without a Trainer keeps its clip, and is recorded",
        *(_AT_CHECKPOINTS[choice] for choice in sorted(choices)),
        _TENSORS,
        f"would run {shlex.join(plan.command)}",
        *installed,
    ]


def _run(plan: Plan) -> int:
    if VARIABLE in os.environ:
        raise ValueError("this runs within another adagc-run: leave one out")
    listener = Listener()
    path = os.environ.get("PYTHONPATH")
    values = {
        "options": plan.options,
        "files": plan.files,
        "given": plan.given,
        "strict": plan.is_strict,
        "watches": plan.watches,
        "record": plan.record,
        "address": listener.address,
    }
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (SITE, path))),
        VARIABLE: json.dumps(values),
    }
    outsiders: dict[int, str] = {}
    try:
        status = supervise(
            plan.command, environment, listener, outsiders, plan.is_strict
        )
    finally:
        listener.stop()
    lines, is_done = summarize(
        listener.records, outsiders, [*plan.files], plan.watches
    )
    for line in lines:
        print(f"adagc-run: {line}", file=sys.stderr, flush=True)
    is_ended = plan.is_strict and bool(outsiders)  # by us
    is_wrong = (plan.is_strict or plan.watches) and not is_done
    return 2 if is_ended or (status == 0 and is_wrong) else status
