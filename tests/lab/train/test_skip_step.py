# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Outlier steps are left out: on the device, in every optimizer and layout."""

import json
from unittest import mock

import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks
from helpers import no_waiting_for_the_device
from lab.train.interruption import interrupted_at
from lab.train.runs import assert_same, make_values, run

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.train import skip_step
from paddle_adagc.lab.train.architectures import make_task
from paddle_adagc.lab.train.optimizer_config import OPTIMIZERS
from paddle_adagc.lab.train.optimizers import make_optimizer
from paddle_adagc.lab.train.parse import parse_config
from paddle_adagc.lab.train.run import run_pretraining
from paddle_adagc.lab.train.skip_step import (
    FIRST,
    OutlierGate,
    SkippingClip,
    guard_updates,
)

SPIKE_AT_9 = [
    {
        "kind": "gradient_scale",
        "steps": [9],
        "tensor": "lm_head.weight",
        "magnitude": 1e6,
    }
]


def judged(gate, loss, norm=1.0, may_skip=True):
    gate.losses = [paddle.to_tensor(loss, "float32")]
    squared_norm = paddle.to_tensor([norm**2], "float64")
    gate.judge(squared_norm, may_skip=may_skip)
    return bool(gate.skip)


def usual(num_steps):
    rng = np.random.default_rng(0)
    return rng.normal([2.0, 1.0], 0.1, [num_steps, 2]).tolist()


def gate_after(num_steps):
    gate = OutlierGate(6.0)
    for loss, norm in usual(num_steps):
        assert not judged(gate, loss, norm)
    return gate


@pytest.mark.parametrize(
    ("loss", "norm", "is_outlier"),
    [
        (2.4, 1.4, False),
        (3.0, 1.0, True),
        (2.0, 2.0, True),
        (0.5, 0.1, False),  # far below is no outlier
        (float("nan"), 1.0, True),
        (2.0, float("inf"), True),
    ],
)
def test_what_is_an_outlier(loss, norm, is_outlier):
    assert judged(gate_after(FIRST), loss, norm) == is_outlier


def test_the_first_steps_are_not_judged_but_nan_is():
    assert not judged(gate_after(FIRST - 1), 99.0)
    assert judged(gate_after(3), float("nan"))
    gate = gate_after(FIRST)
    assert not judged(gate, 99.0, may_skip=False)


def test_outliers_hide_no_later_ones_and_a_new_level_is_accepted():
    gate = gate_after(128)
    assert all(judged(gate, 1e6) for _ in range(3))
    gate = gate_after(128)
    skipped = [judged(gate, 4.0) for _ in range(128)]
    assert skipped[0]
    assert not skipped[-1]


def test_a_resumed_gate_judges_alike():
    gate, other = gate_after(100), OutlierGate(6.0)
    judged(gate, float("nan"))
    other.set_state_dict(json.loads(json.dumps(gate.state_dict())))
    np.testing.assert_array_equal(gate._past.numpy(), other._past.numpy())


def state_of(optimizer, clip):
    held = {
        (name, key): tensor.numpy()
        for name, tensors in optimizer._accumulators.items()
        for key, tensor in tensors.items()
    }
    weights = {p.name: p.numpy() for p in optimizer._parameter_list}
    gammas = {key: v.numpy() for key, v in clip.memory().items()}
    return {**held, **weights, **gammas}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_keeps_everything_as_it_was(
    name, tmp_path, monkeypatch
):
    task = make_task(parse_config(make_values(tmp_path)))
    model = task.build_model()
    clip = ClipGradByAdaGC(t_start=1)
    clip.bind(model)
    gate = OutlierGate(6.0)
    optimizer = make_optimizer(
        OPTIMIZERS[name](name=name),
        model,
        learning_rate=0.01,
        grad_clip=SkippingClip(clip, clip, gate),
        multi_precision=False,
    )
    guard_updates(optimizer, gate)

    def step(loss):
        for parameter in model.parameters():
            parameter.grad = paddle.full_like(parameter, 0.1)
        gate.losses = [loss]
        optimizer.step()

    one, nan = paddle.to_tensor(1.0), paddle.to_tensor(float("nan"))
    for _ in range(3):
        step(one)
    before = state_of(optimizer, clip)
    with no_waiting_for_the_device(monkeypatch):
        step(nan)
    after = state_of(optimizer, clip)
    assert len(before) > len(model.parameters())
    for key, value in before.items():
        np.testing.assert_array_equal(value, after[key], err_msg=str(key))
    step(one)
    moved = state_of(optimizer, clip)
    assert all(
        (moved[p.name] != after[p.name]).any() for p in model.parameters()
    )


