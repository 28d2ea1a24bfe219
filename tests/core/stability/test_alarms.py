# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The monitor reports every event of every series once, with its numbers."""

import dataclasses
import json
import math

import numpy as np
import paddle
import pytest
from helpers import make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.stability import WATCHES, Monitor, Watch

NAMES = ("loss", "global_grad_norm", "step_seconds")


def rows_of(**series):
    length = len(next(iter(series.values())))
    return [
        (step, {name: float(x[step]) for name, x in series.items()})
        for step in range(length)
    ]


def noise(seed=0, num_steps=400, mean=2.0):
    return np.random.default_rng(seed).normal(mean, 0.1, num_steps)


def test_an_event_is_reported_once_with_its_numbers():
    losses = noise()
    losses[[200, 203, 209]] = [4.0, 6.0, 5.0]
    losses[300] = 4.5
    first, second = Monitor().update(rows_of(loss=losses))
    assert (first.start, first.worst_step, first.end) == (200, 203, 209)
    assert (first.series, first.worst) == ("loss", 6.0)
    assert first.usual == np.median(losses[72:200])
    mad = np.median(np.abs(losses[75:203] - np.median(losses[75:203])))
    distance = 6.0 - np.median(losses[75:203])
    assert first.score == pytest.approx(distance / (1.4826022 * mad))
    assert (second.start, second.end) == (300, 300)
    assert str(first).startswith("loss 6 (usual 1.9")
    assert str(first).endswith("at steps 200 to 209, worst 203")
    assert str(second).endswith("deviations) at step 300")


def test_a_series_may_be_absent_and_counts_its_own_values():
    losses = noise(num_steps=70)
    losses[65] = 9.0
    rows = [
        (10 * step, {"loss": x} if step % 2 else {})
        for step, x in enumerate(np.repeat(losses, 2))
    ]
    [alarm] = Monitor().update(rows)
    assert alarm.start == 10 * 131


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_values_are_abnormal_at_once_and_the_worst(value):
    [alarm] = Monitor().update(rows_of(loss=[2.0, value, 2.0, math.nan]))
    assert (alarm.start, alarm.worst_step, alarm.end) == (1, 1, 3)
    assert repr(alarm.worst) == repr(value)
    assert alarm.score == math.inf
    assert math.isnan(alarm.usual)


LOSS, COUNT = WATCHES["loss"], WATCHES["nonfinite"]
MOSTLY = np.where(np.arange(129) % 8, 2.0, 2.08)
"""Mean deviation 0.01, times 8 sqrt(pi / 2): 0.1003."""


@pytest.mark.parametrize(
    ("watch", "values", "changes", "events"),
    [
        # The first 64 values are not judged.
        (LOSS, noise(num_steps=70), {63: 9.0}, []),
        (LOSS, noise(num_steps=70), {64: 9.0}, [(64, 64)]),
        # A value far below is no alarm.
        (LOSS, noise(), {200: 9.0, 300: -9.0}, [(200, 200)]),
        # A mean is judged once it is whole.
        (Watch(limit=0.5, smoothing=4), np.ones(4), {}, [(3, 3)]),
        # A limit needs no past; an event goes on over exactly the gap.
        (COUNT, np.zeros(30), {0: 2, 10: 5, 21: 1}, [(0, 10), (21, 21)]),
        # least hides small changes of a constant series.
        (Watch(least=0.25), np.full(100, 2.0), {80: 2.25}, []),
        (Watch(least=0.125), np.full(100, 2.0), {80: 2.25}, [(80, 80)]),
        (Watch(), np.full(100, 2.0), {80: 2.25}, [(80, 80)]),
        # Mostly equal values are judged by their mean deviation.
        (Watch(), MOSTLY, {128: 2.099}, []),
        (Watch(), MOSTLY, {128: 2.102}, [(128, 128)]),
    ],
)
def test_events_of_one_series(watch, values, changes, events):
    values = values.copy()
    values[[*changes]] = [*changes.values()]
    alarms = Monitor({"x": watch}).update(rows_of(x=values))
    assert [(alarm.start, alarm.end) for alarm in alarms] == events
    assert all(alarm.worst == max(values) for alarm in alarms[:1])


