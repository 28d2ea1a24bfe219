# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``adagc-run``: any training command, unchanged, with a clip of this package.

Every Python process of the command gets a ``sitecustomize`` that waits for the
Trainer of PaddleNLP, PaddleFormers or PaddleFleet to be imported, and puts
:class:`~paddle_adagc.integrations.paddlenlp.ClippingMixin` before the class of
every Trainer that is made. Nothing on disk is changed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.abc
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

TRAINERS = (
    "paddlenlp.trainer.trainer",
    "paddleformers.trainer.trainer",
    "paddlefleet.trainer.trainer",
)
"""Modules whose class ``Trainer`` gets the clip."""

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
_USAGE = """\
adagc-run [options] [--CLIP-ARGUMENT VALUE ...] [--] COMMAND ...

  adagc-run paddleformers-cli train my.yaml
  adagc-run --t-start 200 --lambda-abs 0.5 -- \\
      python -m paddle.distributed.launch --gpus 0,1 run_pretrain.py my.json"""
_EPILOG = """\
Every argument of the clip is an option: --t-start 200, --lambda-rel 1.04,
--nonfinite propagate. Values also come from a section "clip" of the YAML or
JSON file that the command reads, which is taken out before the command sees
it; options win. On several nodes run it on each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The command's exit status; 1: it made no Trainer; 2: a mistake here.
    """
    parser = argparse.ArgumentParser(
        prog="adagc-run",
        usage=_USAGE,
        description="Run a training command with AdaGC in its Trainer.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--clip",
        metavar="NAME",
        help="another clip of the registry (default: adagc)",
    )
    parser.add_argument(
        "--missing-state",
        choices=("raise", "start"),
        help="a checkpoint without a clip's state: refuse it (default), or "
        "start with the warm-up, to switch a running job",
    )
    parser.add_argument(
        "--check", action="store_true", help="say what it would do, and stop"
    )
    mine, command = _divided(
        [*(sys.argv[1:] if arguments is None else arguments)]
    )
    options, rest = parser.parse_known_args(mine)
    if not command:
        parser.error("give the command to run")
    try:
        with tempfile.TemporaryDirectory(prefix="adagc-run-") as folder:
            return _run(options, rest, command, Path(folder))
    except (FileNotFoundError, ImportError, TypeError, ValueError) as error:
        print(f"adagc-run: {error}", file=sys.stderr)
        return 2


def _run(
    options: argparse.Namespace,
    rest: Sequence[str],
    command: list[str],
    folder: Path,
) -> int:
    notes: list[str] = []
    settings: dict[str, Any] = {"clip": {"name": "adagc"}}
    for i, word in enumerate(command):
        found, path = _taken_out(word, folder, notes)
        if found:
            command[i] = str(path)
            settings.update(found)
    clip = settings["clip"]
    if options.clip is not None and options.clip != clip.get("name"):
        clip = {"name": options.clip}
    settings["clip"] = clip = {**clip, **_values(rest)}
    if options.missing_state is not None:
        settings["missing_state"] = options.missing_state
    from paddle_adagc import make_clip

    made = str(make_clip(**clip)).removesuffix(", 0 steps")
    notes.append(f"clips with {made}")
    libraries = [name.partition(".")[0] for name in TRAINERS]
    if options.check:
        notes.append(f"would run {shlex.join(command)}")
        for library in libraries:
            state = "is" if importlib.util.find_spec(library) else "is not"
            notes.append(f"{library} {state} installed here")
    for note in notes:
        stream = sys.stdout if options.check else sys.stderr
        print(f"adagc-run: {note}", file=stream, flush=True)
    if options.check:
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
            f"{', '.join(libraries)}: nothing was clipped. Give the clip to "
            "the optimizer instead: grad_clip=ClipGradByAdaGC()"
        )
    return status


