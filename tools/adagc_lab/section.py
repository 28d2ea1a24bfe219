# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sections of config files: typed by pydantic, one line for every mistake."""

from __future__ import annotations

import dataclasses
import difflib
import os
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import ErrorDetails, PydanticCustomError
from typing_extensions import dataclass_transform

from paddle_adagc.checks import in_float32, suggestion

T = TypeVar("T")


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "not a number")
    return value


def _check_float32(value: float) -> float:
    if not in_float32(value):
        raise PydanticCustomError("float32", "not in float32")
    return value


def _check_int64(value: int) -> int:
    if value >= 2**63:
        raise PydanticCustomError("int64", "not in int64")
    return value


Natural = Annotated[int, Field(strict=True, ge=0), AfterValidator(_check_int64)]
"""Integer, at least 0, of int64."""

Count = Annotated[int, Field(strict=True, ge=1), AfterValidator(_check_int64)]
"""Integer, at least 1, of int64."""

Real = Annotated[
    float,
    BeforeValidator(_refuse_bool),
    Field(allow_inf_nan=False),
    AfterValidator(_check_float32),
]
"""Finite number that float32 holds; text such as ``"1e-4"`` is read as one."""

NonNegative = Annotated[Real, Field(ge=0)]
Positive = Annotated[Real, Field(gt=0)]

Decay = Annotated[Real, Field(ge=0, lt=1)]
"""Decay of a moving average, in [0, 1)."""

Share = Annotated[Real, Field(gt=0, le=1)]
"""Part of a whole, in (0, 1]."""

PathText = Annotated[str, AfterValidator(os.path.expanduser)]
"""Path; ``~`` at its beginning is the user's folder."""

Flag = pydantic.StrictBool

_MAP = "be a map of keys to values"
_LIST = "be a list"
_RULES = {
    "bool_type": "be true or false",
    "dataclass_type": _MAP,
    "dict_type": _MAP,
    "finite_number": "be finite",
    "float32": "be 0 or from 1.2e-38 to 3.4e+38 in size, as float32 holds it",
    "float_parsing": "be a number",
    "float_type": "be a number",
    "greater_than": "be greater than {gt:.10g}",
    "greater_than_equal": "be at least {ge:.10g}",
    "int64": "be at most 9223372036854775807 (int64)",
    "int_type": "be an integer",
    "less_than": "be less than {lt:.10g}",
    "less_than_equal": "be at most {le:.10g}",
    "list_type": _LIST,
    "model_attributes_type": _MAP,
    "string_too_short": "not be empty",
    "string_type": "be text",
    "too_short": "not be empty",
    "tuple_type": _LIST,
}
"""What a value must be, by pydantic's type of error."""


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(dataclasses.field,),
)
def section(kind: type[T]) -> type[T]:
    """Make a class a config section.

    A section is a frozen dataclass with keyword arguments. pydantic checks
    the values of every new one, :func:`dataclasses.replace` included, and
    refuses unknown keys.

    Raises:
        ValueError: Bad values, when a section is made; one line for each.
    """
    config = pydantic.ConfigDict(extra="forbid")
    made: Any = pydantic.dataclasses.dataclass(
        frozen=True, kw_only=True, config=config
    )(kind)
    check = made.__init__

    def __init__(self: Any, **values: Any) -> None:
        try:
            check(self, **values)
        except pydantic.ValidationError as error:
            # A missing key is often just misspelt, so that comes first.
            mistakes = sorted(
                error.errors(), key=lambda mistake: mistake["type"] == "missing"
            )
            lines = [_describe(made, mistake) for mistake in mistakes]
            raise ValueError("\n".join(lines)) from error

    made.__init__ = __init__
    return made


def _describe(kind: type, mistake: ErrorDetails) -> str:
    """Say which key is wrong, what it holds and what it takes, in one line."""
    keys, section, declared, name = _locate(kind, mistake["loc"])
    key, value = ".".join(keys), mistake["input"]
    problem, context = mistake["type"], mistake.get("ctx", {})
    if problem == "unexpected_keyword_argument":
        known = [field.name for field in dataclasses.fields(section)]
        prefix = key.removesuffix(keys[-1])
        near = suggestion(keys[-1], known, prefix, similarity=0.85)
        near = near or _elsewhere(kind, keys[-1])
        near = near or suggestion(keys[-1], known, prefix, similarity=0.7)
        near = near or f": the keys are {', '.join(known)}"
        return f"unknown key {key!r}{name and f' of {name}'}{near}"
    if problem == "missing":
        return f"{key} is missing"
    if problem == "value_error":
        return f"{key}: {context['error']}" if key else str(context["error"])
    if problem == "union_tag_invalid":
        choices = [option.name for option in _options(declared)]
        return _choice_line(f"{key}.name", context["tag"], choices)
    if problem == "literal_error":
        return _choice_line(key, value, typing.get_args(declared))
    rule = _RULES.get(problem, f"be valid: {mistake['msg']}").format(**context)
    how = f": give all of it, as in {key}=[...]" if rule == _LIST else ""
    return f"{key} must {rule}, got {value!r}{how}"


def _elsewhere(kind: Any, name: str) -> str:
    """Suggest the section that a misplaced key belongs to; ``""``: none."""
    owners: dict[str, str] = {}
    for section, inner in typing.get_type_hints(kind).items():
        # Of alternatives the first is the default.
        if dataclasses.is_dataclass(option := _options(inner)[0]):
            for field in dataclasses.fields(option):
                owners.setdefault(field.name, section)
    near = difflib.get_close_matches(name, owners, n=1, cutoff=0.85)
    return f", did you mean '{owners[near[0]]}.{near[0]}'?" if near else ""


def _choice_line(key: str, value: Any, choices: Sequence[str]) -> str:
    near = suggestion(value, choices)
    return f"{key} must be one of {', '.join(choices)}; got {value!r}{near}"


_KEY = "[key]"
"""What pydantic adds to the location of a dict's key that is no string."""


def _locate(
    kind: Any, location: Sequence[int | str]
) -> tuple[list[str], Any, Any, str]:
    """Follow pydantic's location: keys, indices, and names of alternatives.

    Returns the keys from the outside in; the innermost section; the declared
    type of the value, None for an unknown key; the alternative's name, or "".
    """
    keys: list[str] = []
    section, name = kind, ""
    for part in location:
        if part == _KEY:
            break
        options = _options(kind)
        if len(options) > 1:
            name = str(part)
            kind = next(option for option in options if option.name == part)
            continue
        keys.append(str(part))
        if dataclasses.is_dataclass(options[0]):
            section = options[0]
            kind = typing.get_type_hints(section).get(str(part))
        else:
            arguments = typing.get_args(options[0])
            kind = arguments[0 if isinstance(part, int) else -1]
    return keys, section, kind, name


def _options(kind: Any) -> tuple[Any, ...]:
    """Alternatives of a union, without None; of another type that one."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return (kind,)
    return tuple(k for k in typing.get_args(kind) if k is not types.NoneType)
