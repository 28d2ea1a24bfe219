# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``adagc-run``: any training command, unchanged, with a clip of this package.

Every Python process of the command gets a ``sitecustomize`` that waits for the
Trainer of PaddleNLP, PaddleFormers or PaddleFleet to be imported, and puts
:class:`~paddle_adagc.integrations.paddlenlp.ClippingMixin` before the class of
every Trainer that is made. Nothing on disk is changed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LIBRARIES = ("paddlenlp", "paddleformers", "paddlefleet")
"""Packages whose class ``trainer.trainer.Trainer`` gets the clip."""

SETTINGS = "PADDLE_ADAGC_RUN"
"""Environment variable: the clip and how to resume it, as JSON."""

_SITE = """\
from paddle_adagc.integrations.run import install
install(__file__)
"""
_OLD = "adaptive_norm_"
_OLD_ARGUMENTS = {
    "adaptive_norm_clip_ratio": "lambda_rel",
    "adaptive_norm_start_clip_steps": "t_start",
}
_HELP = """\
usage: adagc-run [options] [--CLIP-ARGUMENT VALUE ...] [--] COMMAND ...

  adagc-run paddleformers-cli train my.yaml
  adagc-run --t-start 200 --lambda-abs 0.5 -- \\
      python -m paddle.distributed.launch --gpus 0,1 run_pretrain.py my.json

Run a training command with AdaGC in its Trainer. Options:

  --clip NAME              another clip of the registry (default: adagc)
  --missing-state raise    refuse a checkpoint without a clip's state (default)
  --missing-state start    start there with the warm-up: switch a running job
  --new-tensors start      take a state of other tensors than the model's
  --check                  say what it would do, and stop

Every argument of the clip is an option: --t-start 200, --lambda-rel 1.04,
--nonfinite propagate. Values also come from a section "clip" of the YAML or
JSON file that the command reads, which is taken out before the command sees
it; options win. On several nodes run it on each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The command's exit status; 2: it made no Trainer, or a mistake here.
    """
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    try:
        options, command = _divided(words)
        if "help" in options:
            print(_HELP)
            return 0
        if not command:
            raise ValueError("give the command to run, or --help")
        with tempfile.TemporaryDirectory(prefix="adagc-run-") as folder:
            return _run(options, command, Path(folder))
    except (FileNotFoundError, ImportError, TypeError, ValueError) as error:
        print(f"adagc-run: {error}", file=sys.stderr)
        return 2


