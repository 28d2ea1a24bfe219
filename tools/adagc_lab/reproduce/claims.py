# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The paper's claims, each with the rule that decides it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator
from typing_extensions import Self

from adagc_lab.report.measures import run_measures
from adagc_lab.reproduce.prediction import WRONG
from adagc_lab.reproduce.results import SPIKE_EVENTS
from adagc_lab.section import Flag, Positive, Real, section
from adagc_lab.train.parse import read_values
from paddle_adagc.checks import suggestion

Expectation = Literal[
    "lower", "higher", "no worse", "equal", "zero", "occurs", "at most"
]
NUM_PRIMARY = 6
MEASURES = (
    SPIKE_EVENTS,
    *(measure.name for measure in run_measures()),
    "percent_of_global_gc",
    *("end_loss", "excess_area_global", "mean_loss", WRONG),
    "predicted_percent_of_saved",
    "gamma_percent_of_weights",
    "global_gc_us",
    "adagc_us",
    "adagc_minus_global_gc_us",
)
"""Of runs, of :mod:`adagc_lab.reproduce.timing`, and what
:func:`adagc_lab.reproduce.results.with_derived` adds."""


@section
class Condition:
    """One statement about a measure of an experiment's methods.

    - ``lower`` or ``higher`` than each method in ``to``;
    - ``no worse``: lower than each in ``to`` plus the margin;
    - ``equal``: within the margin of each in ``to``;
    - ``zero``: no event in any run, and fewer than each in ``to``; with an
      event it is judged whether they are at least fewer;
    - ``occurs``: at least one event;
    - ``at most`` the ``bound``, for counts, models and timings.
    """

    measure: str
    """A name in the results, such as ``"final_loss"``, or
    :data:`SPIKE_EVENTS`."""

    methods: Annotated[tuple[str, ...], Field(min_length=1)]
    """Methods that it is about, each of which has to fulfil it."""

    expect: Expectation
    to: tuple[str, ...] = ()
    """Methods to compare with, on the same seeds."""

    margin: Positive | None = None
    """In units of the measure; of spike events the factor between two rates,
    with ``occurs`` the rate per 1,000 steps that denies it. Default: that of
    the file's ``margins``; None: "no difference" is no possible outcome."""

    times: Positive | None = None
    """The values of ``to`` are multiplied by it: 0.5 asks for half of them,
    without a margin."""

    bound: Real | None = None
    target: str | None = None
    """Default: the claim's."""

    experiment: str | None = None
    """Default: the claim's."""

    to_experiment: str | None = None
    """Experiment of ``to``, in the same target; default: that of
    ``methods``."""

    own_seeds: Flag = False
    """Default: the claim's."""

    @model_validator(mode="after")
    def _check(self) -> Self:
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


@section
class Claim:
    """A statement of the paper, or of this project's extensions to it."""

    id: str
    where: str
    """Section, table or figure."""

    claim: str
    """What it says."""

    paper: str = ""
    """The paper's numbers."""

    extension: Flag = False
    """It is not the paper's but a test of this project's own."""

    primary: Flag = False
    """One of the six that were named before running; Holm's correction is over
    these, the others are descriptive."""

    target: str | None = None
    """Target that decides it; None: it cannot be tested here."""

    experiment: str | None = None
    """Experiment of the conditions that name none."""

    reproduced_if: tuple[Condition, ...] = ()
    exercised_if: tuple[Condition, ...] = ()
    """What the control has to show before the claim says anything."""

    control_is_calm: Flag = False
    """The paper's control has no event, either: zero against zero is then no
    difference, as there, and not a control that failed to spike."""

    own_seeds: Flag = False
    """Only runs on the seeds of its experiments count: runs of the same config
    on other seeds were known when it was written."""

    controls: tuple[str, ...] = ()
    """Methods whose rates or values stand beside the evidence."""

    not_testable: str | None = None
    """Why it cannot be tested here."""

    note: str = ""
    """What the rule does not say."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.target is None) == (self.not_testable is None):
            raise ValueError("needs either a target or not_testable")
        if (self.target is None) == bool(self.reproduced_if):
            raise ValueError("a target and reproduced_if go together")
        for condition in (*self.reproduced_if, *self.exercised_if):
            check_measure(condition.measure)
            if condition.experiment is None and self.experiment is None:
                raise ValueError(
                    f"the condition on {condition.measure!r} names no "
                    "experiment"
                )
        return self

    @property
    def conditions(self) -> list[Condition]:
        """``reproduced_if`` with every target and experiment filled in."""
        return [*map(self._filled, self.reproduced_if)]

    @property
    def premises(self) -> list[Condition]:
        """``exercised_if``, filled in likewise."""
        return [*map(self._filled, self.exercised_if)]

    def _filled(self, condition: Condition) -> Condition:
        return dataclasses.replace(
            condition,
            target=condition.target or self.target,
            experiment=condition.experiment or self.experiment,
            own_seeds=condition.own_seeds or self.own_seeds,
        )


@section
class Curves:
    """The READMEs' picture: losses of all seeds of an experiment."""

    file: str
    title: str
    target: str
    experiment: str
    methods: Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]


def check_measure(name: str) -> None:
    """Raise a ValueError if nothing has a measure of that name."""
    if name not in MEASURES:
        raise ValueError(
            f"there is no measure {name!r}{suggestion(name, MEASURES)}"
        )


@section
class _File:
    """What ``configs/claims.yaml`` holds."""

    margins: dict[str, Real]
    claims: Annotated[list[dict[str, Any]], Field(min_length=1)]
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    curves: Curves | None = None


class Rules(NamedTuple):
    """Claims, names of experiments on the two-minute page, and the picture."""

    claims: Sequence[Claim]
    labels: Mapping[str, str] = MappingProxyType({})
    """``target/experiment`` -> short name."""

    curves: Curves | None = None


def load_claims(path: str | os.PathLike[str]) -> Rules:
    """Read the file of claims; errors name the claim."""
    values = read_values(path)
    try:
        file = _File(**values)
        claims = [_read_claim(c, file.margins) for c in file.claims]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    ids = [claim.id for claim in claims]
    if len(set(ids)) < len(ids):
        raise ValueError(f"{path} has an id twice: {ids}")
    num_primary = sum(claim.primary for claim in claims)
    if num_primary != NUM_PRIMARY:
        raise ValueError(
            f"{path} has {num_primary} primary claims, expected {NUM_PRIMARY}"
        )
    return Rules(claims, file.labels, file.curves)


def _read_claim(values: dict[str, Any], margins: dict[str, float]) -> Claim:
    """Make a claim; conditions without a margin get that of their measure."""
    try:
        claim = Claim(**values)
    except ValueError as error:
        raise ValueError(f"claim {values.get('id')!r}: {error}") from error
    rules: dict[str, Any] = {
        name: _with_margins(getattr(claim, name), margins)
        for name in ("reproduced_if", "exercised_if")
    }
    return dataclasses.replace(claim, **rules)


def _with_margins(
    parts: Sequence[Condition], margins: dict[str, float]
) -> tuple[Condition, ...]:
    return tuple(
        dataclasses.replace(p, margin=p.margin or margins.get(p.measure))
        for p in parts
    )


def targets_of(claims: Sequence[Claim]) -> list[str]:
    """Targets that decide claims, in the order of the claims."""
    targets = (
        c.target
        for claim in claims
        for c in (*claim.conditions, *claim.premises)
    )
    return [*filter(None, dict.fromkeys(targets))]
