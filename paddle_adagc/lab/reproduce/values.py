# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Values of one method against another's, or against a bound."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paddle_adagc.lab.report.formatting import format_list, two_digits
from paddle_adagc.lab.reproduce.comparison import (
    MIN_SEEDS,
    Comparison,
    p_text,
    without_pairs,
)
from paddle_adagc.lab.reproduce.pool import longest, paired
from paddle_adagc.lab.reproduce.results import CellResult
from paddle_adagc.lab.reproduce.statistics import (
    detectable,
    paired_differences,
    pairs_to_decide,
    sign_flip_p,
)


def compare_values(
    runs: Sequence[CellResult],
    others: Sequence[CellResult],
    fields: Mapping[str, Any],
) -> Comparison:
    """Test the values of two methods, pair by pair."""
    measure, expect, margin = (
        fields[key] for key in ("measure", "expect", "margin")
    )
    pairs = paired(runs, others, measure)
    if not pairs:
        return without_pairs(fields, longest(runs), longest(others))
    values = [
        [pair[side].measures[measure] for pair in pairs] for side in (0, 1)
    ]
    times = fields["times"]
    if times is not None:
        values[1] = [times * value for value in values[1]]
    differences = paired_differences(*values)
    p_for, p_against, p_equal = _value_tests(differences, expect, margin)
    sees = detectable(differences)
    # "No worse" is decided on one side of the margin or on the other.
    open_part = (differences, margin)
    if expect == "no worse":
        open_part = (differences - (margin or 0.0), None)
    n_decides = pairs_to_decide(*open_part, MIN_SEEDS)
    return Comparison(
        **fields,
        keys=tuple(first.run_id for first, _ in pairs),
        other_keys=tuple(second.run_id for _, second in pairs),
        num_seeds=len(pairs),
        p_for=p_for,
        p_against=p_against,
        p_equal=p_equal,
        seeds_to_decide=n_decides,
        detectable=sees if math.isfinite(sees) else None,
        test=f"{fields['method']} minus "
        f"{'' if times is None else f'{times:g} times '}{fields['other']} "
        f"{mean_text(differences)}, {expect}: {p_text(p_for, p_against)}",
    )


def _value_tests(
    differences: np.ndarray, expect: str, margin: float | None
) -> tuple[float, float, float | None]:
    """Test for, against, and of a difference below the margin."""
    within = None
    if margin is not None:
        within = max(
            sign_flip_p(differences - margin, "less"),
            sign_flip_p(differences + margin, "greater"),
        )
    if expect in ("no worse", "equal") and margin is None:
        raise ValueError(f"expect={expect!r} needs a margin")
    if expect == "equal":
        assert within is not None
        assert margin is not None
        beyond = 2 * min(
            sign_flip_p(differences - margin, "greater"),
            sign_flip_p(differences + margin, "less"),
        )
        return within, min(1.0, beyond), None
    if expect == "no worse":
        shifted = differences - (margin or 0.0)
        return (
            sign_flip_p(shifted, "less"),
            sign_flip_p(shifted, "greater"),
            None,
        )
    less, greater = (sign_flip_p(differences, a) for a in ("less", "greater"))
    if expect == "higher":
        return greater, less, within
    return less, greater, within


def bound_of_all_runs(
    runs: Sequence[CellResult], bound: float, fields: Mapping[str, Any]
) -> Comparison:
    """Return a bound that a single run refutes."""
    measure = fields["measure"]
    own = [run for run in longest(runs) if measure in run.measures]
    if not own:
        return without_pairs(fields, own, own)
    values = [run.measures[measure] for run in own]
    is_within = max(values) <= bound
    return Comparison(
        **fields,
        bound=bound,
        keys=tuple(run.run_id for run in own),
        num_seeds=len(own),
        p_for=float(not is_within),
        p_against=float(is_within),
        test=f"{fields['method']} {format_list(values, '.3g')} "
        f"(bound {bound:g})",
    )


def bound_of_numbers(
    numbers: Sequence[float], bound: float, fields: Mapping[str, Any]
) -> Comparison:
    """Return a bound of one number, or of the mean of repetitions."""
    label = fields["method"]
    margin = fields["margin"]
    common = {**fields, "bound": bound, "values": tuple(numbers)}
    if len(numbers) > 1:
        differences = np.array(numbers) - bound
        p = sign_flip_p(differences, "less")
        return Comparison(
            **common,
            p_for=p,
            p_against=sign_flip_p(differences, "greater"),
            test=f"{label} {statistics.fmean(numbers):.4g} on average of "
            f"{len(numbers)} repetitions (bound {bound:g}), p {p:.3g}",
        )
    excess = numbers[0] - bound
    is_close = margin is not None and abs(excess) <= margin
    return Comparison(
        **common,
        p_for=float(excess > 0 or is_close),
        p_against=float(excess <= 0 or is_close),
        p_equal=float(not is_close),
        test=f"{label} {numbers[0]:.4g} (bound {bound:g})",
    )


def mean_text(differences: np.ndarray) -> str:
    """``"-0.0073 ± 0.0039"``: mean and sample standard deviation."""
    mean = statistics.fmean(differences)
    if len(differences) < 2 or not np.isfinite(differences).all():
        return f"{mean:+.4g}"
    return f"{mean:+.4g} ± {two_digits(statistics.stdev(differences))}"
