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
from functools import partial
from typing import Any

from paddle_adagc.checks import check_choice, check_positive, name_hint
from paddle_adagc.clips.arguments import CHECKS as CLIP

Values = dict[str, tuple[Any, str]]
"""Name -> value, and where it stands."""

_LARGEST = 1 << 16  # bytes of a file: it becomes an environment variable
_DEFAULT = 1.0  # lambda_abs


def _check_section(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be a section, got {value!r}")
    return value


def _check_command(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a command, got {value!r}")
    return value


_RAISE_OR_START = partial(check_choice, choices=("raise", "start"))
RECORD: dict[str, Callable[[str, Any], Any]] = {
    "skip_above": check_positive,
    "stop_on": partial(check_choice, choices=("nan",)),
    "on_alarm": _check_command,
}
TRAINER: dict[str, Callable[[str, Any], Any]] = {
    "missing_state": _RAISE_OR_START,
    "new_tensors": _RAISE_OR_START,
    **RECORD,
    "units": _check_section,
}


def check(name: str, value: Any, where: str) -> None:
    """Refuse an unknown name or a value that no clip takes.

    Raises:
        ValueError: Says what is wrong.
    """
    known = {**CLIP, **TRAINER}
    if name not in known:
        hint = name_hint(name, known)
        raise ValueError(f"{where}: AdaGC has no argument {name!r}{hint}")
    try:
        known[name](name, value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


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
    if isinstance(value, dict):  # overrides
        return {name: as_number(x) for name, x in value.items()}
    return value


def of_trainer(args: Any) -> Values:
    """Return what a Trainer's arguments say about clipping.

    ``max_grad_norm`` is ``lambda_abs``; where it is None or not above 0, so
    that the Trainer would not clip, that is 1.0.
    Where ``adaptive_norm_clip`` is on, the arguments of ERNIE's clip count.
    """
    from paddle_adagc.integrations.arguments import of_adaptive_norm

    if found := of_adaptive_norm(args):
        return found
    norm = getattr(args, "max_grad_norm", None)
    if norm and norm > 0:
        return {"lambda_abs": (norm, "max_grad_norm")}
    return {"lambda_abs": (_DEFAULT, f"max_grad_norm is {norm}")}


def shown(values: Mapping[str, tuple[Any, str]]) -> str:
    """Name values and their origins."""
    return ", ".join(f"{k}={v!r} ({where})" for k, (v, where) in values.items())