def skipping(directory, **train):
    values = make_values(directory, max_steps=16, **train)
    values["schedule"] = {"kind": "constant", "learning_rate": 0.01}
    values |= {"faults": SPIKE_AT_9, "monitor": {"skip_step": True}}
    return values


@pytest.fixture
def early():
    """Judge from the sixth step on, since the runs are short."""
    with mock.patch.object(skip_step, "FIRST", 6):
        yield


@pytest.mark.slow
def test_a_run_leaves_the_outlier_out(early, tmp_path, caplog):
    _, record = run(skipping(tmp_path / "a", save_every=16))
    rows = (tmp_path / "a/metrics.jsonl").read_text().splitlines()
    skipped = [json.loads(row).get("skipped") for row in rows]
    assert skipped == [None] * 9 + [1] + [None] * 6
    for name in ("gamma", "moment1", "moment2"):
        values = record.tensors[name]
        np.testing.assert_array_equal(values[9], values[8], name)
        assert (values[10] != values[9]).any()
    assert "skipped the update of step 9: loss " in caplog.text
    facts = json.loads((tmp_path / "a/checkpoint-16/complete.json").read_text())
    assert (facts["step"], facts["clip_step"]) == (16, 15)


@pytest.mark.slow
@pytest.mark.parametrize("stopped_at", [11, 14])  # before and after a save
def test_a_skipping_run_resumes_alike_whatever_is_logged(
    stopped_at, early, tmp_path
):
    _, whole = run(skipping(tmp_path / "whole"))
    values = skipping(tmp_path / "cut", save_every=4, log_every=5)
    with interrupted_at(stopped_at):
        run(values)
    _, cut = run(values)
    assert_same(whole, cut)


@pytest.mark.slow
def test_without_outliers_nothing_changes(tmp_path):
    values = {**skipping(tmp_path / "on"), "faults": []}
    _, on = run(values)
    del values["monitor"]
    values["train"]["output_dir"] = str(tmp_path / "off")
    _, off = run(values)
    assert_same(on, off)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip": {"name": "global_norm"}}, "needs the gradient norm"),
        ({"model": {"moe_correction_bias": True}}, "routers' biases would"),
        ({}, "loss scaler skips steps too"),
    ],
)
def test_what_it_cannot_do_is_refused(change, message, tmp_path):
    values = {**skipping(tmp_path), **change}
    if "model" in change:
        values["train"]["expert_bias_rate"] = 1e-3
    elif not change:
        values["train"]["precision"] = "float16"
    with pytest.raises(ValueError, match=message):
        run(values)


def run_on_rank(values):
    with outlier_at_9():
        return run_pretraining(parse_config(values))


def outlier_at_9():
    """NaN in step 9's loss."""
    judge = OutlierGate.judge
    calls = []

    def broken(self, squared_norm, *, may_skip):
        calls.append(1)
        factor = float("nan") if len(calls) == 10 else 1.0
        self.losses = [loss * factor for loss in self.losses]
        judge(self, squared_norm, may_skip=may_skip)

    return mock.patch.object(OutlierGate, "judge", broken)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel",
    [{"dp": 2}, {"tp": 2}, {"pp": 2}, {"sharding": 2}],
    ids=lambda parallel: next(iter(parallel)),
)
def test_a_layout_skips_as_one_process_does(parallel, tmp_path):
    def values_in(name, parallel):
        splits = {"dp", "sharding"} & {*parallel}
        values = skipping(tmp_path / name, batch_size=2 if splits else 4)
        values["train"]["gradient_accumulation_steps"] = 2
        values["model"]["num_hidden_layers"] = 2
        return values | {"faults": [], "record": {}, "parallel": parallel}

    with outlier_at_9():
        _, one = run(values_in("one", {}))
    values = values_in("two", parallel)
    assert run_on_ranks(run_on_rank, 2, values=values) == ["finished"] * 2
    two = RunRecord.load(tmp_path / "two")
    np.testing.assert_allclose(two.loss, one.loss, rtol=1e-5)
    for record in (one, two):
        assert np.flatnonzero(record.metrics["skipped"] == 1).tolist() == [9]