def test_logarithms_compare_ratios():
    norm = np.exp(noise(mean=-9.0))
    norm[[100, 200]] = 0.0, norm[200] * 20
    [alarm] = Monitor().update(rows_of(global_grad_norm=norm))
    assert (alarm.start, alarm.worst) == (200, pytest.approx(norm[200]))
    assert alarm.usual == pytest.approx(np.exp(-9), rel=0.05)


def clipped(h, norm=1.0):
    h = np.asarray(h, np.float64)
    return rows_of(h_median=h, global_grad_norm=np.full(len(h), norm))


@pytest.mark.parametrize(
    ("h", "events"),
    [
        (np.repeat([0.9, 0.3, 0.9], [50, 199, 50]), []),
        (np.repeat([0.9, 0.3, 0.9], [50, 200, 50]), [(50, 249)]),
        # One calm step begins it anew; a pause of 10 is the same event.
        (np.repeat([0.3, 0.9, 0.3], [150, 1, 150]), []),
        (np.repeat([0.3, 0.9, 0.3], [200, 9, 250]), [(0, 458)]),
    ],
)
def test_permanent_clipping(h, events):
    found = Monitor().update(clipped(h))
    assert [(a.start, a.end) for a in found] == events
    assert {a.series for a in found} <= {"h_median"}


def creep(num_steps=2000, rise=20.0, fall=40.0, lasts=10**6):
    """Norm and h of a run that becomes unstable from step 1,000 on."""
    rng = np.random.default_rng(0)
    step = np.arange(num_steps)
    share = np.clip((step - 1000) / 400, 0, 1) * (step < 1000 + lasts)
    noise = np.exp(rng.normal(0, 0.2, (2, num_steps)))
    norm = 0.07 * rise**share * noise[0]
    return norm, np.minimum(0.95 * fall**-share * noise[1], 1)


def masked(norm, h):
    alarms = Monitor().update(rows_of(global_grad_norm=norm, h_median=h))
    return [alarm for alarm in alarms if alarm.series == "masked"]


def test_an_instability_that_the_clip_masks():
    (alarm,) = masked(*creep())
    assert 1300 < alarm.start < 1700
    assert alarm.worst == pytest.approx(20, rel=0.2)


@pytest.mark.parametrize(
    "changes", [{"rise": 1.0}, {"fall": 1.0}, {"lasts": 100}, {"rise": 2.0}]
)
def test_what_is_not_masked(changes):
    """A norm without a rise, an h without a fall, and a short disturbance."""
    assert not masked(*creep(**changes))


def test_the_end_of_a_warm_up_is_no_alarm():
    """From none to all tensors clipped: h 1 by the global norm, then 0.6."""
    rng = np.random.default_rng(0)
    calm = np.exp(rng.normal(0, 0.1, 500))
    clip_by_norm = np.repeat([True, False], [250, 250])
    h = np.where(clip_by_norm, 0.2, 0.6) * calm
    rows = rows_of(
        global_grad_norm=2 * calm,
        h_median=h,
        clipped_fraction=np.where(clip_by_norm, 0, 1),
        warm_up=clip_by_norm,
    )
    assert Monitor().update(rows) == []


def test_it_takes_what_a_clip_summarises():
    """Names of stuck tensors count once, Inf and NaN since the last time."""
    clip = ClipGradByAdaGC(t_start=1)
    (parameter,) = make_parameters([[2]])
    monitor, begun = Monitor(), []
    for step in range(60):
        for value in (1.0, math.nan if step == 25 else 1.0):
            clip([(parameter, paddle.to_tensor([1.0, value]))])
        summary = clip.summary(tensors=True)
        summary["stuck"] = ["a"] * (step > 20) + ["b"] * (step > 40)
        begun += monitor.update([(20 * step, summary)])
    assert [(a.series, a.start, a.worst) for a in begun] == [
        ("stuck", 420, 1.0),
        ("nonfinite", 500, 1.0),
        ("stuck", 820, 1.0),
    ]


