# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kit finds planted errors; ours and other rules are held against it."""

import functools
import inspect
import math

import backends
import numpy as np
import paddle
import pytest
from conformance import cases, kit, runs
from core.parallel.ranks import run_on_ranks
from reference import upstream_cases

from paddle_adagc import ClipGradByAdaGC

LETTER = "a warm-up step unlike the others, to the letter"


def verdicts(run):
    return {name: verdict for name, verdict, _ in kit.check(run)}


def answer(case, adagc, sums=True):
    """Run a twin; without ``sums`` each rank for itself."""
    ranks = []
    for rank in range(1 if sums else case.num_ranks):
        steps = case.steps if sums else case.on_rank(rank)
        found = zip(steps, adagc(case.arguments, steps), strict=True)
        ranks.append([(clipped(g, one["h"]), one["gamma"]) for g, one in found])
    return ranks[0] if sums else case.joined(ranks)


def clipped(gradients, h):
    return {k: h[k] * np.nan_to_num(gradients[k], posinf=0.0) for k in h}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("", ""),
        ('t < arguments["t_start"]', 't <= arguments["t_start"]'),
        ('t < arguments["t_start"]', 't + 1 < arguments["t_start"]'),
        ('arguments["lambda_abs"] / total', "1.0 / total"),
        ("min(known, h[name] * norm)", "min(known, norm)"),
        ("min(known, h[name] * norm)", "h[name] * norm"),
        ("(1 - beta) * h[name] * norm", "(1 - beta) * norm"),
        ("beta * known + (1 - beta)", "(1 - beta) * known + beta"),
        ("if 0 < x < math.inf", "if 0 <= x < math.inf"),
        ("if 0 < x < math.inf", "if x != 0"),
        ("split", "not summed"),
    ],
)
def test_a_planted_error_fails_a_case(right, wrong):
    """Without one all answers are those of the algorithm."""
    source = inspect.getsource(cases.adagc)
    sums = right != "split"
    if sums:
        assert right in source
        source = source.replace(right, wrong)
    names = {"np": np, "math": math}
    exec(source, names)
    run = functools.partial(answer, adagc=names["adagc"], sums=sums)
    assert ({*verdicts(run).values()} == {"holds"}) == (right == "")


@pytest.fixture
def default_dtype(request):
    """Paddle's, which nothing follows."""
    paddle.set_default_dtype(request.param)
    yield
    paddle.set_default_dtype("float32")


@pytest.mark.parametrize(
    ("backend", "strict", "default_dtype"),
    [
        ("host", False, "float64"),
        ("operators", False, "bfloat16"),
        ("cuda", False, "float32"),
        ("host", True, "float32"),
    ],
    indirect=["default_dtype"],
)
@pytest.mark.filterwarnings("ignore:.*leave the warm-up with gamma below")
def test_ours(backend, strict, default_dtype, monkeypatch):
    backends.use(backend, monkeypatch)
    found = verdicts(functools.partial(runs.ours, strict=strict))
    names = [name for name, verdict in found.items() if verdict != "holds"]
    assert names[-3:] == [*found][-3:]  # of two ranks
    assert names[:-3] == ([] if strict else [LETTER])


@pytest.mark.slow
@pytest.mark.parametrize("has_experts", [False, True])
def test_ours_on_two_ranks(has_experts):
    two = [case for case in kit.read_cases() if case.num_ranks == 2]
    two = [case for case in two if bool(case.experts) == has_experts]
    ranks = run_on_ranks(runs.on_two_ranks, 2, cases=two)
    for case, found in zip(two, zip(*ranks, strict=True), strict=True):
        assert kit.first_difference(case, case.joined(found)) == ""


def test_the_rules_of_ernie_and_paddle():
    for run, of_ranks in (
        (runs.ernie, {"tensors with copies on two ranks": "holds",
                      "a tensor split over two ranks": "holds"}),
        (runs.paddle_develop, {"tensors with copies on two ranks": "differs",
                               "a tensor split over two ranks": "differs"}),
    ):  # fmt: skip
        assert verdicts(run) == {
            "the warm-up clips by the global norm": "differs",
            runs.ENDS: "differs",
            "lambda_abs below 1": "differs",
            "lambda_abs above all norms": "differs",
            "outliers of one tensor": "holds",
            "gamma follows smaller norms": "holds",
            LETTER: "differs",
            "no warm-up *": "not run",
            "zero norm in the warm-up *": "differs",
            "zero norm after the warm-up *": "differs",
            "a tensor that comes late *": "holds",
            "Inf in the warm-up *": "differs",
            "NaN after the warm-up *": "differs",
            "saved and resumed in the warm-up": "holds",
            "saved and resumed after it": "holds",
            "experts, one on each of two ranks": "not run",
            **of_ranks,
        }


@pytest.mark.parametrize(
    "case",
    [
        upstream_cases.keeps_exempt_pairs,
        upstream_cases.clips_bfloat16,
        upstream_cases.reads_no_value,
        upstream_cases.clips_each_expert,
    ],
)
def test_the_cases_to_hand_over(case, monkeypatch):
    backends.use("operators", monkeypatch)
    case(ClipGradByAdaGC(t_start=2))
