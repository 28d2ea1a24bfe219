# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Refuse commands that show that they keep ``adagc-run`` out.

It comes with ``PYTHONPATH``: not to a Python that ignores it, nor to one that
starts with another environment.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

_PYTHON = re.compile(r"python[\d.]*")
_SHELL = re.compile(r"(ba|da|k|z)?sh")
_FLAGS = re.compile(r"-[a-zA-Z]*?([IES])")
_TEXT = re.compile(r"-[a-zA-Z]*c")
_ASSIGNS = re.compile(r"(?m)(?:^|[\s;&])(PYTHONPATH=(\S*))")
_INSTEAD = "Or give the optimizer the clip: grad_clip=ClipGradByAdaGC()"


def check_command(words: Sequence[str]) -> None:
    """Refuse a command whose words, or whose shell script, keep it out.

    Raises:
        ValueError: Says which word.
    """
    for i, word in enumerate(words):
        name, rest = os.path.basename(word), words[i + 1 :]
        if name == "env":
            _refuse(name, _emptying(rest))
        elif word.startswith("PYTHONPATH="):
            _check_path(word)
        elif _SHELL.fullmatch(name):
            _check_shell(rest)
            return
        elif _PYTHON.fullmatch(name):
            _refuse(name, _isolating(rest))
            return


def _refuse(name: str, flag: str) -> None:
    if flag:
        raise ValueError(
            f"{name} {flag} keeps adagc-run out: leave {flag} out. {_INSTEAD}"
        )


def _check_shell(words: Sequence[str]) -> None:
    """Look into the text, or the file, that a shell runs."""
    for i, word in enumerate(words):
        if _TEXT.fullmatch(word) and i + 1 < len(words):
            for command in _commands(words[i + 1]):
                check_command(command)
            return
        if not word.startswith("-"):
            break
    else:
        return
    if os.path.isfile(word) and os.path.getsize(word) < 1 << 20:
        with open(word, encoding="utf-8", errors="replace") as file:
            text = file.read()
        for assignment, _ in _ASSIGNS.findall(text):
            _check_path(assignment)


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the simple commands of a shell's text; none if it is not known."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    words: list[str] = []
    try:
        for word in lexer:
            if {*word} <= {*"();<>|&\n"}:
                yield words
                words = []
            else:
                words.append(word)
    except ValueError:  # no closing quotation
        return
    yield words


def _check_path(word: str) -> None:
    value = word.partition("=")[2]
    if "PYTHONPATH" not in value:
        raise ValueError(
            f"{word} drops adagc-run's entry: write {word}:$PYTHONPATH, or set "
            f"it before adagc-run. {_INSTEAD}"
        )


def _emptying(words: Iterable[str]) -> str:
    """Return the option of ``env`` that takes our variables away, if any."""
    before = ""
    for word in words:
        if word in ("-", "-i", "--ignore-environment"):
            return word
        if before in ("-u", "--unset") and word == "PYTHONPATH":
            return f"{before} {word}"
        if word in ("-uPYTHONPATH", "--unset=PYTHONPATH"):
            return word
        takes_value = before in ("-u", "--unset", "-C", "--chdir")
        if not (word.startswith("-") or "=" in word or takes_value):
            break
        before = word
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
