# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The paper's claims, each with the rule that decides it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import dacite
from omegaconf import OmegaConf

from paddle_adagc.checks import check_choice, check_positive
from paddle_adagc.lab.reproduce.grid_file import check_keys

SEEDS = ("every", "most", "any", "mean")
ALPHA = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Condition:
    """One statement about measures of an experiment's methods.

    Exactly one of four kinds:

    - ``min`` or ``max``: a bound on ``methods``' values, seed by seed
      (``seeds``: in ``every`` seed, in ``most``, in ``any``, or their
      ``mean``);
    - ``below`` or ``above`` another method: the mean of the paired differences
      has that sign, and the one-sided exact sign-flip test gives a p of at
      most ``p``; too few seeds for such a p leave it open. With a ``margin``
      the values may be on the other side by less than that ("no worse");
    - ``lowest_of``: the mean of the one method in ``methods`` is the lowest,
      and below that of each of these others by the same test;
    - ``range``: the means of ``methods`` differ by at most this share of the
      lowest.
    """

    measure: str
    """A name in the results, such as ``"spikes_1000"``."""

    methods: list[str]
    """Methods that it is about, each of which has to fulfil it."""

    experiment: str | None = None
    """Default: the claim's."""

    min: float | None = None
    max: float | None = None
    seeds: str = "every"
    below: str | None = None
    above: str | None = None
    margin: float = 0.0
    """For ``below`` and ``above``, in units of the measure."""

    lowest_of: list[str] | None = None
    range: float | None = None
    p: float = ALPHA

    def __post_init__(self) -> None:
        check_choice("seeds", self.seeds, SEEDS)
        if not self.methods:
            raise ValueError("methods is empty")
        if not 0 < check_positive("p", self.p) <= 1:
            raise ValueError(f"p={self.p} is above 1")
        given = [
            self.min is not None or self.max is not None,
            self.below is not None,
            self.above is not None,
            self.lowest_of is not None,
            self.range is not None,
        ]
        if sum(given) != 1:
            raise ValueError(
                f"a condition on {self.measure!r} needs one of min/max, "
                "below, above, lowest_of and range"
            )
        if self.lowest_of is not None and len(self.methods) != 1:
            raise ValueError(
                f"methods={self.methods}: lowest_of is about one method"
            )
        if self.margin and not (self.below or self.above):
            raise ValueError(f"margin={self.margin} goes with below and above")
        if self.margin:
            check_positive("margin", self.margin)
        if self.seeds != "every" and not given[0]:
            raise ValueError(f"seeds={self.seeds!r} goes with min and max")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
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

    target: str | None = None
    """Target that decides it; None: it cannot be tested here."""

    experiment: str | None = None
    """Experiment of the conditions that name none."""

    testable_if: list[Condition] = dataclasses.field(default_factory=list)
    """Where these do not hold there is nothing to see: a baseline that does
    not spike cannot be improved on."""

    reproduced_if: list[Condition] = dataclasses.field(default_factory=list)
    not_testable: str | None = None
    """Why it cannot be tested here."""

    note: str = ""
    """What the rule does not say."""

    def __post_init__(self) -> None:
        if (self.target is None) == (self.not_testable is None):
            raise ValueError(
                f"claim {self.id!r} needs either a target or not_testable"
            )
        if (self.target is None) == bool(self.reproduced_if):
            raise ValueError(
                f"claim {self.id!r}: a target and reproduced_if go together"
            )
        for condition in (*self.testable_if, *self.reproduced_if):
            if condition.experiment is None and self.experiment is None:
                raise ValueError(
                    f"claim {self.id!r}: the condition on "
                    f"{condition.measure!r} names no experiment"
                )


def load_claims(path: str | os.PathLike[str]) -> list[Claim]:
    """Read the file of claims, in its order.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: An unknown or a missing key, a bad value, or an id that
            occurs twice.
    """
    values = OmegaConf.to_container(OmegaConf.load(Path(path)), resolve=True)
    parts = values.get("claims", []) if isinstance(values, dict) else []
    claims = []
    for part in parts:
        check_keys(part, Claim, path)
        for key in ("testable_if", "reproduced_if"):
            for condition in part.get(key, []):
                check_keys(condition, Condition, path)
        try:
            claims.append(
                dacite.from_dict(
                    Claim, part, dacite.Config(strict=True, cast=[float])
                )
            )
        except (dacite.DaciteError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
    ids = [claim.id for claim in claims]
    if not ids or len(set(ids)) < len(ids):
        raise ValueError(f"{path} has no claims, or an id twice: {ids}")
    return claims


def targets_of(claims: Sequence[Claim]) -> list[str]:
    """Targets that decide claims, in the order of the claims."""
    targets = [claim.target for claim in claims if claim.target is not None]
    return [*dict.fromkeys(targets)]
