# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Alarms of a record, from series of numbers."""

import math
import re

import numpy as np
import pytest
from core.record import training

from paddle_adagc.watch import read_record
from paddle_adagc.record.blocks import QUANTITIES
from paddle_adagc.record.files import write_part
from paddle_adagc.record.ring import Steps
from paddle_adagc.record.session import Session
from paddle_adagc.report.command import make_page

KEYS = [f"layers.{i}.{part}.weight" for i in range(4) for part in ("a", "b")]
NUM_STEPS = 1920


def series(num_steps=NUM_STEPS, seed=0):
    """Norm and h of each tensor, gamma, and loss, of a calm run."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, len(KEYS))
    scale = np.exp(rng.normal(0, 1, len(KEYS)))
    norm = (scale * np.exp(rng.normal(0, 0.1, shape))).astype("float32")
    h = np.full(shape, 0.9, "float32")
    return norm, h, 2 + rng.normal(0, 0.02, num_steps)


def record(folder, *given, **more):
    """Write a record; its lines and itself."""
    return training.write(folder, *given, keys=KEYS, **more)


def found(run):
    return [(alarm["series"], alarm["start"]) for alarm in run.alarms]


def test_a_calm_run(tmp_path):
    lines, run = record(tmp_path, *series())
    assert lines == found(run) == []


def test_permanent_clipping_from_the_start(tmp_path):
    norm, h, loss = series()
    h *= 0.2
    (line,), run = record(tmp_path, norm, h, loss)
    (alarm,) = run.alarms
    assert found(run) == [("h_median", 0)]
    assert (alarm["end"], alarm["kind"]) == (NUM_STEPS - 1, "too low")
    assert alarm["clipped_fraction"] == 1
    assert alarm["h_median"] == pytest.approx(0.18)
    assert "(100% of the tensors clipped, median h 0.18)" in line
    assert line.endswith("too low for calm steps")
    page = make_page(tmp_path)
    assert page["verdict"]["kind"] == "calm"
    assert page["notes"] == [line]


def test_permanent_clipping_around_a_step_with_no_finite_gradient(tmp_path):
    norm, h, loss = series(320)
    norm[70], h[70] = np.inf, 0
    lines, _ = record(tmp_path, norm, h * 0.2, loss)
    assert "(100% of the tensors clipped, median h 0.18)" in lines[-1]


def test_clipping_that_masks_an_instability(tmp_path):
    """As on the page about the creep: the norm rises, h falls, loss calm."""
    norm, h, loss = series()
    rise = np.exp(np.clip((np.arange(NUM_STEPS) - 1000) / 300, 0, 1) * 3)
    norm, h = norm * rise[:, None], h / rise[:, None]
    lines, run = record(tmp_path, norm.astype("f4"), h.astype("f4"), loss)
    assert "(masked" in "".join(lines)
    states = {a["series"]: a for a in run.alarms if a["series"] != "stuck"}
    assert states["masked"]["worst"] == pytest.approx(np.e**3, rel=0.3)
    assert states["h_median"]["kind"] == "masked"
    assert sum("masks it" in line for line in lines) == 1
    # A session that goes on reports neither again.
    more = 256
    norm = np.concatenate([norm, norm[-more:]])
    h, loss = np.concatenate([h, h[-more:]]), np.append(loss, loss[-more:])
    lines, run = record(tmp_path, norm, h, loss, start=NUM_STEPS)
    assert lines == []
    assert len([a for a in run.alarms if a["series"] == "masked"]) == 1
    assert len(run.step) == NUM_STEPS + more


def test_stuck_tensors_and_the_warm_up(tmp_path):
    norm, h, loss = series(320)
    h[40:, 2:4] = 0.005
    _, run = record(tmp_path / "a", norm, h, loss)
    assert [(*x, 2) for x in [("stuck", 239)]] == [
        (a["series"], a["start"], a["worst"]) for a in run.alarms
    ]
    _, run = record(tmp_path / "b", norm, h * 0.2, loss, rows={"warm_up": True})
    assert "h_median" not in dict(found(run))


def test_a_loss_that_hides_lost_gradients(tmp_path):
    norm, h, loss = series(320)
    norm[200, 5] = np.inf
    (line,), run = record(tmp_path, norm, h, loss)
    assert found(run) == [("nonfinite", 200)]
    assert line.startswith("step 200: 1 tensors with Inf or NaN, although the ")
    assert line.endswith("layers.2.b.weight (Inf or NaN)")
    assert "loss is finite" in make_page(tmp_path)["verdict"]["text"]


def test_a_spike_just_after_a_resume_has_its_tensors(tmp_path):
    norm, h, loss = series(320)
    norm[260:262, 3] *= 20
    record(tmp_path, norm[:256], h[:256], loss[:256])
    lines, run = record(tmp_path, norm, h, loss, start=256)
    assert [a["guilty"] for a in run.alarms] == [[KEYS[3]]]
    # Nothing else rose: it is on the page, and no alarm of the log.
    assert not lines
    page = make_page(tmp_path)
    assert page["verdict"]["kind"] == "calm"
    assert f"at step 260: 1 tensor, {KEYS[3]} at 20" in page["verdict"]["text"]
    assert not page["actions"]


def test_what_another_rank_left_of_steps_that_count(tmp_path):
    """Its run was resumed at step 8 of the 10 that the rank has."""
    one = np.ones((10, 1), "f4")
    training.write(tmp_path, one, one, one[:, 0], keys=["a"])
    table = np.full((10, 1), 2, "f4")
    tables = dict.fromkeys(QUANTITIES, table)
    part = {"steps": np.arange(10), "keys": np.array(["b"]), **tables}
    write_part(tmp_path, 1, 0, part)
    one = np.ones((20, 1), "f4")
    training.write(tmp_path, one, one, one[:, 0], keys=["a"], start=8)
    norm = read_record(tmp_path).tensors("norm")[:, 1]
    assert (norm[:8] == 2).all()
    assert np.isnan(norm[8:]).all()


def test_a_nan_loss_is_an_alarm_and_an_unknown_one_is_none(tmp_path):
    norm, h, loss = series(320)
    loss[100] = math.nan
    lines, run = record(tmp_path / "a", norm, h, loss)
    assert found(run) == [("loss", 100)]
    assert lines == ["step 100: loss nan (usual 1.999)"]
    session = Session(tmp_path / "b", 0, {}, 10**8)
    tensors = dict.fromkeys(QUANTITIES, norm[:64])
    rows = [{"step": step} for step in range(64)]
    assert session.write(Steps(rows, KEYS, tensors), None) == []
    session.close()


def test_a_second_moment_below_epsilon(tmp_path):
    lines, run = record(tmp_path, *series(320), small=(60, 100))
    assert found(run)[0] == ("small_second_moment", 63)
    assert "60% of the elements have sqrt(v) below 10 epsilon" in lines[0]
    page = make_page(tmp_path)
    assert page["settings"]["small_second_moment"] == 0.6


def test_who_is_named_with_the_layer(tmp_path):
    """By norm over its own usual norm; the smallest h is another's."""
    norm, h, loss = series(320)
    norm[250, 2:4] *= [3, 4]
    h[:, 6], loss[250] = 0.02, 9
    (line,), _ = record(tmp_path, norm, h, loss)
    assert line.startswith("step 250: loss 9 ")
    found = re.search(
        r"at ([\d.]+) times .*; layers.1: layers.1.b.weight", line
    )
    assert f"({found[1]} x its usual norm)" in line


