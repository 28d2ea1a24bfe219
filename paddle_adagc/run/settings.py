# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip's settings: options, a file, and the Trainer's own arguments.

Where several have a value, the first of these wins. Each value keeps its origin
for the line that says what is in force.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

Values = dict[str, tuple[Any, str]]
"""Name -> value, and where it stands."""

_LARGEST = 1 << 16  # bytes of a file: it becomes an environment variable
_DEFAULT = 1.0  # lambda_abs


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_one and abs(value) < 1e38  # of float32; not NaN


def _positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 0


def _one_of(*choices: Any) -> tuple[Callable[[Any], bool], str]:
    shown = ", ".join(str(choice) for choice in choices)
    return choices.__contains__, f"one of {shown}"


Kinds = dict[str, tuple[Callable[[Any], bool], str]]
CLIP: Kinds = {
    "lambda_rel": (_positive, "positive"),
    "beta": (lambda v: _is_number(v) and 0 <= v < 1, "a number in [0, 1)"),
    "lambda_abs": (_positive, "positive"),
    "t_start": (_count, "an integer >= 0"),
    "init": _one_of("warmup_min", "warmup_ema"),
    "strict": (lambda v: isinstance(v, bool), "true or false"),
    "nonfinite": _one_of("zero", "raise", "propagate"),
    "overrides": (lambda v: isinstance(v, dict), "a section"),
}
"""Arguments of ClipGradByAdaGC, as they can be checked without Paddle."""

RECORD: Kinds = {
    "skip_above": (_positive, "positive"),
    "stop_on": _one_of("nan"),
    "on_alarm": (lambda v: isinstance(v, str) and bool(v), "a command"),
}
TRAINER: Kinds = {
    "missing_state": _one_of("raise", "start"),
    "new_tensors": _one_of("raise", "start"),
    **RECORD,
    "units": (lambda v: isinstance(v, dict), "a section"),
}
"""What else there is to choose for a Trainer's clip."""


def check(name: str, value: Any, where: str) -> None:
    """Refuse an unknown name or a value that no clip takes.

    Raises:
        ValueError: Says what is wrong.
    """
    known = {**CLIP, **TRAINER}
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name, known, n=1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{where}: AdaGC has no argument {name!r}{hint}")
    is_right, what = known[name]
    if not is_right(value):
        raise ValueError(f"{where}: {name} must be {what}, got {value!r}")


def read_file(path: str) -> dict[str, Any]:
    """Read the section ``clip`` of a YAML or JSON file, at its top.

    Raises:
        ImportError: The file is YAML, and PyYAML is missing.
        OSError: There is no such file.
        ValueError: It is too large, cannot be read or lacks the section.
    """
    if os.path.getsize(path) > _LARGEST:
        raise ValueError(f"{path} is larger than {_LARGEST} bytes")
    with open(path, encoding="utf-8-sig") as file:
        text = file.read()
    try:
        found = json.loads(text) if path.endswith(".json") else _yaml(text)
    except (RecursionError, ValueError) as error:
        reason = str(error).replace("\n", " ") or "too deep"
        raise ValueError(f"{path} cannot be read: {reason}") from error
    section = found.get("clip") if isinstance(found, dict) else None
    if not isinstance(section, dict):
        raise ValueError(
            f"{path} has no section of settings at its top: "
            "clip: {t_start: 200}"
        )
    return {name: as_number(value) for name, value in section.items()}


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            f"{error}: pip install pyyaml, or use JSON"
        ) from error

    class Loader(yaml.SafeLoader):
        """Refuses aliases: a few lines of them can stand for millions."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("an alias (*name) is not allowed in it")
            return super().compose_node(parent, index)

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def as_number(value: Any) -> Any:
    """Read ``5e-1`` and ``.5``, which YAML and JSON read as text, or not."""
    if isinstance(value, str) and any(map(str.isdigit, value)):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def of_trainer(args: Any) -> Values:
    """Return what a Trainer's arguments say about clipping.

    ``max_grad_norm`` is ``lambda_abs``; where it is 0 or None, that is 1.0.
    Where ``adaptive_norm_clip`` is on, the arguments of ERNIE's clip count.
    """
    from paddle_adagc.integrations.arguments import TAKEN, of_adaptive_norm

    if found := of_adaptive_norm(args):
        return found
    norm = getattr(args, "max_grad_norm", None)
    norm = norm or getattr(args, TAKEN, norm)
    if norm:
        return {"lambda_abs": (norm, "max_grad_norm")}
    return {"lambda_abs": (_DEFAULT, f"max_grad_norm is {norm}")}


def shown(values: Mapping[str, tuple[Any, str]]) -> str:
    """Name values and their origins."""
    return ", ".join(f"{k}={v!r} ({where})" for k, (v, where) in values.items())
