# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the optimizers refuse."""

import inspect

import paddle
import pytest
from core.optimizers.runs import make_weights, run
from helpers import make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.optimizers.lion import Lion
from paddle_adagc.optimizers.muon import Muon
from paddle_adagc.optimizers.spam import SPAM
from paddle_adagc.optimizers.stable_adamw import StableAdamW
from paddle_adagc.optimizers.update_clips import (
    AGC,
    ClippedAdamW,
    Clippy,
    RMSClip,
)


def test_sparse_gradients_are_refused():
    embedding = paddle.nn.Embedding(4, 3, sparse=True)
    optimizer = Lion(0.01, parameters=embedding.parameters())
    embedding(paddle.to_tensor([1, 2])).sum().backward()
    with pytest.raises(TypeError, match="sparse=False"):
        optimizer.step()


@pytest.mark.parametrize(
    ("make_wrong", "match"),
    [
        (lambda p: Lion(0.1, beta1=1.0, parameters=p), "beta1.*1.0"),
        (lambda p: Lion(0.1, weight_decay=-1.0, parameters=p), "-1.0"),
        (lambda p: Lion(0.1, parameters=[{"params": p, "beta3": 1}]), "beta"),
        (
            lambda p: Lion(0.1, parameters=[{"params": p, "beta1": 2.0}]),
            "beta1.*2.0",
        ),
        (lambda p: Muon(0.1, scaling="moonlight", parameters=p), "spectral"),
        (lambda p: Muon(0.1, num_iterations=0, parameters=p), "at least 1"),
        (lambda p: Muon(0.1, momentum=1.5, parameters=p), "momentum.*1.5"),
        (lambda p: SPAM(0.1, clip_start=500, parameters=p), "clip_start=500"),
        (lambda p: SPAM(0.1, epsilon=0.0, parameters=p), "epsilon.*0.0"),
        (lambda p: AGC(form="papers"), "did you mean 'paper'"),
        (lambda p: AGC(form="paper", epsilon=0.1), "epsilon=0.1"),
        (lambda p: Clippy(lambda_abs=0.0), "lambda_abs.*0.0"),
        (lambda p: RMSClip(threshold=-1.0), "threshold.*-1.0"),
    ],
)
def test_wrong_arguments_are_refused(make_wrong, match):
    with pytest.raises(ValueError, match=match):
        make_wrong(make_parameters([[2]]))


def test_wrong_types_are_refused():
    with pytest.raises(TypeError, match="no clip of updates"):
        ClippedAdamW(0.1, ClipGradByAdaGC(), parameters=make_parameters([[2]]))
    with pytest.raises(TypeError, match="warmup_steps"):
        SPAM(0.1, warmup_steps=1.5, parameters=make_parameters([[2]]))


def test_static_graphs_are_refused():
    parameters = make_parameters([[2]])
    paddle.enable_static()
    try:
        with pytest.raises(RuntimeError, match="disable_static"):
            Lion(0.1, parameters=parameters)
    finally:
        paddle.disable_static()


def test_muon_refuses_a_vector_as_a_matrix():
    parameters = make_weights()
    optimizer = Muon(
        0.01, parameters=parameters, is_matrix_fun=lambda name: True
    )
    with pytest.raises(ValueError, match=r"\[6\].*matrices alone"):
        run(optimizer, parameters, range(1))


@pytest.mark.parametrize(
    ("make", "defaults"),
    [
        (Lion, {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0}),
        (Muon, {"momentum": 0.95, "num_iterations": 5, "weight_decay": 0.1}),
        (
            SPAM,
            {
                "threshold": 5000.0,
                "reset_interval": 500,
                "warmup_steps": 150,
                "clip_start": 20,
            },
        ),
        (
            StableAdamW,
            {
                "beta1": 0.9,
                "beta2": 0.99,
                "epsilon": 1e-6,
                "weight_decay": 0.01,
            },
        ),
        (
            ClippedAdamW,
            {
                "beta1": 0.9,
                "beta2": 0.999,
                "epsilon": 1e-8,
                "weight_decay": 0.01,
            },
        ),
        (RMSClip, {"threshold": 1.0}),
    ],
)
def test_defaults(make, defaults):
    parameters = inspect.signature(make).parameters
    assert {name: parameters[name].default for name in defaults} == defaults


def test_arguments_of_every_optimizer_are_named():
    for kind in (Lion, Muon, SPAM, StableAdamW, ClippedAdamW):
        shared = {"apply_decay_param_fun", "grad_clip", "multi_precision"}
        parameters = inspect.signature(kind).parameters
        assert {*parameters} > {*shared, "name"}
        assert "shared" not in parameters
    with pytest.raises(TypeError, match=r"unexpected .*'beta3'"):
        Lion(0.1, beta3=0.9, parameters=make_parameters([[2]]))