def test_a_new_level_is_one_event_that_ends():
    losses = noise(num_steps=600)
    losses[200:] += 3.0
    [alarm] = Monitor().update(rows_of(loss=losses))
    assert alarm.start == 200
    assert 230 <= alarm.end <= 200 + 128


def messy(seed):
    rng = np.random.default_rng(seed)
    series = {}
    for name in NAMES:
        values = np.abs(noise(seed, 500))
        hit = rng.choice(500, 12, replace=False)
        values[hit] = rng.choice([30.0, math.nan, math.inf], 12)
        series[name] = values
    return rows_of(**series)


@pytest.mark.parametrize("cut", [0, 63, 129, 333])
def test_resume_and_calls_of_any_length_are_exact(cut):
    rows = messy(cut)
    whole, first, second = Monitor(), Monitor(), Monitor()
    assert len(whole.update(rows)) > 5
    first.update(rows[: cut // 2])
    first.update(rows[cut // 2 : cut])
    second.set_state_dict(json.loads(json.dumps(first.state_dict())))
    begun = second.update(rows[cut:])
    assert repr(second.alarms) == repr(whole.alarms)
    assert repr(second.state_dict()) == repr(whole.state_dict())
    assert all(alarm.start >= cut for alarm in begun)
    starts = [alarm.start for alarm in first.alarms + tuple(begun)]
    assert starts == [alarm.start for alarm in whole.alarms]


def test_unknown_series_are_named():
    with pytest.raises(ValueError, match=r"'los', did you mean 'loss'\?"):
        Monitor().update([(0, {"los": 1.0})])


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"sigma": 0}, ValueError, "sigma must be positive, got 0"),
        ({"least": -1.0}, ValueError, "least must not be negative, got -1"),
        ({"log": 1}, TypeError, "log must be True or False, got 1"),
        ({"limit": math.nan}, ValueError, "limit must be finite"),
        ({"floor": math.inf}, ValueError, "floor must be finite"),
        ({"lasting": 0}, ValueError, "lasting must be at least 1"),
        ({"smoothing": 0}, ValueError, "smoothing must be at least 1"),
        ({"limit": 5.0, "log": True}, ValueError, "with limit and log"),
        ({"limit": 5.0, "floor": 0.0}, ValueError, "with limit and floor"),
    ],
)
def test_bad_rules(values, error, message):
    with pytest.raises(error, match=message):
        Watch(**values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {}}, "same settings"),
        ({"levels": None}, "the state lacks levels"),
    ],
)
def test_refused_state_changes_nothing(change, message):
    monitor = Monitor({"loss": Watch()})
    monitor.update(rows_of(loss=[*noise(num_steps=80), 9.0]))
    good = monitor.state_dict()
    bad = {**good, **change}
    bad = {k: v for k, v in bad.items() if k not in change or v is not None}
    with pytest.raises(ValueError, match=message):
        monitor.set_state_dict(bad)
    assert monitor.state_dict() == good


def test_what_is_watched():
    changed = {
        name: {
            field.name: getattr(watch, field.name)
            for field in dataclasses.fields(watch)
            if getattr(watch, field.name) != field.default
        }
        for name, watch in WATCHES.items()
    }
    assert changed == {
        "loss": {"least": 0.1},
        "global_grad_norm": {"log": True, "least": math.log(8), "sigma": 4.0},
        "nonfinite": {"limit": 0.0},
        "tensor_norm": {"limit": 2.0},
        "h_median": {"floor": 0.5, "lasting": 200},
        "masked": {"limit": 3.0},
        "small_second_moment": {"limit": 0.5},
        "stuck": {"limit": 0.0},
        "step_seconds": {"log": True, "least": math.log(4), "smoothing": 16},
    }
