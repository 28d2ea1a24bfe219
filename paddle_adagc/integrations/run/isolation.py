# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pythons that ``adagc-run`` does not get into.

It comes with ``PYTHONPATH``. A Python that ignores it, or that starts with
another environment, trains without it. Where the command line shows it,
the command is refused; else the process is found once it has loaded Paddle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from paddle_adagc.integrations.run.bootstrap import SITE
from paddle_adagc.integrations.run.process import VARIABLE

_PYTHON = re.compile(r"python[\d.]*")
_MAY_TRAIN = re.compile(rf"{_PYTHON.pattern}|-?(ba|da|k|z)?sh")
_FLAGS = re.compile(r"-[a-zA-Z]*?([IES])")
_INSTEAD = (
    "Or give the optimizer the clip yourself: grad_clip=ClipGradByAdaGC()"
)


def check_words(words: Sequence[str], script_words: Sequence[str] = ()) -> None:
    """Refuse a command whose words keep ``adagc-run`` out.

    Of scripts ``PYTHONPATH`` alone is looked at: other words may be about
    programs that do not train.

    Raises:
        ValueError: Says which word.
    """
    for word in (*words, *script_words):
        name, is_assigned, value = word.partition("=")
        if name == "PYTHONPATH" and is_assigned and "PYTHONPATH" not in value:
            raise ValueError(
                f"{word} drops adagc-run's entry: write {word}:$PYTHONPATH, "
                f"or set it before adagc-run. {_INSTEAD}"
            )
    for i, word in enumerate(words):
        name, rest = Path(word).name, words[i + 1 :]
        flag = ""
        if name == "env":
            flag = _emptying(rest)
        elif _PYTHON.fullmatch(name):
            flag = _isolating(rest)
        if flag:
            raise ValueError(
                f"{name} {flag} keeps adagc-run out: leave {flag} out. "
                f"{_INSTEAD}"
            )


def _emptying(words: Iterable[str]) -> str:
    """Return the option of ``env`` that empties the environment, if any."""
    for word in words:
        if word in ("-", "-i", "--ignore-environment"):
            return word
        if not word.startswith("-") and "=" not in word:
            break
    return ""


def _isolating(words: Iterable[str]) -> str:
    """Return the option of Python that ignores PYTHONPATH, if there is one."""
    takes_value = False
    for word in words:
        if takes_value:
            takes_value = False
        elif not word.startswith("-") or word.startswith(("-c", "-m", "--")):
            break
        elif word.startswith(("-W", "-X")):
            takes_value = len(word) == 2
        elif _FLAGS.match(word):
            return word
    return ""


def outsiders(pid: int, insiders: Iterable[int]) -> dict[int, str]:
    """Find processes below ``pid`` that run Paddle, and not ``adagc-run``.

    Args:
        pid: Of the command.
        insiders: Processes that reported to ``adagc-run``.

    Returns:
        Why each of them keeps ``adagc-run`` out, by its id.
    """
    found = {}
    for child in descendants(pid) - {*insiders}:
        words, variables = _started_with(child)
        if "libpaddle" not in _maps(child):
            continue
        # It is a fork of an insider, such as a worker that loads data. A title
        # (setproctitle) may hide its words and environment.
        if _stack(child) in map(_stack, insiders):
            continue
        reason = ""
        if VARIABLE not in variables:
            reason = "its environment was emptied"
        elif SITE not in variables.get("PYTHONPATH", "").split(os.pathsep):
            reason = f"PYTHONPATH is {variables.get('PYTHONPATH')!r}"
        elif flag := _isolating(words[1:]):
            reason = f"it runs with {flag}"
        if reason:
            shown = " ".join(words)
            found[child] = f"{shown[:80]}: {reason}"
    return found


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def _stack(pid: int) -> str:
    """Return where the stack ends: random, and kept by a fork."""
    found = re.search(r"-(\S+) .*\[stack\]", _maps(pid))
    return found[1] if found else str(pid)


def left_behind(pids: Iterable[int], *, trains: bool) -> set[int]:
    """Return those processes that have the command's environment.

    Args:
        pids: Their ids.
        trains: Only those that may train yet: a Python, or a shell, which may
            start one.
    """
    found = set()
    for pid in pids:
        words, variables = _started_with(pid)
        is_one = _MAY_TRAIN.fullmatch(Path(words[0]).name) or not trains
        if is_one and VARIABLE in variables:
            found.add(pid)
    return found


def _started_with(pid: int) -> tuple[list[str], dict[str, str]]:
    """Return a process' words and environment."""
    try:
        words = _split(Path(f"/proc/{pid}/cmdline"))
        entries = _split(Path(f"/proc/{pid}/environ"))
    except OSError:
        return [""], {}
    return words, dict(entry.partition("=")[::2] for entry in entries)


def _split(path: Path) -> list[str]:
    return path.read_bytes().decode(errors="replace").rstrip("\0").split("\0")


def parent_of(pid: int) -> int:
    """Return the parent's id of a process, 0 if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])


def descendants(pid: int) -> set[int]:
    """Return a process and all that it started."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            children.setdefault(parent_of(int(entry)), []).append(int(entry))
    found, todo = set(), [pid]
    while todo:
        found.add(now := todo.pop())
        todo += children.get(now, [])
    return found
