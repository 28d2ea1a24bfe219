# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Alarms of whole runs: in the log and in the record."""

import json
import math

import numpy as np
import pytest
from lab.train import runs

from paddle_adagc.clips import metrics
from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.train.console import summarise_run
from paddle_adagc.lab.train.recorder import Watcher


def test_a_nan_loss_is_an_alarm_once_and_no_divergence(tmp_path, caplog):
    with runs.losses_at(3, lambda loss: loss * math.nan):
        status, record = runs.run(runs.make_values(tmp_path))
    assert (status, record.num_steps) == ("finished", 12)
    assert np.flatnonzero(np.isnan(record.loss)).tolist() == [3]
    found = {(a["series"], a["start"], a["end"]) for a in record.run["alarms"]}
    assert ("loss", 3, 3) in found
    in_rows = [
        a for row in runs.rows_of(tmp_path) for a in row.get("alarms", [])
    ]
    assert repr(in_rows) == repr(record.run["alarms"])
    assert all(a["start"] == 3 for a in runs.rows_of(tmp_path)[3]["alarms"])
    (logged,) = [r for r in caplog.messages if r.startswith("alarm: loss")]
    assert logged.endswith("at step 3")
    text = "\n".join(summarise_run(tmp_path).lines)
    assert "alarms: loss 1" in text


@pytest.mark.parametrize("log_every", [3, 50])
def test_nonfinite_total_does_not_depend_on_log_every(tmp_path, log_every):
    values = runs.make_values("", save_every=4, log_every=log_every)
    values |= {"faults": runs.nan_at(5), "record": {}}
    whole = runs.run_whole_and_cut(values, tmp_path)
    total = whole.metrics["nonfinite_total"]
    assert total[3] == 0
    assert total[7] == total[11] == 1
    [alarm] = [a for a in whole.run["alarms"] if a["series"] == "nonfinite"]
    assert (alarm["start"], alarm["worst"]) == (5 if log_every == 3 else 7, 1)
    cut = RunRecord.load(tmp_path / "cut")
    np.testing.assert_array_equal(total, cut.metrics["nonfinite_total"])
    assert cut.run["alarms"] == whole.run["alarms"]


def watch(watcher, changes):
    for step, gamma in enumerate(changes):
        row = {"step": step, "loss": 2.0, "step_seconds": 0.1}
        watcher.see_gammas(step, {"a": gamma, "b": 1.0, "c": math.inf})
        watcher.watch([row], every_step=True)


def test_a_fallen_gamma_is_an_alarm():
    watcher = Watcher()
    watch(watcher, [*(0.99**step for step in range(80)), 1e-4])
    [alarm] = watcher.alarms
    assert (alarm["series"], alarm["start"]) == ("gamma_change", 80)
    assert alarm["worst"] == pytest.approx(math.log(0.99**79 / 1e-4))


def test_a_stuck_tensor_is_an_alarm_once(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "_STUCK_STEPS", 4)
    values = runs.make_values(tmp_path, record={})
    values["clip"] = {"name": "adagc", "t_start": 1, "lambda_rel": 1e-4}
    with pytest.warns(UserWarning, match=r"below h 0\.01 .*: .*weight"):
        record = runs.run(values)[1]
    alarms = [a for a in record.run["alarms"] if a["series"] == "stuck"]
    assert [a["start"] for a in alarms] == [8]
    (named,) = (r["stuck"] for r in runs.rows_of(tmp_path) if "stuck" in r)
    assert len(named) == alarms[0]["worst"] > 0


def test_a_state_of_other_rules_starts_alarms_afresh(caplog):
    watcher, other = Watcher(), Watcher()
    watch(watcher, [1.0] * 70)
    state = json.loads(json.dumps(watcher.state_dict()))
    state["monitor"]["config"]["loss"]["sigma"] = 3
    state["nonfinite_total"] = 7
    other.set_state_dict(state)
    assert other.earlier_total == 7
    assert "alarms start afresh" in caplog.text
