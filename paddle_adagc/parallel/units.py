# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Units: several of the paper's tensors inside one parameter.

Frameworks keep all experts of a layer in one parameter ``[experts, in, out]``,
q, k and v in one ``[in, q + k + v]``, gate and up in one. The paper clips each
matrix by itself. A unit is such a matrix, with its own norm and gamma: an ERNIE
with L layers and E experts has (9 + 3E)L + 3.

A unit lies in its parameter as runs of neighbouring values, in row-major order:
expert e is one run, a range of columns one run per row. A slice of sharding V2
is a range of the same order.
"""

from __future__ import annotations

import dataclasses
import math
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from paddle import Tensor, _C_ops

from paddle_adagc.checks import check_integer, matching_pattern, suggestion
from paddle_adagc.parallel.topology import gather

MARK = "adagc_units"  # attribute of a parameter: the units that it holds
_GROUPED = re.compile(r"(^|\.)grouped_gemm_experts\.weight\d*$")


class Piece(NamedTuple):
    """Runs of equal length and distance."""

    start: int
    run: int  # neighbouring values
    num_runs: int
    stride: int  # from one run to the next

    @property
    def size(self) -> int:
        """Number of values."""
        return self.run * self.num_runs


@dataclasses.dataclass(frozen=True)
class Unit:
    """One of the paper's tensors in a parameter."""

    key: str
    shape: tuple[int, ...]
    place: Piece

    def cut(self, begin: int, end: int) -> list[Piece]:
        """Return what the slice ``[begin, end)`` of the parameter has of it.

        At most three pieces, from ``begin``: the rest of a run, whole runs, the
        beginning of a run.
        """
        start, run, num_runs, stride = self.place
        first = min(max(-((start - begin) // stride), 0), num_runs)
        stop = min(max((end - run - start) // stride + 1, first), num_runs)
        pieces = []
        for index, count in ((first - 1, 1), (first, stop - first), (stop, 1)):
            low = max(start + index * stride, begin)
            high = min(start + index * stride + run, end)
            if 0 <= index < num_runs and count and low < high:
                pieces.append(Piece(low - begin, high - low, count, stride))
        return pieces


def view_of(flat: Tensor, start: int, shape: Sequence[int]) -> Tensor:
    """Return values of a vector from ``start`` on, in its memory."""
    piece = _C_ops.view_slice(flat, start, start + math.prod(shape))
    return piece.reshape_([*shape])  # also without stride kernels


@dataclasses.dataclass(frozen=True)
class Units:
    """How a parameter is made of units.

    Raises:
        TypeError: A field of a wrong type.
        ValueError: It has neither experts nor parts, or two parts of one name.

    Example:
        Gate and up of two experts in one parameter ``[2, 4, 6]``:

        >>> from paddle_adagc.parallel.units import Units
        >>> units = Units(experts=True, parts=["gate", "up"])
        >>> gate, *_ = found = units.of("mlp.experts.weight1", [2, 4, 6])
        >>> gate.key, gate.shape, len(found)
        ('mlp.experts.0.gate.weight1', (4, 3), 4)
    """

    experts: bool = False
    """Axis 0 counts experts."""

    parts: Mapping[str, int | str] | Sequence[str] = ()
    """Neighbours along ``axis``, by name: names of equal parts, or the share of
    the axis that each has. A share is a number, or the name of one in the
    model's config."""

    axis: int = -1
    """Axis of the parts, of one expert if there are experts."""

    widths: Mapping[str, int | str] = dataclasses.field(default_factory=dict)
    """In place of ``parts``: how wide each is along the axis. They follow each
    other until it is full: q, k and v of one group of heads, then those of the
    next."""

    key: str | None = None
    """What takes the place of the last two names of the parameter's key, with
    ``{expert}`` (its global number) and ``{part}``; by default
    ``module.{expert}.weight``, ``{part}.weight``, or
    ``module.{expert}.{part}.weight``."""

    def __post_init__(self) -> None:
        parts, widths = self.parts, self.widths
        if isinstance(parts, str) or not isinstance(parts, (Mapping, Sequence)):
            raise TypeError(f"parts={parts!r}: give a list of names, or a dict")
        if not isinstance(widths, Mapping):
            raise TypeError(f"widths={widths!r}: give a dict, name -> width")
        shares = (
            parts if isinstance(parts, Mapping) else dict.fromkeys(parts, 1)
        )
        if shares and widths:
            raise ValueError(
                f"units have parts={parts!r} (shares of the axis) or widths="
                f"{widths!r} (of one group, which repeats), not both"
            )
        if not (self.experts or shares or widths):
            raise ValueError(
                "units without experts and parts: name one of them"
            )
        if len(shares) < len(parts):
            raise ValueError(f"parts={parts!r} holds a name twice")
        for _, field, *_ in string.Formatter().parse(self.key or ""):
            if field not in (None, "expert", "part"):
                raise ValueError(
                    f"key={self.key!r} of units has a field {field!r}: it can "
                    "have {expert} and {part}"
                )
        object.__setattr__(self, "parts", shares)

    @property
    def are_parts(self) -> bool:
        """Whether several units lie in one matrix."""
        return bool(self.parts or self.widths)

    def with_numbers(self, key: str, config: Mapping[str, Any]) -> Units:
        """Return the units with the model's numbers in place of their names.

        Raises:
            TypeError, ValueError: The config lacks a number, or it is no
                positive integer.
        """
        found: dict[str, Any] = {"parts": {}, "widths": {}}
        for field, numbers in found.items():
            for part, number in getattr(self, field).items():
                what = f"units of {key!r}: {field} of {part}"
                if isinstance(number, str) and number not in config:
                    raise ValueError(
                        f"{what} is {number!r}, which the model's config lacks"
                        f"{suggestion(number, [*config])}"
                    )
                value = config[number] if isinstance(number, str) else number
                numbers[part] = check_integer(what, value, 1)
        return dataclasses.replace(self, **found)

    def of(
        self, key: str, shape: Sequence[int], first_expert: int = 0
    ) -> tuple[Unit, ...]:
        """Return the units that fill a parameter.

        Args:
            key: Of the parameter, of which the units' keys are made.
            shape: Of this rank's part of the parameter.
            first_expert: Global number of its first expert.

        Raises:
            ValueError: The shape has no such axis, or it cannot be shared so.
        """
        inner = tuple(shape[1:] if self.experts else shape)
        if 0 in inner or not -len(inner) <= self.axis < len(inner):
            raise ValueError(
                f"{key} of shape {list(shape)} has no axis {self.axis} of "
                f"{'an expert' if self.experts else 'its own'} to hold "
                f"{[*self.parts, *self.widths] or 'experts'}"
            )
        axis = self.axis % len(inner)
        below = math.prod(inner[axis + 1 :])
        widths, repeats = self._widths(key, inner[axis])
        stride = inner[axis] // repeats * below
        num_runs = math.prod(inner) // stride
        head, tail = inner[:axis], inner[axis + 1 :]
        units: list[Unit] = []
        for expert in range(shape[0] if self.experts else 1):
            start = expert * math.prod(inner)
            for part, width in widths.items():
                place = Piece(start, width * below, num_runs, stride)
                if len(widths) == 1 or num_runs == 1:  # neighbouring runs
                    place = Piece(start, place.size, 1, place.size)
                name = self._name(key, first_expert + expert, part)
                whole = (*head, repeats * width, *tail)
                units.append(Unit(name, whole, place))
                start += width * below
        return tuple(units)

    def _widths(self, key: str, size: int) -> tuple[dict[str, int], int]:
        """Return the parts' widths, and how often they come."""
        shares: Any = self.parts or self.widths
        total = sum(shares.values())
        if self.widths:
            if size % total:
                raise ValueError(
                    f"{key}: an axis of {size} is no multiple of widths="
                    f"{dict(shares)}: give those of one group, or shares of "
                    "the axis as parts"
                )
            return dict(shares), size // total
        for part, share in shares.items():
            if size * share % total:
                raise ValueError(
                    f"{key}: an axis of {size} cannot be shared as parts="
                    f"{dict(shares)}: {part} would have no whole number of "
                    "values"
                )
        widths = {part: size * n // total for part, n in shares.items()}
        return widths or {"": size}, 1

    def _name(self, key: str, expert: int, part: str) -> str:
        *head, module, leaf = ["", *key.rsplit(".", 2)][-3:]
        if self.key is not None:
            name = self.key.format(expert=expert, part=part)
        elif self.experts:
            name = ".".join(filter(None, (module, str(expert), part, leaf)))
        else:
            name = f"{part}.{leaf}"
        return ".".join(filter(None, (*head, name)))


Declared: TypeAlias = (
    Mapping[str, Any]
    | Callable[[str, Tensor], "Units | Mapping[str, Any] | None"]
)
"""Pattern of a key (:func:`re.search`) -> units, or a function of key and
parameter that returns them, or None. Units are :class:`Units`, a dict of its
fields, or ``"experts"``."""


def read_units(
    parameters: Iterable[tuple[str, Tensor, bool]],
    declared: Declared | None,
    config: Mapping[str, Any],
    world: Any = None,
) -> dict[str, Units]:
    """Find the parameters that hold units, as ``bind()`` says; return by key.

    A dict counts alone, without the marks of parameters.
    ``parameters`` are key, parameter, and if it is marked as an expert;
    ``config`` is the model's, whose numbers shares and widths may name.
    ``world`` is the group of all ranks, which may hold other parameters.
    """
    patterns = declared if isinstance(declared, Mapping) else {}
    if not (declared is None or patterns is declared or callable(declared)):
        raise TypeError(
            f"units is {declared!r}: give a dict of pattern -> units, such as "
            "{'experts': 'experts'}, or a function of key and parameter"
        )
    unused = dict.fromkeys(patterns)
    found: dict[str, Units] = {}
    failed: Exception | None = None
    try:
        for key, parameter, is_expert in parameters:
            marks = None if patterns is declared else parameter
            units = getattr(marks, MARK, None)
            if callable(declared):
                units = declared(key, parameter) or units
            matching = matching_pattern("units", patterns, key)
            if matching is not None:
                unused.pop(matching, None)
                units = patterns[matching]
            is_stack = parameter.ndim == 3 and (
                is_expert or _GROUPED.search(key)
            )
            if units is None and is_stack:
                units = "experts"
            if units is not None:
                found[key] = as_units(key, units).with_numbers(key, config)
    except Exception as error:
        failed = error  # the others wait below
    if patterns:
        of_ranks = gather(({*unused}, str(failed or "")), world)
        for rank, (_, why) in enumerate(of_ranks):
            if why and failed is None:
                raise ValueError(f"rank {rank} cannot bind: {why}")
        for pattern in sorted(set.intersection(*(x for x, _ in of_ranks))):
            failed = failed or ValueError(
                f"units: {pattern!r} matches no parameter"
            )
    if failed is not None:
        raise failed
    return found


def as_units(key: str, value: Any) -> Units:
    """Read what a caller of ``bind`` or a parameter's mark says."""
    if isinstance(value, Units):
        return value
    if value == "experts":
        return Units(experts=True)
    fields = [field.name for field in dataclasses.fields(Units)]
    if not isinstance(value, Mapping):
        raise TypeError(
            f"units of {key!r} are {value!r}: give 'experts', or a dict of "
            f"{', '.join(fields)}"
        )
    for name in value:
        if name not in fields:
            raise ValueError(
                f"units of {key!r} take {', '.join(fields)}, not {name!r}"
                f"{suggestion(name, fields)}"
            )
    return Units(**value)
