# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The library's record in the laboratory's runs, and their alarms."""

import math

import numpy as np
import pytest
from adagc_lab.record.files import RECORD
from adagc_lab.train.console import summarise_run
from lab.train.runs import (
    losses_at,
    make_values,
    nan_at,
    run,
    run_whole_and_cut,
)

from paddle_adagc.watch import read_record


def recorded(directory):
    return read_record(directory / RECORD)


def alarms_of(record):
    return [(a["series"], a["step"]) for a in record.run["alarms"]]


@pytest.mark.parametrize("clip", ["adagc", "global_norm"])
def test_it_has_what_the_run_has(clip, tmp_path):
    """Factors measured outside of the clip are those of a clip of ours."""
    options = {"clip": {"name": clip}}
    if clip == "adagc":
        options = {"clip": {"name": clip, "t_start": 5}, "faults": nan_at(5)}
    _, record = run(make_values(tmp_path, **options))
    found = recorded(tmp_path)
    assert found.step.tolist() == [*range(1, 13)]
    assert found.keys == record.tensor_names
    samples = [row["samples"] for row in found.rows]
    assert samples == [[4 * i, 4 * i + 4] for i in range(12)]
    seen = np.isfinite(found.tensors("norm")) & (found.tensors("norm") > 0)
    if clip == "adagc":
        np.testing.assert_allclose(
            found.tensors("h")[seen], record.h[seen], rtol=1e-5
        )
        assert ("nonfinite", 6) in alarms_of(record)
    lowest = np.where(seen, record.h, 1).min(1)
    np.testing.assert_allclose(lowest, found.column("h_min"), rtol=1e-5)


def test_an_exception_leaves_the_steps_before(tmp_path):
    def failing(loss):
        raise RuntimeError("out of memory")

    with losses_at(7, failing), pytest.raises(RuntimeError, match="of memory"):
        run(make_values(tmp_path))
    assert recorded(tmp_path).step.tolist() == [*range(1, 8)]


def test_a_nan_loss_is_an_alarm_once_and_no_divergence(tmp_path, caplog):
    with losses_at(3, lambda loss: loss * math.nan):
        status, record = run(make_values(tmp_path))
    assert (status, record.num_steps) == ("finished", 12)
    assert np.flatnonzero(np.isnan(record.loss)).tolist() == [3]
    assert ("loss", 4) in alarms_of(record)
    (logged,) = [r for r in caplog.messages if r.startswith("alarm: ")]
    assert logged.startswith("alarm: step 4: loss nan")
    text = "\n".join(summarise_run(tmp_path).lines)
    assert "alarms: loss 1" in text


def test_the_shadow_of_a_cut_run_goes_on(tmp_path):
    values = make_values("", save_every=4, log_every=3)
    values |= {"clip": {"name": "global_norm"}, "record": {}}
    run_whole_and_cut(values, tmp_path)
    whole, cut = (recorded(tmp_path / name) for name in ("whole", "cut"))
    for quantity in ("norm", "gamma", "h"):
        np.testing.assert_array_equal(
            whole.tensors(quantity), cut.tensors(quantity)
        )