def _divided(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Read ``--t-start 200`` as ``{"t_start": 200}``, up to the command."""
    options: dict[str, Any] = {}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, has_value, value = word[2:].partition("=")
        if word in ("-h", "--help", "--check"):
            name, value = name or "help", "true"
        elif not word.startswith("--"):
            raise ValueError(
                f"{word!r} is no option: put -- before the command"
            )
        elif not has_value:
            if not words:
                raise ValueError(f"{word} lacks its value")
            value = words.pop(0)
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(value)
        options[name.replace("-", "_")] = value
    return options, words


def _run(options: dict[str, Any], command: list[str], folder: Path) -> int:
    notes: list[str] = []
    is_check = options.pop("check", False)
    settings: dict[str, Any] = {"clip": {"name": "adagc"}}
    for i, word in enumerate(command):
        found, command[i] = _taken_out(word, folder, notes)
        settings |= found
    for choice in ("missing_state", "new_tensors"):
        if choice in options:
            settings[choice] = options.pop(choice)
    name = options.pop("clip", settings["clip"]["name"])
    if name != settings["clip"]["name"]:
        settings["clip"] = {"name": name}
    settings["clip"] |= options
    from paddle_adagc import make_clip
    from paddle_adagc.integrations.trainer import check_arguments

    clip = make_clip(**settings["clip"])
    check_arguments(clip, settings.get("missing_state", "raise"))
    notes.append(f"clips with {str(clip).removesuffix(', 0 steps')}")
    if is_check:
        notes.append(f"would run {shlex.join(command)}")
        for library in LIBRARIES:
            state = "is" if importlib.util.find_spec(library) else "is not"
            notes.append(f"{library} {state} installed here")
    for note in notes:
        stream = sys.stdout if is_check else sys.stderr
        print(f"adagc-run: {note}", file=stream, flush=True)
    if is_check:
        return 0
    report = folder / "trainers"
    (folder / "sitecustomize.py").write_text(_SITE)
    folders = (str(folder), os.environ.get("PYTHONPATH"))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        SETTINGS: json.dumps({**settings, "report": str(report)}),
    }
    status = _call(command, environment)
    if status == 0 and not report.exists():
        raise ValueError(
            "the command ended, but none of its processes made a Trainer of "
            f"{', '.join(LIBRARIES)}: nothing was clipped. Give the clip to "
            "the optimizer instead: grad_clip=ClipGradByAdaGC()"
        )
    return status


def _call(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command that gets this process' signals, too."""
    process = subprocess.Popen(command, env=environment)
    before = {
        number: signal.signal(number, lambda n, _: process.send_signal(n))
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    }
    try:
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # the command's, too
                status = process.wait()
                return status if status >= 0 else 128 - status
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _taken_out(
    word: str, folder: Path, notes: list[str]
) -> tuple[dict[str, Any], str]:
    """Take the clip's settings out of a file that the command reads.

    Returns them, and the path of a copy without them.
    """
    path = Path(word)
    if path.suffix not in (".json", ".yaml", ".yml") or not path.is_file():
        return {}, word
    read: Any = json.loads
    dump: Any = json.dumps
    if path.suffix != ".json":
        try:
            import yaml
        except ImportError as error:
            raise ImportError(
                f"{error}: {word} may have a section 'clip'; pip install pyyaml"
            ) from error
        read = yaml.safe_load
        dump = functools.partial(yaml.safe_dump, sort_keys=False)
    values = read(path.read_text("utf-8"))
    before = len(notes)
    found = {}
    if isinstance(values, dict):
        found = take_settings(values, word, notes)
    if len(notes) == before:
        return {}, word
    copy = folder / path.name
    copy.write_text(dump(values), "utf-8")
    return found, str(copy)


def take_settings(
    values: dict[str, Any], where: str, notes: list[str]
) -> dict[str, Any]:
    """Take the clip's settings out of a Trainer's, which lose these keys.

    They are the section ``clip``, with ``missing_state``, ``new_tensors`` and
    ``units`` in it;
    ``units`` beside it; and ERNIE's former keys. Returns ``clip``,
    ``missing_state`` and ``units``, those that there are; ``notes`` gets a line
    for what was found in the file ``where``.

    Raises:
        ValueError: ``clip`` is no section, or ``units`` stand twice.
    """
    found: dict[str, Any] = {}
    if "clip" in values:
        section = values.pop("clip")
        if not isinstance(section, dict):
            raise ValueError(
                f"{where}: clip is {section!r}, not a section of the clip's "
                "arguments"
            )
        clip = found["clip"] = {"name": "adagc", **section}
        for name in ("missing_state", "new_tensors", "units"):
            if name in clip:
                found[name] = clip.pop(name)
        if "units" in values:
            if "units" in found:
                raise ValueError(f"{where}: units stand twice, also in clip")
            found["units"] = values.pop("units")
        notes.append(f"took the section clip out of {where}")
    old = {k: values.pop(k) for k in [*values] if str(k).startswith(_OLD)}
    if old.get("adaptive_norm_clip"):
        became = {
            new: old[key] for key, new in _OLD_ARGUMENTS.items() if key in old
        }
        clip = found.get("clip", {})
        found["clip"] = {"name": "adagc", **became, **clip}
        notes.append(
            f"took {', '.join(old)} out of {where}: they became {became}; "
            "beta is the paper's 0.99 (ERNIE's clip had 0.98)"
        )
    elif old:
        notes.append(f"took {', '.join(old)} out of {where}: not used")
    return found


# ---- in the processes of the command ---------------------------------------


def install(site: str) -> None:
    """Wait for the Trainers' modules; called by ``sitecustomize``.

    ``site`` is the path of that file; the user's own one is run as well.
    """
    folder = str(Path(site).parent)
    others = [entry for entry in sys.path if entry != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds the Trainers' modules, whose Trainer is changed once they ran."""

    @staticmethod
    def find_spec(
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        library, _, module = fullname.partition(".")
        if library not in LIBRARIES or module != "trainer.trainer":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            settings = json.loads(os.environ[SETTINGS])
            change_trainer(module.__dict__["Trainer"], settings)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def change_trainer(trainer: type, settings: Mapping[str, Any]) -> None:
    """Put the mixin before the class of each ``trainer`` that is made.

    ``settings`` are those of :func:`take_settings`; ``clip`` is needed.
    """
    from paddle_adagc import make_clip
    from paddle_adagc.integrations.trainer import ClippingMixin

    rest = dict(settings)
    report, arguments = rest.pop("report", None), rest.pop("clip")
    is_trainers_own = arguments["name"] == "global_norm"

    @functools.cache
    def with_clip(cls: type) -> type:
        """Return a class of the same name whose Trainers clip."""

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            clip = make_clip(**arguments)
            if is_trainers_own:
                cls.__init__(self, *args, **kwargs)  # type: ignore[misc]
                self.args.max_grad_norm = clip.clip_norm
            else:
                ClippingMixin.__init__(self, *args, clip=clip, **rest, **kwargs)
            if report:
                Path(report).touch()

        bases = (cls,) if is_trainers_own else (ClippingMixin, cls)
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        return type(cls.__name__, bases, {"__init__": init, **names})

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        is_clipping = issubclass(cls, ClippingMixin)
        return object.__new__(cls if is_clipping else with_clip(cls))

    trainer.__new__ = new  # type: ignore[assignment]


if __name__ == "__main__":
    sys.exit(main())