def _call(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command that gets this process' signals, too."""
    process = subprocess.Popen(command, env=environment)

    def forward(number: int, _: types.FrameType | None) -> None:
        process.send_signal(number)

    before = {
        number: signal.signal(number, forward)
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


def _divided(words: list[str]) -> tuple[list[str], list[str]]:
    """Return this command's own words, and those of the one to run."""
    i = 0
    while i < len(words) and words[i].startswith("-"):
        if words[i] == "--":
            return words[:i], words[i + 1 :]
        has_value = "=" in words[i] or words[i] in ("--check", "-h", "--help")
        i += 1 if has_value else 2
    return words[:i], words[i:]


def _values(words: Sequence[str]) -> dict[str, Any]:
    """Read ``--t-start 200`` as ``{"t_start": 200}``."""
    values: dict[str, Any] = {}
    left = [*words]
    while left:
        word = left.pop(0)
        if not word.startswith("--"):
            raise ValueError(
                f"{word!r} is no option: put -- before the command"
            )
        name, has_value, value = word[2:].partition("=")
        if not has_value:
            if not left:
                raise ValueError(f"{word} lacks its value")
            value = left.pop(0)
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(value)
        values[name.replace("-", "_")] = value
    return values


def _taken_out(
    word: str, folder: Path, notes: list[str]
) -> tuple[dict[str, Any], Path]:
    """Take the clip's settings out of a file that the command reads.

    Returns them, and the path of a copy without them.
    """
    path = Path(word)
    if path.suffix not in (".json", ".yaml", ".yml") or not path.is_file():
        return {}, path
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        values = json.loads(text)
    else:
        try:
            import yaml
        except ImportError as error:
            raise ImportError(
                f"{error}: {word} may have a section 'clip'; pip install pyyaml"
            ) from error
        values = yaml.safe_load(text)
    if not isinstance(values, dict):
        return {}, path
    before = len(values)
    found = take_settings(values, word, notes)
    if len(values) == before:
        return {}, path
    copy = folder / path.name
    if path.suffix == ".json":
        copy.write_text(json.dumps(values), "utf-8")
    else:
        dumped = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        copy.write_text(dumped, "utf-8")
    return found, copy


def take_settings(
    values: dict[str, Any], where: str, notes: list[str]
) -> dict[str, Any]:
    """Take the clip's settings out of a Trainer's, which lose these keys.

    They are the section ``clip``, with ``missing_state`` and ``units`` in it;
    ``units`` beside it; and ERNIE's former keys. Returns ``clip``,
    ``missing_state`` and ``units``, those that there are; ``notes`` gets a line
    for what was found in the file ``where``.

    Raises:
        ValueError: ``clip`` is no section, or ``units`` stand twice.
    """
    section = values.pop("clip", None)
    clip: dict[str, Any] = {}
    found: dict[str, Any] = {}
    if section is not None:
        if not isinstance(section, dict):
            raise ValueError(
                f"{where}: clip is {section!r}, not a section of the clip's "
                "arguments"
            )
        clip = {"name": "adagc", **section}
        for name in ("missing_state", "units"):
            if name in clip:
                found[name] = clip.pop(name)
        notes.append(f"took the section clip out of {where}")
        if "units" in values:
            if "units" in found:
                raise ValueError(f"{where}: units stand twice, also in clip")
            found["units"] = values.pop("units")
    old = {k: values.pop(k) for k in [*values] if str(k).startswith(_OLD)}
    if old.get("adaptive_norm_clip"):
        became = {
            _OLD_ARGUMENTS[key]: value
            for key, value in old.items()
            if key in _OLD_ARGUMENTS
        }
        clip = {"name": "adagc", **became, **clip}
        notes.append(
            f"took {', '.join(old)} out of {where}: they became {became}; "
            "beta is the paper's 0.99 (ERNIE's clip had 0.98)"
        )
    elif old:
        notes.append(f"took {', '.join(old)} out of {where}: not used")
    if clip:
        found["clip"] = clip
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


def clip_here(settings: Mapping[str, Any]) -> None:
    """Give the Trainers of this process a clip, imported already or not.

    ``settings`` are those of :func:`take_settings`; ``clip`` is needed.
    """
    os.environ[SETTINGS] = json.dumps(settings)
    sys.meta_path.insert(0, _Finder())
    for name in TRAINERS:
        if name in sys.modules:
            change_trainer(sys.modules[name].__dict__["Trainer"])


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find the Trainers' modules, and changes these."""

    def __init__(self) -> None:
        self._is_busy = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a Trainer's module, whose Trainer is changed once it ran."""
        if fullname not in TRAINERS or self._is_busy:
            return None
        self._is_busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_busy = False
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            change_trainer(module.__dict__["Trainer"])

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def change_trainer(trainer: type) -> None:
    """Put the mixin before the class of each ``trainer`` that is made."""
    with_clip = functools.cache(_with_clip)

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        from paddle_adagc.integrations.trainer import ClippingMixin

        is_clipping = issubclass(cls, ClippingMixin)
        return object.__new__(cls if is_clipping else with_clip(cls))

    trainer.__new__ = new  # type: ignore[assignment]


def _with_clip(cls: type) -> type:
    """Return a class of the same name whose Trainers clip."""
    from paddle.nn import ClipGradByGlobalNorm

    from paddle_adagc import make_clip
    from paddle_adagc.integrations.trainer import ClippingMixin

    settings = json.loads(os.environ[SETTINGS])
    is_trainers_own = settings["clip"]["name"] == "global_norm"

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        clip = make_clip(**settings["clip"])
        if isinstance(clip, ClipGradByGlobalNorm):
            cls.__init__(self, *args, **kwargs)  # type: ignore[misc]
            self.args.max_grad_norm = clip.clip_norm
        else:
            ClippingMixin.__init__(
                self,
                *args,
                clip=clip,
                missing_state=settings.get("missing_state", "raise"),
                units=settings.get("units"),
                **kwargs,
            )
        if "report" in settings:
            with Path(settings["report"]).open("a") as report:
                report.write(f"{cls.__qualname__} clips with {clip!r}\n")

    body: dict[str, Any] = {
        "__init__": init,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
    }
    bases = (cls,) if is_trainers_own else (ClippingMixin, cls)
    return type(cls.__name__, bases, body)


if __name__ == "__main__":
    sys.exit(main())
