# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What AdaGC costs in a calm run, and why.

Two recipes at CPU size, nothing injected: Mixtral's, where gamma starts too
low, and ERNIE's, whose routed experts get few tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from adagc_lab.markdown import markdown_table
from adagc_lab.record.files import RunRecord
from adagc_lab.report.drawings import Chart, Line, charts_svg, method_colors
from adagc_lab.studies import Records, Study, StudyRun, rounded

BIN = 100
FIRST_BIN = 2
"""From which curves are drawn: before, the clips hardly differ."""

EXPERT = ".experts."
"""In the name of each routed expert's tensors, and of no other."""

GROUPS = ("routed experts", "others")
TOGETHER = "routed experts of a layer, as one tensor"
_EMA = "clip.init=warmup_ema"
_WIDER = "clip.overrides={{'{}': {{lambda_rel: 2.0}}}}"
METHODS: Mapping[str, Sequence[str]] = {
    "GlobalGC": ["clip.name=global_norm"],
    "AdaGC": [],
    "warmup_ema": [_EMA],
    "experts at 2": [_EMA, _WIDER.format("[.]experts[.]")],
    "others at 2": [_EMA, _WIDER.format("^(?!.*[.]experts[.])")],
}
"""The last two: warmup_ema with lambda_rel 2 for some tensors."""

RECIPES = {
    "Mixtral": ("mixtral_8x1b/adagc.yaml", [*METHODS][:3]),
    "ERNIE": ("ernie_10b_a1.4b/adagc.yaml", [*METHODS]),
}
SPREADS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
LAMBDA_REL = 1.04


def course(run: RunRecord, study_run: StudyRun) -> dict[str, Any]:
    """Loss by bins of BIN steps, and by groups of tensors what the clip did.

    Of a group's tensors the median: ``spread`` is the standard deviation of the
    norm's logarithm within a bin; ``gamma`` is the last one over the mean norm;
    ``clipped`` is the share of the steps.
    """
    norm, gamma = (_bins(run.tensors[name]) for name in ("norm", "gamma"))
    numbers = {
        "spread": _spread(norm),
        "gamma": gamma[:, -1] / norm.mean(1),
        "clipped": _bins(run.h < 1).mean(1),
    }
    is_expert = np.array([EXPERT in name for name in run.tensor_names])
    joined = [re.sub(r"(?<=\.experts)\.\d+", "", n) for n in run.tensor_names]
    together = np.stack(
        [
            np.sqrt(np.square(norm[..., np.array(joined) == name]).sum(-1))
            for name in sorted({*np.array(joined)[is_expert]})
        ],
        axis=-1,
    )
    losses = run.metrics["eval_loss"]
    recipe, _, clip = study_run.name.partition(" ")
    return {
        **{"recipe": recipe, "clip": clip},
        "mean_loss": rounded(_bins(run.loss).mean(1)),
        "validation_loss": rounded(losses[np.isfinite(losses)][-1:])[0],
        **{
            group: {
                name: rounded(np.nanmedian(table[:, is_one], axis=1))
                for name, table in numbers.items()
                if not np.isnan(table).all()
            }
            for group, is_one in zip(
                GROUPS, (is_expert, ~is_expert), strict=True
            )
        },
        TOGETHER: {"spread": rounded(np.median(_spread(together), axis=1))},
    }


def _bins(table: np.ndarray) -> np.ndarray:
    """Cut ``[num_steps, ...]`` into ``[num_bins, BIN, ...]``."""
    num_bins = len(table) // BIN
    kept = table[: num_bins * BIN].astype(float)
    return kept.reshape(num_bins, BIN, *table.shape[1:])


def _spread(norm: np.ndarray) -> np.ndarray:
    """Standard deviation of the logarithm within each bin, without zeros."""
    with np.errstate(divide="ignore"):
        logs = np.log(norm)
    return np.nanstd(np.where(np.isfinite(logs), logs, np.nan), axis=1)