def test_a_slow_instability_in_a_run_that_is_resumed_often(tmp_path):
    """The norm rises six times over 4,000 steps: seen in one process, too."""
    num_steps, part = 5000, 960
    norm, h, loss = series(num_steps)
    place = np.clip((np.arange(num_steps) - 1000) / 3500, 0, 1)
    rise = 6 ** place[:, None]
    norm, h = (norm * rise).astype("f4"), (h / rise).astype("f4")
    for first in range(0, num_steps, part):
        last = min(first + part, num_steps)
        given = norm[:last], h[:last], loss[:last]
        _, run = record(tmp_path / "parts", *given, start=first)
    _, whole = record(tmp_path / "whole", norm, h, loss)
    assert found(run) == found(whole)
    assert "masked" in {series for series, _ in found(run)}


@pytest.mark.parametrize("part", [150, 250])
def test_a_stuck_tensor_of_a_resumed_run_is_told_once(part, tmp_path):
    norm, h, loss = series(1000)
    h[:, 1] = 0.005
    for first in range(0, 1000, part):
        last = min(first + part, 1000)
        given = norm[:last], h[:last], loss[:last]
        _, run = record(tmp_path, *given, start=first)
    assert [x for x in found(run) if x[0] == "stuck"] == [("stuck", 199)]


def test_the_model_s_norm_is_unknown_where_ranks_left_alone(tmp_path):
    """After an exception rank 0 writes its own tensors."""
    norm, h, loss = series(70)
    tensors = {"norm": norm, "gamma": norm, "h": h}
    session = Session(tmp_path, 0, {}, 10**8)
    for part in (slice(0, 64), slice(64, 70)):
        rows = [{"step": i, "loss": loss[i]} for i in range(70)[part]]
        mine = {name: table[part] for name, table in tensors.items()}
        is_part = part.start > 0
        session.write(Steps(rows, KEYS, mine), None, is_part=is_part)
    session.close()
    run = read_record(tmp_path)
    for name in ("global_grad_norm", "clipped_grad_norm", "h_median"):
        assert np.isnan(run.column(name)).tolist() == [False] * 64 + [True] * 6
    assert np.isfinite(run.tensors("norm")).all()
