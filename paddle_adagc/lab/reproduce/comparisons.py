# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a condition to its comparisons."""

from __future__ import annotations

from typing import Any

from paddle_adagc.lab.reproduce.claims import SPIKE_EVENTS, Condition
from paddle_adagc.lab.reproduce.comparison import Comparison, Source
from paddle_adagc.lab.reproduce.rates import compare_events, occurrence
from paddle_adagc.lab.reproduce.values import (
    bound_of_all_runs,
    bound_of_numbers,
    compare_values,
)


def compare(condition: Condition, source: Source) -> list[Comparison]:
    """Test a condition: each of its methods against each in ``to``."""
    target, experiment = condition.target or "", condition.experiment or ""
    found = []
    for method in condition.methods:
        common: dict[str, Any] = {
            "experiment": experiment,
            "measure": condition.measure,
            "expect": condition.expect,
            "method": method,
            "margin": condition.margin,
            "times": condition.times,
        }
        runs = source.runs(target, experiment, method)
        if condition.expect == "at most":
            bound = condition.bound or 0.0
            numbers = source.numbers(
                target, experiment, method, condition.measure
            )
            found.append(
                bound_of_numbers(numbers, bound, common)
                if numbers
                else bound_of_all_runs(runs, bound, common)
            )
            continue
        if condition.expect == "occurs":
            found.append(occurrence(runs, common))
        for other in condition.to:
            others = source.runs(
                target, condition.to_experiment or experiment, other
            )
            fields = {**common, "other": other}
            if condition.to_experiment:
                fields["other"] = f"{other} ({condition.to_experiment})"
            if condition.measure == SPIKE_EVENTS:
                found.append(compare_events(runs, others, fields))
            else:
                found.append(compare_values(runs, others, fields))
    return found
