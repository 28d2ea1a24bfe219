# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Refusal of pickled files that could run code when they are loaded."""

from __future__ import annotations

import os
import pickle
from typing import Any

import paddle

_ALLOWED = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
    ("paddle.base.libpaddle", "GeneratorState"),
}
"""All that ``paddle.save`` needs for tensors and random states."""


class _Forbidden(Exception):
    """The file asks for something else than arrays."""


class _Checker(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _Forbidden(f"{module}.{name}")
        return super().find_class(module, name)


def check_pickle(path: str | os.PathLike[str]) -> Any:
    """Read a file of ``paddle.save``; refuse all but arrays, run nothing."""
    with open(path, "rb") as file:
        try:
            return _Checker(file).load()
        except _Forbidden as error:
            raise ValueError(
                f"{path} is refused: it asks for {error}, which no tensors "
                "need and which could run a stranger's code"
            ) from error
        except Exception as error:  # wrong bytes raise anything
            raise ValueError(f"{path} is broken: {error!r}") from error


def load_pickle(path: str | os.PathLike[str]) -> Any:
    """Check a file, then load it; nothing else here calls ``paddle.load``."""
    check_pickle(path)
    return paddle.load(os.fspath(path))