def fixed_point(spread: float) -> tuple[float, float]:
    """Where gamma settles if a norm only varies, and what is then clipped.

    The norm is log-normal. gamma is that of Algorithm 1 line 15 in the mean:
    the mean of ``min(norm, lambda_rel * gamma)``.

    Args:
        spread: Standard deviation of the norm's logarithm.

    Returns:
        gamma over the mean norm, and the share of the steps that are clipped.
    """
    places = (np.arange(20_000) + 0.5) / 20_000
    normal = np.array([NormalDist().inv_cdf(place) for place in places])
    norm = np.exp(spread * normal)
    low, high = 0.0, float(norm.max())
    for _ in range(60):  # where min(norm, lambda_rel * gamma) has mean gamma
        gamma = (low + high) / 2
        if np.minimum(norm, LAMBDA_REL * gamma).mean() > gamma:
            low = gamma
        else:
            high = gamma
    is_clipped = norm > LAMBDA_REL * gamma
    return gamma / float(norm.mean()), float(is_clipped.mean())


def tables(records: Records) -> dict[str, str]:
    """Where gamma settles; how norms vary; what the clips did, and its price.

    Measures are medians of the second half of a run.
    """
    points = [(spread, *fixed_point(spread)) for spread in SPREADS]
    settled = [[f"{s:g}", f"{g:.2f}", f"{c:.0%}"] for s, g, c in points]
    spreads, costs = [], []
    for recipe in RECIPES:
        runs = _of(records, recipe)
        base = runs["GlobalGC"]
        groups = (*GROUPS, TOGETHER)
        cells = [f"{_late(base, group, 'spread'):.2f}" for group in groups]
        spreads.append([recipe, *cells])
        for clip, run in runs.items():
            if clip != "GlobalGC":
                price = run["validation_loss"] - base["validation_loss"]
                cells = [
                    cell
                    for group in GROUPS
                    for cell in (
                        f"{_late(run, group, 'gamma'):.2f}",
                        f"{_late(run, group, 'clipped'):.0%}",
                    )
                ]
                costs.append([recipe, clip, *cells, f"{price:+.4f}"])
    numbers = ["gamma / mean norm", "clipped"]
    named = [f"{group}: {name}" for group in GROUPS for name in numbers]
    price = "validation loss over GlobalGC's (nat)"
    return {
        "settled": markdown_table(["spread", *numbers], settled, left=0),
        "spreads": markdown_table(["spread", *GROUPS, TOGETHER], spreads),
        "costs": markdown_table(
            ["recipe", "clip", *named, price], costs, left=2
        ),
    }


def _late(run: Mapping[str, Any], group: str, name: str) -> float:
    values = run[group][name]
    return float(np.median(values[len(values) // 2 :]))


def figures(records: Records) -> dict[str, str]:
    """Loss over GlobalGC's, and gamma over the mean norm, of both recipes."""
    return {
        f"price-{recipe.lower()}.svg": _figure(recipe, _of(records, recipe))
        for recipe in RECIPES
    }


def _of(records: Records, recipe: str) -> dict[str, Mapping[str, Any]]:
    return {r["clip"]: r for r in records if r["recipe"] == recipe}


def _figure(recipe: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
    colors = method_colors(runs)
    base = np.array(runs["GlobalGC"]["mean_loss"])
    clips = {name: run for name, run in runs.items() if name != "GlobalGC"}

    def chart(label: str, values: Mapping[str, np.ndarray]) -> Chart:
        return Chart(
            label=label,
            lines=[
                Line(label=name, color=colors[name], values=row[FIRST_BIN:])
                for name, row in values.items()
            ],
            start=FIRST_BIN * BIN + BIN // 2,
            every=BIN,
        )

    losses = {n: np.array(r["mean_loss"]) - base for n, r in clips.items()}
    rows = [[chart("loss over GlobalGC's (nat)", losses)]]
    rows += [
        [
            chart(
                f"gamma over the mean norm, {group}",
                {n: np.array(r[group]["gamma"]) for n, r in clips.items()},
            )
        ]
        for group in GROUPS
    ]
    return charts_svg(f"One seed of {recipe}'s recipe at CPU size", rows)


PRICE = Study(
    name="price",
    runs=[
        StudyRun(
            f"{recipe} {name}",
            config,
            ["data.validation_size=2048", "train.eval_every=0", *METHODS[name]],
        )
        for recipe, (config, names) in RECIPES.items()
        for name in names
    ],
    course=course,
    tables=tables,
    figures=figures,
)
