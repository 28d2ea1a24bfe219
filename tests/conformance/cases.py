# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write cases.json: sequences of gradients, and what Algorithm 1 gives.

The algorithm stands in the appendix of arXiv 2502.11034. The answers are
computed here in float64, one clause after the other.
"""

import json
import math
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("cases.json")
SHAPES = {"a": (4,), "b": (3,), "c": (2,)}
PAPER = {"lambda_rel": 1.05, "beta": 0.9, "lambda_abs": 1.0, "t_start": 4}
WARM_UP = [[0.5, 0.6, 0.2], [0.4, 0.5, 0.4], [0.5, 0.4, 0.3], [0.6, 0.5, 0.2]]
"""Norms of a, b and c in each step; their global norm is below 1."""

CALM = [[0.4, 0.5, 0.3], [0.35, 0.6, 0.25], [0.45, 0.4, 0.3]]


def adagc(arguments, steps):
    """What each step gives: h and gamma. What comes out is ``h g``.

    Gradients are float64 arrays by name; None is a missing one. A norm that is
    zero or not finite is no observation, and a gradient that is not finite
    becomes zero. A tensor without gamma after the warm-up starts from its norm.
    """
    gamma, answers = {}, []
    for t, gradients in enumerate(steps):
        norms = {
            name: np.sqrt(np.sum(g * g))
            for name, g in gradients.items()
            if g is not None
        }
        seen = {n: x for n, x in norms.items() if 0 < x < math.inf}
        is_warm_up = t < arguments["t_start"]
        total = math.sqrt(sum(x * x for x in seen.values()))  # line 6
        h = {}
        for name, norm in norms.items():
            if name not in seen:
                h[name] = 1.0 if norm == 0 else 0.0
                continue
            known = gamma.get(name, math.inf)
            if is_warm_up:
                h[name] = min(arguments["lambda_abs"] / total, 1.0)
                gamma[name] = min(known, h[name] * norm)  # line 9
                continue
            h[name] = min(arguments["lambda_rel"] * known / norm, 1.0)  # 13
            if math.isinf(known):
                known = norm
            beta = arguments["beta"]
            gamma[name] = beta * known + (1 - beta) * h[name] * norm  # 15
        answers.append({"h": h, "gamma": {**gamma}})
    return answers


def case(name, norms, change=None, **more):
    """A case: gradients of these norms, and what is said about it.

    ``change`` is (step, tensor, value): None, or a number for one entry.
    """
    arguments = {**PAPER, **more.pop("arguments", {})}
    draw, steps = np.random.default_rng(len(name)), []
    for row in norms:
        gradients = {}
        for (key, shape), norm in zip(SHAPES.items(), row, strict=True):
            gradients[key] = None
            if norm is not None:
                direction = draw.normal(size=shape)
                g = norm * direction / np.linalg.norm(direction)
                gradients[key] = np.round(g, 4)
        steps.append(gradients)
    if change:
        t, key, value = change
        steps[t][key].flat[1] = value
    found = {"name": name, "arguments": arguments, "num_ranks": 1, **more}
    return {**found, "steps": steps, "answers": adagc(arguments, steps)}


def all_cases():
    """The cases; those that are ``open`` the paper's algorithm leaves open."""
    outlier, low = [0.4, 5.0, 0.3], [0.1, 0.12, 0.08]
    usual = [*WARM_UP, *CALM, outlier, *CALM, low, *CALM]
    large = (4.0 * np.array(usual)).tolist()
    late = [[a, b, None] for a, b, _ in usual[:6]] + usual[6:]
    empty = [0.4, 0.0, 0.3]
    bad = [[0.9, 1e6, 0.5], *WARM_UP[1:], *CALM, *CALM]
    two = {"num_ranks": 2}
    return [
        case("the warm-up clips by the global norm", large),
        case("the warm-up ends before step t_start", usual),
        case("lambda_abs below 1", usual, arguments={"lambda_abs": 0.5}),
        case("lambda_abs above all norms", large,
             arguments={"lambda_abs": 100.0}),
        case("outliers of one tensor", [*usual, *[outlier] * 4, *CALM]),
        case("gamma follows smaller norms", [*WARM_UP, *[low] * 5, *CALM]),
        case("a warm-up step unlike the others, to the letter", bad),
        case("no warm-up", usual, arguments={"t_start": 0}, open=True),
        case("zero norm in the warm-up",
             [WARM_UP[0], empty, *WARM_UP[1:], *CALM], open=True),
        case("zero norm after the warm-up",
             [*WARM_UP, *[empty] * 3, *CALM, outlier], open=True),
        case("a tensor that comes late", late, open=True),
        case("Inf in the warm-up", usual, (1, "a", math.inf), open=True),
        case("NaN after the warm-up", usual, (6, "c", math.nan), open=True),
        case("saved and resumed in the warm-up", usual, resume_after=2),
        case("saved and resumed after it", usual, resume_after=8),
        case("a tensor split over two ranks", usual, split=["a"], **two),
        case("tensors with copies on two ranks", usual, **two),
        case("experts, one on each of two ranks", usual,
             experts={"b": 0, "c": 1}, **two),
    ]  # fmt: skip


def to_json(value):
    """Return arrays as lists, numbers with eight digits."""
    if isinstance(value, dict):
        return {key: to_json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [to_json(one) for one in value]
    if isinstance(value, np.ndarray):
        return to_json(value.tolist())
    return float(f"{value:.8g}") if isinstance(value, float) else value


if __name__ == "__main__":
    lines = [json.dumps(to_json(one)) for one in all_cases()]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n")
