# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The paper's claims, each with the rule that decides it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from paddle_adagc.checks import suggestion
from paddle_adagc.lab.train.parse import read_values

Expectation = Literal[
    "lower", "higher", "no worse", "equal", "zero", "occurs", "at most"
]
SPIKE_EVENTS = "spike_events"
"""The measure that is a rate: events of the 10-sigma spike score with window
1,000, per 1,000 judged steps."""

NUM_PRIMARY = 6


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Condition(_Part):
    """One statement about a measure of an experiment's methods.

    - ``lower`` or ``higher`` than each method in ``to``;
    - ``no worse``: lower than each in ``to`` plus the margin;
    - ``equal``: within the margin of each in ``to``;
    - ``zero``: no event in any run, and fewer than each in ``to``;
    - ``occurs``: at least one event;
    - ``at most`` the ``bound``, for counts, models and timings.
    """

    measure: str
    """A name in the results, such as ``"final_loss"``, or
    :data:`SPIKE_EVENTS`."""

    methods: tuple[str, ...] = Field(min_length=1)
    """Methods that it is about, each of which has to fulfil it."""

    expect: Expectation
    to: tuple[str, ...] = ()
    """Methods to compare with, on the same seeds."""

    margin: float | None = Field(default=None, gt=0)
    """In units of the measure. Default: that of the file's ``margins``; None:
    "no difference" is no possible outcome."""

    times: float | None = Field(default=None, gt=0)
    """The values of ``to`` are multiplied by it: 0.5 asks for half of them."""

    bound: float | None = None
    target: str | None = None
    """Default: the claim's."""

    experiment: str | None = None
    """Default: the claim's."""

    to_experiment: str | None = None
    """Experiment of ``to``, in the same target; default: that of
    ``methods``."""

    @model_validator(mode="after")
    def _check(self) -> Condition:
        has_others = self.expect not in ("occurs", "at most")
        if has_others != bool(self.to):
            raise ValueError(
                f"expect={self.expect!r} "
                + ("needs methods in `to`" if has_others else "takes no `to`")
            )
        if (self.expect == "at most") != (self.bound is not None):
            raise ValueError(
                f"expect={self.expect!r} and bound={self.bound}: `at most` "
                "goes with a bound"
            )
        if self.times and (not self.to or self.measure == SPIKE_EVENTS):
            raise ValueError("times goes with values of methods in `to`")
        if self.expect in ("zero", "occurs") and self.measure != SPIKE_EVENTS:
            raise ValueError(
                f"expect={self.expect!r} is about {SPIKE_EVENTS}, not "
                f"{self.measure}"
            )
        return self


class Claim(_Part):
    """A statement of the paper, or of this project's extensions to it."""

    id: str
    where: str
    """Section, table or figure."""

    claim: str
    """What it says."""

    paper: str = ""
    """The paper's numbers."""

    extension: bool = False
    """It is not the paper's but this project's."""

    primary: bool = False
    """One of the six that were named before running; Holm's correction is over
    these, the others are descriptive."""

    ernie: bool = False
    """It is about ERNIE, and stands on that page, too."""

    target: str | None = None
    """Target that decides it; None: it cannot be tested here."""

    experiment: str | None = None
    """Experiment of the conditions that name none."""

    reproduced_if: tuple[Condition, ...] = ()
    controls: tuple[str, ...] = ()
    """Methods whose rates or values stand beside the evidence."""

    not_testable: str | None = None
    """Why it cannot be tested here."""

    note: str = ""
    """What the rule does not say."""

    @model_validator(mode="after")
    def _check(self) -> Claim:
        if (self.target is None) == (self.not_testable is None):
            raise ValueError("needs either a target or not_testable")
        if (self.target is None) == bool(self.reproduced_if):
            raise ValueError("a target and reproduced_if go together")
        for condition in self.reproduced_if:
            if condition.experiment is None and self.experiment is None:
                raise ValueError(
                    f"the condition on {condition.measure!r} names no "
                    "experiment"
                )
        return self

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """``reproduced_if`` with every target and experiment filled in."""
        return tuple(
            condition.model_copy(
                update={
                    "target": condition.target or self.target,
                    "experiment": condition.experiment or self.experiment,
                }
            )
            for condition in self.reproduced_if
        )


class _File(_Part):
    margins: dict[str, float]
    claims: tuple[Claim, ...] = Field(min_length=1)


def load_claims(path: str | os.PathLike[str]) -> list[Claim]:
    """Read the file of claims, in its order, each condition with its margin.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: No YAML, an unknown or a missing key, a bad value, an id
            that occurs twice, or not six primary claims.
    """
    values = read_values(path)
    try:
        file = _File.model_validate(values)
    except ValidationError as error:
        raise ValueError(f"{path}: {_first_error(error, values)}") from error
    ids = [claim.id for claim in file.claims]
    if len(set(ids)) < len(ids):
        raise ValueError(f"{path} has an id twice: {ids}")
    num_primary = sum(claim.primary for claim in file.claims)
    if num_primary != NUM_PRIMARY:
        raise ValueError(
            f"{path} has {num_primary} primary claims, expected {NUM_PRIMARY}"
        )
    return [_with_margins(claim, file.margins) for claim in file.claims]


def targets_of(claims: Sequence[Claim]) -> list[str]:
    """Targets that decide claims, in the order of the claims."""
    targets = [c.target for claim in claims for c in claim.conditions]
    return [*dict.fromkeys(target for target in targets if target is not None)]


def _with_margins(claim: Claim, margins: dict[str, float]) -> Claim:
    """Give every condition without a margin the claim's."""
    conditions = tuple(
        condition.model_copy(
            update={
                "margin": condition.margin or margins.get(condition.measure)
            }
        )
        for condition in claim.reproduced_if
    )
    return claim.model_copy(update={"reproduced_if": conditions})


def _first_error(error: ValidationError, values: Any) -> str:
    """Put the first error in words, with claim id and nearest key."""
    first = error.errors()[0]
    where = first["loc"]
    name = ""
    if len(where) > 1 and where[0] == "claims" and isinstance(where[1], int):
        claim = values["claims"][where[1]]
        known = claim.get("id") if isinstance(claim, dict) else claim
        name = f"claim {known!r}: "
    if first["type"] == "extra_forbidden":
        kind: type[_Part] = _File if len(where) == 1 else Claim
        if "reproduced_if" in where:
            kind = Condition
        near = suggestion(str(where[-1]), list(kind.model_fields))
        return f"{name}unknown key {where[-1]!r}{near}"
    key = ".".join(str(part) for part in where[2:])
    return f"{name}{key + ': ' if key else ''}{first['msg']}"
