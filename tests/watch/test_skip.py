# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps that are left out, and runs that are to end."""

import math

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from helpers import assert_equal
from watch.training import CLIPS, in_groups, make_training, train

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.optimizer import innermost
from paddle_adagc.watch import Record, read_record
from paddle_adagc.watch.recorder import record_of
from paddle_adagc.watch.skip import SkipRule

BAD = (100, 101)
SKIPPED = [101, 102]  # their numbers
GOOD = [step for step in range(150) if step not in BAD]


def ruin(step, loss):
    return loss * (50 if step in BAD else 1)


WRAPPERS = {
    "plain": lambda optimizer: optimizer,
    # Auto-parallel's wrapper makes the step itself, by another method.
    "shard_optimizer": dist.shard_optimizer,
    "LookAhead": lambda x: paddle.incubate.LookAhead(x, alpha=0.5, k=3),
}


def make(name, kind):
    if kind == "groups":
        return in_groups(CLIPS[name](), CLIPS[name]())
    model, optimizer = make_training(CLIPS[name]())
    return model, WRAPPERS[kind](optimizer)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("global norm", kind) for kind in ("groups", *WRAPPERS)),
        *(("ours", kind) for kind in ("plain", "shard_optimizer")),
        ("none", "plain"),
    ],
)
def test_a_skipped_step_was_never_made(name, kind, tmp_path):
    model, optimizer = make(name, kind)
    record = Record(tmp_path, optimizer, model, skip_above=10)
    assert record_of(optimizer) is record
    weights = train(model, optimizer, range(150), record=record, change=ruin)
    if kind != "LookAhead":  # which counts the step
        assert_equal(weights, train(*make(name, kind), GOOD))
    clip = record.shadow or innermost(optimizer)._grad_clip
    assert clip.num_steps == len(GOOD)
    assert record.num_skipped == 2
    record.close()
    run = read_record(tmp_path)
    skipped = run.column("skipped") == 1
    assert run.step[skipped].tolist() == SKIPPED
    assert "usual" in run.rows[BAD[0]]["reason"]
    assert (run.column("global_grad_norm")[skipped] > 5).all()
    assert (run.column("clipped_grad_norm")[skipped] == 0).all()
    assert (run.tensors("norm")[skipped] > 0).all()
    assert {alarm["step"] for alarm in run.alarms} == {SKIPPED[0]}


def test_an_optimizer_that_makes_no_step_is_named(tmp_path):
    model, optimizer = make_training(None)
    record = Record(tmp_path, optimizer, model, num_steps=8, skip_above=10)
    wrapper = dist.shard_optimizer(optimizer)
    with pytest.warns(UserWarning, match="seen no step of AdamW"):
        train(model, wrapper, range(10), record=record)
    record.close()
    with pytest.raises(ValueError, match="shard_optimizer wraps this AdamW"):
        Record(tmp_path, optimizer, model)
    wrapper.enable_tensor_fusion = True
    with pytest.raises(ValueError, match="auto-parallel's tensor fusion"):
        Record(tmp_path, wrapper, model, skip_above=10)


def test_a_clip_may_be_recorded_where_the_optimizer_is_not_seen(tmp_path):
    model, optimizer = make_training(CLIPS["ours"]())
    record = Record(tmp_path / "a", optimizer, model, num_steps=8)
    wrapper = dist.shard_optimizer(optimizer)
    train(model, wrapper, range(10), record=record)
    record.close()
    assert (read_record(tmp_path / "a").tensors("norm") > 0).all()
    optimizer = paddle.optimizer.LBFGS(parameters=model.parameters())
    record = Record(tmp_path / "b", optimizer, model, num_steps=1)
    with pytest.warns(UserWarning, match="LBFGS.* its updates cannot be seen"):
        record.step()
    record.close()


