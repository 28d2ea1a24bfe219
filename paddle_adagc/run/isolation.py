# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Refuse commands whose words show that they keep ``adagc-run`` out.

It comes with ``PYTHONPATH``: not to a Python that ignores it, nor to one that
starts with another environment. Scripts are not looked into.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Sequence

_PYTHON = re.compile(r"python[\d.]*")
_FLAGS = re.compile(r"-[a-zA-Z]*?([IES])")


def check_command(words: Sequence[str]) -> None:
    """Refuse a command whose words keep it out.

    Raises:
        ValueError: Says which word.
    """
    for i, word in enumerate(words):
        name, rest = os.path.basename(word), words[i + 1 :]
        if name == "env":
            _refuse(name, _emptying(rest))
        elif _PYTHON.fullmatch(name):
            _refuse(name, _isolating(rest))
            return
        elif name == "paddleformers-cli" and (hiding := _hiding()):
            raise ValueError(
                f"{hiding} keeps adagc-run out: {name} puts that folder before "
                "PYTHONPATH. Move the file, or start its cli/launcher.py by "
                "python -m paddle.distributed.launch"
            )


def _refuse(name: str, flag: str) -> None:
    if flag:
        raise ValueError(
            f"{name} {flag} keeps adagc-run out: leave {flag} out. Or give the "
            "optimizer the clip: grad_clip=ClipGradByAdaGC()"
        )


def _hiding() -> str:
    """Return the sitecustomize that PaddleFormers' processes run, not ours."""
    spec = importlib.util.find_spec("paddleformers")
    origin = spec.origin if spec else None
    folder = os.path.dirname(os.path.dirname(origin or ""))
    path = os.path.join(folder, "sitecustomize.py")
    return path if origin and os.path.exists(path) else ""


def _emptying(words: Iterable[str]) -> str:
    """Return the word after ``env`` that takes our path away, if any."""
    before = ""
    for word in words:
        if word in ("-", "-i", "--ignore-environment"):
            return word
        if before in ("-u", "--unset") and word == "PYTHONPATH":
            return f"{before} {word}"
        if word in ("-uPYTHONPATH", "--unset=PYTHONPATH"):
            return word
        if word.startswith("PYTHONPATH="):
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
