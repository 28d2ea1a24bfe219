# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, with errors that name the value."""

from __future__ import annotations

import difflib
import importlib.util
import math
import operator
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np


def check_installed(module: str, extra: str) -> None:
    """Check that a module of an extra of this package is there.

    Raises:
        ImportError: It is not; the message says how to install it.
    """
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"{module} is not installed here: pip install -e '.[{extra}]' "
            "(PaddleNLP and PaddleFormers need separate environments)"
        )


def check_integer(name: str, value: Any, minimum: int) -> int:
    """Return ``value`` as an ``int``.

    Raises:
        TypeError: Not an integer (``True`` and ``1.0`` are none).
        ValueError: Below ``minimum``.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    number = operator.index(value)
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    return number


def check_real(name: str, value: Any) -> float:
    """Return ``value`` as a finite ``float``.

    Raises:
        TypeError: Not a number.
        ValueError: Infinite or NaN.
    """
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if isinstance(value, bool) or not is_number:
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(value)


def check_bool(name: str, value: Any) -> bool:
    """Return an argument that must be True or False.

    Raises:
        TypeError: It is anything else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def check_positive(name: str, value: Any) -> float:
    """Return ``value`` as a finite ``float`` above 0.

    Raises:
        TypeError: Not a number.
        ValueError: Not positive, infinite or NaN.
    """
    number = check_real(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be positive, got {value!r}")
    return number


def check_not_negative(name: str, value: Any) -> float:
    """Return ``value`` as a finite ``float`` of at least 0.

    Raises:
        TypeError: Not a number.
        ValueError: Negative, infinite or NaN.
    """
    number = check_real(name, value)
    if number < 0:
        raise ValueError(f"{name} must not be negative, got {value!r}")
    return number


def check_decay(name: str, value: Any) -> float:
    """Return ``value``, the decay of a moving average, as a ``float``.

    Raises:
        TypeError: Not a number.
        ValueError: Outside of [0, 1), or NaN.
    """
    number = check_real(name, value)
    if not 0 <= number < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}")
    return number


def check_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``.

    Raises:
        ValueError: It is not; the message has the nearest choice.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(choices)}; "
            f"got {value!r}{suggestion(value, choices)}"
        )
    return value


def suggestion(
    value: Any,
    choices: Collection[str],
    prefix: str = "",
    *,
    similarity: float = 0.4,
) -> str:
    """``", did you mean 'x'?"`` with the choice nearest to ``value``, or "".

    Args:
        value: The user's value.
        choices: The valid values.
        prefix: Put before the choice, as users have to write it.
        similarity: Least similarity of a suggestion, from 0 to 1 (equal).
    """
    near = difflib.get_close_matches(
        str(value), choices, n=1, cutoff=similarity
    )
    return f", did you mean {prefix + near[0]!r}?" if near else ""


def check_directory(name: str, path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if it is, or can become, a directory to write to.

    Nothing is made.

    Raises:
        ValueError: A file is in the way.
        PermissionError: The directory, or the one that it would be made in,
            takes no files.
    """
    directory = found = Path(path)
    while not found.exists() and found != found.parent:
        found = found.parent
    if not found.is_dir():
        raise ValueError(
            f"{name} is {str(directory)!r}, and {found} is a file: name "
            "another directory"
        )
    if not os.access(found, os.W_OK | os.X_OK):
        raise PermissionError(
            f"{name} is {str(directory)!r}, and {found} cannot be written to: "
            "name another directory"
        )
    return directory


def check_output_file(name: str, path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if a file can be written there; nothing is made.

    Raises:
        ValueError: It is a directory, or a file that cannot be written to.
        PermissionError: No file can be put there.
    """
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


def check_series(name: str, values: Any) -> np.ndarray:
    """Return a series of losses as float64 ``[num_steps]``.

    Raises:
        TypeError: Not real numbers, or a bfloat16 tensor (NumPy sees its bits).
        ValueError: Not one-dimensional.
    """
    if str(getattr(values, "dtype", "")).endswith("bfloat16"):
        raise TypeError(f"{name} is bfloat16: cast it to float32 first")
    series = np.asarray(values)
    if series.size == 0 and series.ndim == 1:
        return np.zeros(0)
    if series.dtype.kind not in "fiu":
        raise TypeError(
            f"{name} must be a series of real numbers, got {values!r:.80} "
            f"(NumPy type {series.dtype})"
        )
    if series.ndim != 1:
        raise ValueError(
            f"{name} must be one-dimensional, got shape {series.shape}"
        )
    return series.astype(np.float64)