@pytest.mark.parametrize("kind", ["need_clip", "overrides", "raise"])
def test_nan_that_the_clip_does_not_judge_is_left_out(kind, tmp_path):
    """In a tensor that is not clipped, or under ``nonfinite="raise"``."""
    options = {
        "need_clip": {},
        "overrides": {"overrides": {r"3\.bias": None}},
        "raise": {"nonfinite": "raise"},
    }
    model, optimizer = make_training(ClipGradByAdaGC(**options[kind]))
    optimizer._grad_clip.bind(model)
    model[3].bias.need_clip = kind != "need_clip"
    record = Record(tmp_path, optimizer, model, skip_above=10)

    def ruin_bias(step, model):
        if step == 5:
            model[3].bias.grad *= math.nan

    weights = train(model, optimizer, range(8), record=record, after=ruin_bias)
    assert record.num_skipped == 1
    assert all(np.isfinite(value).all() for value in weights)
    record.close()


def test_a_resumed_run_goes_on_and_knows_what_is_usual(tmp_path):
    model, optimizer = make_training(None)
    first = Record(tmp_path, optimizer, model, skip_above=10)
    train(model, optimizer, range(80), record=first)
    first.close()
    second = Record(tmp_path, optimizer, model, skip_above=10, start=70)
    train(model, optimizer, range(70, 110), record=second, change=ruin)
    assert second.num_skipped == 2
    second.close()
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(1, 111)]
    before, after = run.sessions
    assert (before.superseded_from, after.start) == (71, 71)


NOISE = 1 + np.random.default_rng(0).normal(0, 0.05, 400)


@pytest.mark.parametrize(
    ("change", "loss", "skipped"),
    [
        ({}, None, []),
        ({63: 9.0, 64: 9.0}, None, [64]),  # the first 64 are not judged
        ({200: 9.0, 201: math.inf, 202: math.nan}, None, [200, 201, 202]),
        ({200: 0.1}, None, []),
        ({}, {300: 9.0, 301: math.nan}, [300, 301]),
        # A new level is the usual one after half of the window.
        (dict.fromkeys(range(200, 400), 3.0), None, [*range(200, 260)]),
    ],
)
def test_which_steps_are_skipped(change, loss, skipped):
    rule = SkipRule(8.0)
    losses = {step: 2 * x for step, x in enumerate(NOISE)} | (loss or {})
    norms = dict(enumerate(NOISE)) | change
    found = [
        step
        for step in range(400)
        if rule.reason(norms[step], losses[step] if loss else None)
    ]
    assert found == skipped


def test_what_cannot_be_skipped_or_stopped(tmp_path):
    acting, other = paddle.nn.ClipGradByGlobalNorm(1.0), ClipGradByAdaGC()
    model, optimizer = make_training(acting)
    own = make_training(other)[1]
    for refusing, options, message in (
        (optimizer, {"skip_above": 6, "shadow": False}, "nothing measures"),
        (optimizer, {"skip_above": 0, "shadow": other}, "must be positive"),
        (optimizer, {"stop_on": "inf"}, "stop_on must be one of nan"),
        (own, {"shadow": other}, "is the optimizer's own clip"),
    ):
        with pytest.raises(ValueError, match=message):
            Record(tmp_path, refusing, model, **options)
    assert not other._follows
    optimizer = paddle.optimizer.LBFGS(parameters=model.parameters())
    with pytest.raises(ValueError, match="LBFGS has several updates"):
        Record(tmp_path, optimizer, model, skip_above=6)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("num_steps", "last"), [(8, 23), (64, 21)])
def test_a_run_that_is_to_end(num_steps, last, tmp_path, monkeypatch):
    """At the next copy; a local look, every ten seconds, knows it before."""
    if num_steps == 64:
        monkeypatch.setattr("paddle_adagc.watch.ring._GLANCE_SECONDS", 0.0)
        monkeypatch.setattr("paddle_adagc.watch.ring.FIRST_COPY", 64)

    def lose(step, loss):
        return loss * (math.nan if step == 20 else 1)

    lines = []
    model, optimizer = make_training(ClipGradByAdaGC(t_start=5))
    record = Record(
        tmp_path,
        optimizer,
        model,
        num_steps=num_steps,
        stop_on="nan",
        on_alarm=lines.append,
    )
    for step in range(40):
        train(model, optimizer, [step], record=record, change=lose)
        if record.should_stop:
            break
    assert (step, record.should_stop) == (last, "the loss of step 21 is nan")
    assert all(np.isfinite(p.numpy()).all() for p in model.parameters())
    record.close()
    assert lines == ["step 21: loss nan"]  # no tensor is to blame
