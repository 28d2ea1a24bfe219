# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recording changes nothing, waits for nothing, and survives kills."""

import gc

import backends
import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from helpers import assert_equal, no_waiting_for_the_device
from watch.training import CLIPS, in_groups, make_training, train

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.watch import Record, read_record
from paddle_adagc.watch.clips import default_shadow
from paddle_adagc.watch.recorder import record_of
from paddle_adagc.watch.trainer import open_record

NUM_STEPS = 60


def ruin_at(bad):
    return lambda step, loss: loss * (50 if step == bad else 1)


def test_a_gradient_with_nan_and_no_loss(tmp_path):
    """What a clip by global norm makes of it is NaN, too: no number is told."""
    model, optimizer = make_training(paddle.nn.ClipGradByGlobalNorm(1.0))
    lines = []
    record = Record(tmp_path, optimizer, model, on_alarm=lines.append)
    model[0].weight.grad = paddle.full_like(model[0].weight, float("nan"))
    model[0].bias.grad = paddle.ones_like(model[0].bias)
    optimizer.step()
    record.step()
    record.close()
    assert lines == ["step 1: 1 tensor with Inf or NaN; 0.weight (Inf or NaN)"]
    (row,) = read_record(tmp_path).rows
    assert row["nonfinite"] == 1
    told = {"clipped_grad_norm", "clipped_fraction", "h_min"}
    assert told.isdisjoint(row)


GROUPS = [  # bounds of their global norms; Paddle measures each alone
    (0.01, 0.01),
    (0.01, 0.1),
    (None, 0.01),
]


def make(what):
    if what in CLIPS:
        return make_training(CLIPS[what]())
    if what in GROUPS:
        bounds = (x and paddle.nn.ClipGradByGlobalNorm(x) for x in what)
        return in_groups(*bounds)
    model, optimizer = in_groups(ClipGradByAdaGC(), ClipGradByAdaGC())
    for i, group in enumerate(optimizer._param_groups):
        group["grad_clip"].bind(model[2 * i : 2 * i + 2])
    return model, optimizer


@pytest.mark.parametrize("what", [*CLIPS, *GROUPS, "groups of ours"], ids=str)
def test_any_clip_goes_on_bit_for_bit(what, tmp_path):
    """The norm after it is computed from those before; here it is measured."""
    plain = train(*make(what), range(NUM_STEPS))
    (model, optimizer), after = make(what), []
    record = Record(tmp_path, optimizer, model)
    update = optimizer._create_optimization_pass

    def measure(pairs, *rest, **more):
        pairs = pairs["params"] if isinstance(pairs, dict) else pairs
        after[-1] += sum(float(g.square().sum()) for _, g in pairs)
        return update(pairs, *rest, **more)

    optimizer.__dict__["_create_optimization_pass"] = measure
    for step in range(NUM_STEPS):
        after.append(0.0)
        weights = train(model, optimizer, [step], record=record)
    record.close()
    assert_equal(weights, plain)
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(1, NUM_STEPS + 1)]
    assert np.isfinite(run.column("loss")).all()
    assert run.keys[:2] == ["0.weight", "0.bias"]
    assert np.isfinite(run.tensors("gamma")).all()
    norms = run.tensors("norm").astype("float64")
    assert (norms > 0).all()
    expected = np.sqrt((norms**2).sum(1))
    assert run.column("global_grad_norm") == pytest.approx(expected, rel=1e-5)
    is_told = what not in ("value", "groups of ours")
    assert ("clipped_grad_norm" in run.columns) == is_told
    if is_told:
        found = run.column("clipped_grad_norm")
        assert found == pytest.approx(np.sqrt(after), rel=1e-4)
    assert ("shadow_h_min" in run.columns) == (what != "ours")
    facts = run.sessions[0].facts
    if what == "norm":  # a bound of each tensor is no global threshold
        assert "lambda_abs=inf" in facts["shadow"]
    if what in GROUPS:
        is_one = what[0] == what[1]
        assert ("clips of groups" in facts["clip"]) != is_one
        assert ("lambda_abs=0.01" in facts["shadow"]) == is_one


def test_a_shadow_beside_a_clip_of_ours(tmp_path):
    """Its numbers alone are recorded; a step is left out."""
    acting, shadow = ClipGradByAdaGC(t_start=5), ClipGradByAdaGC(lambda_rel=2.0)
    model, optimizer = make_training(acting)
    record = Record(tmp_path, optimizer, model, shadow=shadow, skip_above=10)
    train(model, optimizer, range(100), record=record, change=ruin_at(90))
    record.close()
    assert (acting.num_steps, shadow.num_steps) == (99, 99)
    run = read_record(tmp_path)
    assert run.step[run.column("skipped") == 1].tolist() == [91]
    assert np.isfinite(run.column("shadow_h_min")).all()
    assert "h_min" not in run.columns


