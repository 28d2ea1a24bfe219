# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sections of config files: pydantic models, and a line for every mistake."""

from __future__ import annotations

import difflib
import os
import typing
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
        keys = [*map(str, found["loc"])]
        if len(keys) > 1 and keys[1] in _names(kind.model_fields.get(keys[0])):
            del keys[1]  # the chosen one of several sections
        key, message = ".".join(keys), found["msg"]
        if found["type"] == "extra_forbidden":
            hint = _hint(key, kind, before)
            lines.insert(0, f"unknown key '{before}{key}'{hint}")
        elif found["type"] in ("value_error", "missing"):
            message = message.removeprefix("Value error, ")
            lines.append(f"{before}{key}: {message}".removeprefix(": "))
        else:
            lines.append(f"{before}{key}: {message}, got {found['input']!r}")
    return "\n".join(lines)


def _sections(field: Any) -> list[type[Section]]:
    """Return the sections that a field may hold."""
    kind = getattr(field, "annotation", None)
    options = typing.get_args(kind) or (kind,)
    return [
        o for o in options if isinstance(o, type) and issubclass(o, Section)
    ]


def _names(field: Any) -> set[str]:
    """Return the values of ``name`` by which a field's sections differ."""
    fields = [section.model_fields for section in _sections(field)]
    return {f["name"].default for f in fields if "name" in f}


def _known_keys(
    kind: type[Section], before: str = "", limit: int | None = None
) -> list[str]:
    """Return all keys with dots, of so many alternatives of a section."""
    found: dict[str, None] = {}
    for name, field in kind.model_fields.items():
        found[before + name] = None
        for section in _sections(field)[:limit]:
            inner = _known_keys(section, f"{before}{name}.", limit)
            found |= dict.fromkeys(inner)
    return [*found]


def _hint(key: str, kind: type[Section], before: str) -> str:
    """Suggest a key: of the same section, or a misplaced one's."""
    place, _, last = key.rpartition(".")
    section = ".".join(part for part in place.split(".") if not part.isdigit())
    keys = [known.rpartition(".") for known in _known_keys(kind)]
    own = [end for start, _, end in keys if start == section]
    if last in own:
        return f" with this {place}.name"
    if near := difflib.get_close_matches(last, own, 1, 0.75):
        return f", did you mean '{before}{key.removesuffix(last)}{near[0]}'?"
    others = {k.rpartition(".")[2]: k for k in _known_keys(kind, limit=1)[::-1]}
    if near := difflib.get_close_matches(last, others, 1, 0.75):
        return f", did you mean '{before}{others[near[0]]}'?"
    return f": the keys are {', '.join(own)}"
