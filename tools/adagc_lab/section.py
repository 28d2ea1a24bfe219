# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sections of config files: pydantic models, and a line for every mistake."""

from __future__ import annotations

import difflib
import os
import typing
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
)

Natural = Annotated[int, Field(strict=True, ge=0)]
Count = Annotated[int, Field(strict=True, ge=1)]

Real = Annotated[float, Field(allow_inf_nan=False)]
"""Finite number; text such as ``"1e-4"`` is read as one."""

NonNegative = Annotated[Real, Field(ge=0)]
Positive = Annotated[Real, Field(gt=0)]

Decay = Annotated[Real, Field(ge=0, lt=1)]
"""Decay of a moving average, in [0, 1)."""

PathText = Annotated[str, AfterValidator(os.path.expanduser)]
"""Path; ``~`` at its beginning is the user's folder."""

Flag = StrictBool


class Section(BaseModel):
    """A part of a config; it cannot be changed, and has no other keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def mistakes(
    error: ValidationError, kind: type[Section], before: str = ""
) -> str:
    """Describe pydantic's errors, a line each; unknown keys come first.

    ``before`` stands in front of the keys.
    """
    lines: list[str] = []
    for found in error.errors():
        keys, owner = _locate(kind, found["loc"])
        key, problem = before + ".".join(keys), found["type"]
        message = found["msg"].removeprefix("Value error, ")
        if problem == "extra_forbidden":
            near = _nearest(keys, owner, kind, before)
            lines.insert(0, f"unknown key '{key}'{near}")
        elif problem in ("value_error", "missing"):
            where = key.removesuffix(".")
            lines.append(f"{where}: {message}" if where else message)
        else:
            lines.append(f"{key}: {message}, got {found['input']!r}")
    return "\n".join(lines)


def _locate(
    kind: type[Section], location: Sequence[int | str]
) -> tuple[list[str], type[Section]]:
    """Return the keys of pydantic's location and the innermost section.

    Pydantic names the chosen one of several sections in between.
    """
    keys: list[str] = []
    owner: type[Section] = kind
    inner: Any = kind
    for part in location:
        chosen = [s for s in _sections(inner) if _name_of(s) == part]
        if chosen and keys:
            inner = chosen[0]
            continue
        keys.append(str(part))
        if isinstance(part, int):
            inner = typing.get_args(inner)[0]
        elif found := _sections(inner):
            owner = found[0]
            field = owner.model_fields.get(part)
            inner = field.annotation if field else None
    return keys, owner


def _sections(kind: Any) -> list[type[Section]]:
    """Return the sections among the alternatives of a type."""
    options = typing.get_args(kind) or (kind,)
    return [
        o for o in options if isinstance(o, type) and issubclass(o, Section)
    ]


def _name_of(kind: type[Section]) -> Any:
    field = kind.model_fields.get("name")
    return field and field.default


def _nearest(
    keys: list[str], owner: type[Section], kind: type[Section], before: str
) -> str:
    """Suggest a key of the same section, or the section of a misplaced key."""
    own = {name: ".".join([*keys[:-1], name]) for name in owner.model_fields}
    others: dict[str, str] = {}
    for section, field in kind.model_fields.items():
        for inner in _sections(field.annotation)[:1]:  # the default comes first
            for name in inner.model_fields:
                others.setdefault(name, f"{section}.{name}")
    for pool in (own, others):
        near = difflib.get_close_matches(keys[-1], pool, n=1, cutoff=0.75)
        if near:
            return f", did you mean '{before}{pool[near[0]]}'?"
    return f": the keys are {', '.join(own)}"