@pytest.mark.parametrize("first", [0, 1])
def test_two_records_of_an_optimizer_end_in_any_order(first, tmp_path):
    model, optimizer = make_training(None)
    records = [
        Record(tmp_path / "a", optimizer, model, skip_above=10),
        Record(tmp_path / "b", optimizer, model),
    ]
    train(model, optimizer, range(80), record=records[0])
    records[first].close()
    other = records[1 - first]
    train(model, optimizer, range(80, 90), record=other, change=ruin_at(85))
    assert records[0].num_skipped == first
    other.close()
    assert record_of(optimizer) is None
    train(model, optimizer, range(90, 93), change=ruin_at(91))
    assert records[0].num_skipped == first


def test_the_learning_rate_is_that_of_the_update(tmp_path):
    schedule = paddle.optimizer.lr.LinearWarmup(1e-3, 4, 0.0, 1e-3)
    model, _ = make_training(None)
    optimizer = paddle.optimizer.SGD(schedule, parameters=model.parameters())
    record, used = Record(tmp_path, optimizer, model), []
    for step in range(5):
        used.append(schedule())
        train(model, optimizer, [step])
        schedule.step()
        record.step()
    record.close()
    assert read_record(tmp_path).column("learning_rate") == pytest.approx(used)


def test_a_record_that_nobody_closed_is_written(tmp_path):
    def train_in_vain():
        model, optimizer = make_training(None)
        record = Record(tmp_path, optimizer, model)
        train(model, optimizer, range(20), record=record)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train_in_vain()
    gc.collect()
    run = read_record(tmp_path)
    assert len(run.step) == 20
    assert run.end["text"] == "the optimizer was deleted"


@pytest.mark.parametrize("clip_name", ["global norm", "ours"])
@pytest.mark.parametrize("backend", ["operators", "cuda"])
def test_no_step_waits_between_two_copies(
    backend, clip_name, tmp_path, monkeypatch
):
    backends.use(backend, monkeypatch)
    clip = CLIPS[clip_name]()
    if clip_name == "ours":  # its one look at gamma is over after 3 steps
        clip.t_start = 1
    model, optimizer = make_training(clip)
    record = Record(tmp_path, optimizer, model, num_steps=64)
    train(model, optimizer, range(3), record=record)
    record.flush()  # then it is known how long a step takes
    loss = paddle.ones([])
    loss.stop_gradient = False
    for parameter in model.parameters():
        parameter.grad = paddle.ones_like(parameter)
    with no_waiting_for_the_device(monkeypatch):
        for _ in range(63):
            optimizer.step()
            record.step(loss)
        optimizer.step()
        with pytest.warns(UserWarning, match="was read back"):
            record.step(loss)  # the copy of 64 steps
    if backend == "cuda":
        launches = backends.emulated_cuda().emulated_calls(b"cuLaunchKernel")
        assert launches >= 64
    record.close()


def test_a_switch_is_one_by_hand(tmp_path):
    model, optimizer = make_training(CLIPS["global norm"]())
    record = Record(tmp_path, optimizer, model)
    train(model, optimizer, range(120), record=record)
    state = record.shadow.state_dict()
    clip = record.switch()
    mine = train(model, optimizer, range(120, 140), record=record)
    assert record.shadow is None
    record.close()
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(1, 141)]
    assert [s.start for s in run.sessions] == [1, 121]
    assert run.sessions[0].end["kind"] == "replaced"
    assert clip.num_steps == 140

    model, optimizer = make_training(CLIPS["global norm"]())
    train(model, optimizer, range(120))
    optimizer._grad_clip = default_shadow(CLIPS["global norm"]())
    optimizer._grad_clip.bind(model)
    optimizer._grad_clip.set_state_dict(state)
    assert_equal(mine, train(model, optimizer, range(120, 140)))


@pytest.mark.parametrize("skip_above", [None, 10.0])
@pytest.mark.parametrize("wrap", [lambda x: x, dist.shard_optimizer])
@pytest.mark.parametrize("name", ["global norm", "ours"])
def test_an_overflow_of_a_loop_is_one_step(name, wrap, skip_above, tmp_path):
    """With gradients accumulated; its loss is not that of the next step."""
    model, optimizer = make_training(CLIPS[name]())
    optimizer = wrap(optimizer)
    record = open_record(
        tmp_path, optimizer, model=model, skip_above=skip_above
    )
    for step in range(8):
        for _ in range(2):
            (model(paddle.ones([2, 16])).square().mean() * 0 + 1).backward()
        if step == 5:
            model[0].weight.grad *= np.inf
        overflow = paddle.to_tensor(step == 5)
        optimizer._set_auxiliary_var("found_inf", overflow)
        optimizer.step()
        optimizer.clear_grad()
    assert record.num_skipped == 0
    record.close()
    assert (record.shadow or optimizer._grad_clip).num_steps == 7
    run = read_record(tmp_path)
    assert run.column("loss").tolist() == [2.0] * 8
    assert "global_grad_norm" not in run.rows[5]
    assert np.flatnonzero(run.column("overflow") == 1) == [5]
    assert not run.alarms


def test_numbers_that_a_record_cannot_hold(tmp_path):
    record = Record(tmp_path, make_training(None)[1])
    with pytest.raises(TypeError, match="x"):
        record.step(1.0, x=np.float32(1))
    record.step(1.0, accuracy=0.5)
    record.close()
    assert read_record(tmp_path).column("accuracy").tolist() == [0.5]
