# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the commands share: options, early checks, errors.

A command answers ``--help`` and a mistake before it imports Paddle: it parses
its arguments and checks extras and files first.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.util
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]

try:
    from adagc_lab.processor import choose_mkl_kernels
    from adagc_lab.storage import StorageError, check_directory

    from paddle_adagc.checks import suggestion
except ModuleNotFoundError as missing:
    if not str(missing.name).startswith("paddle_adagc"):
        raise
    extra = "formers" if importlib.util.find_spec("paddleformers") else "nlp"
    sys.exit(
        "the laboratory is not installed ('pip install .' leaves it out): "
        f"pip install -e '{ROOT}[{extra}]'"
    )

ERRORS = (ImportError, OSError, TypeError, ValueError)
"""What a user can mend; other errors keep their traceback."""

_NOISE = (
    "No ccache found",
    "Setuptools is replacing distutils",
    "pkg_resources is deprecated",
    "Current global rank",
)
"""Beginnings of warnings of Paddle and setuptools that ask for nothing."""

for _beginning in _NOISE:  # at the import: it precedes Paddle's everywhere
    warnings.filterwarnings("ignore", message=_beginning)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with status 2; values of a config are never required."""
        message = message.replace(", key=value", "")
        has_overrides = any(a.dest == "overrides" for a in self._actions)
        if has_overrides and "unrecognized arguments: --" in message:
            message += "; values of the config have the form key=value"
        # argparse's "invalid choice: 'x' (choose from ...)"
        choice = message.partition("invalid choice: ")[2]
        given, _, known = choice.partition(" (")
        choices = re.findall(r"[\w.-]+", known.removeprefix("choose from"))
        super().error(message + suggestion(given.strip("'"), choices))


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Parser of ``tools/<name>.py``, described by its module's docstring."""
    return _Parser(
        prog=f"python tools/{name}.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_options(
    parser: argparse._ActionsContainer, shown: str, **settings: dict[str, Any]
) -> None:
    """Add arguments that are written as ``--help`` shows them.

    ``shown`` has an argument a line: name, value, two spaces, help; the help
    may go on in indented lines. An option without a value is a switch; a value
    N or STEP is an integer. Further settings are argparse's, by name.
    """
    for part in re.split(r"\n(?! )", shown.strip("\n")):
        usage, text = re.split(r"  +|\n", part, maxsplit=1)
        name, _, value = usage.partition(" ")
        given: dict[str, Any] = {"help": " ".join(text.split())}
        if value:
            is_count = value in ("N", "STEP")
            given |= {"metavar": value, "type": int if is_count else None}
        elif name.startswith("--"):
            given["action"] = "store_true"
        given |= settings.get(name.lstrip("-").replace("-", "_"), {})
        parser.add_argument(name, **given)


def exit_status(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int],
    options: argparse.Namespace,
    errors: tuple[type[Exception], ...] = ERRORS,
) -> int:
    """Run a command, without noise and with warnings of one line.

    Returns what ``run`` does; 2 after an error that the user can mend, which is
    printed; 3 if a folder cannot be written to; 141 if nobody reads on.
    """
    os.environ.setdefault("GLOG_minloglevel", "2")
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    choose_mkl_kernels()
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except StorageError as error:
        # A progress bar may have left the cursor in its line.
        print(f"\n{parser.prog}: {error}", file=sys.stderr)
        return 3
    except errors as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


_STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def exit_on_signals() -> None:
    """Exit with 128 and the signal's number, until a run handles signals."""
    for number in _STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # of nohup
            signal.signal(number, _exit)


def _exit(number: int, frame: Any) -> NoReturn:
    name = signal.Signals(number).name
    print(f"stopped by {name}; the same command resumes", flush=True)
    os._exit(128 + number)


def import_paddle() -> None:
    """Import Paddle, and put back the handlers that it takes.

    Paddle's own print a crash. A signal that comes meanwhile waits.
    """
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        import paddle  # noqa: F401

        for number in _STOPS:
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(number, signal.getsignal(number))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def check_config_file(path: str | os.PathLike[str]) -> None:
    """Check that a config is there; the error names the nearest ones."""
    path = Path(path)
    if path.is_dir():
        files = ", ".join(sorted(p.name for p in path.glob("*.yaml")))
        raise FileNotFoundError(
            f"{path} is a folder: name a file in it ({files or 'no .yaml'})"
        )
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no config file {path}{_nearest(path)}"
        )


def _nearest(path: Path) -> str:
    """Name the config that was probably meant."""
    if not path.is_absolute() and (ROOT / path).is_file():
        return f" here; did you mean {ROOT / path}?"
    found = [*(ROOT / "configs").glob("**/*.yaml"), *path.parent.glob("*.yaml")]
    near = difflib.get_close_matches(path.name, [p.name for p in found], n=1)
    names = [str(p) for p in found if p.name in near]
    return f"; did you mean {' or '.join(names[:3])}?" if near else ""


def check_folder(path: str | os.PathLike[str]) -> None:
    """Check that a folder to read from is there."""
    if not Path(path).is_dir():
        raise FileNotFoundError(f"there is no directory {path}")


def check_output_file(name: str, path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if a file can be written there; nothing is made."""
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{name} is {str(file)!r}, a directory: name a file")
    if file.exists() and not os.access(file, os.W_OK):
        raise ValueError(
            f"{name} is {str(file)!r}, which cannot be written to: name "
            "another file"
        )
    check_directory(f"the directory of {name}", file.parent)
    return file
