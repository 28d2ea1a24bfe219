# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Alarms of whole runs, and the last steps that the flight recorder keeps."""

import json
import math
from unittest import mock

import numpy as np
import pytest
from adagc_lab.record import flight
from adagc_lab.record.files import RunRecord
from adagc_lab.record.flight import load_event
from adagc_lab.train.console import summarise_run
from adagc_lab.train.recorder import StepRecorder, Watcher
from core.parallel.ranks import run_on_ranks
from lab.train.runs import (
    losses_at,
    make_values,
    nan_at,
    pretrain,
    rows_of,
    run,
    run_whole_and_cut,
)
from pages import load_tool

from paddle_adagc.clips import last_step as metrics
from paddle_adagc.clips.last_step import LastStep

main = load_tool("inspect_run").main


def values_with_nan(directory, **changes):
    return make_values(directory, **{"faults": nan_at(5), **changes})


def test_an_alarm_writes_what_the_record_has(tmp_path):
    _, record = run(values_with_nan(tmp_path))
    event = load_event(tmp_path)
    [kept] = event.ranks
    assert event.name == "00000005-alarm"
    assert "nonfinite 1 (usual 0" in str(kept.reason)
    assert kept.step.tolist() == [0, 1, 2, 3, 4, 5]
    assert kept.samples.tolist() == [[4 * i, 4 * i + 4] for i in range(6)]
    np.testing.assert_allclose(kept.loss, record.loss[:6], rtol=1e-6)
    rates = record.metrics["learning_rate"][:6]
    np.testing.assert_array_equal(kept.learning_rate, rates)
    assert kept.tensor_names.tolist() == record.tensor_names
    for name in ("norm", "gamma"):
        np.testing.assert_array_equal(
            getattr(kept, name), record.tensors[name][:6]
        )
    np.testing.assert_allclose(kept.h, record.h[:6], rtol=1e-5)


def test_an_exception_in_a_step_leaves_that_step_s_samples(tmp_path):
    def failing(loss):
        raise RuntimeError("out of memory")

    with losses_at(7, failing), pytest.raises(RuntimeError, match="of memory"):
        run(make_values(tmp_path))
    [kept] = load_event(tmp_path).ranks
    assert str(kept.reason) == "RuntimeError: out of memory"
    assert kept.step.tolist() == [*range(8)]
    assert kept.samples[-1].tolist() == [28, 32]
    assert np.isnan(kept.loss).tolist() == [False] * 7 + [True]
    assert np.isnan(kept.norm).all(axis=1).tolist() == [False] * 7 + [True]


def test_keeps_so_many_steps_and_copies_at_logs_alone(tmp_path):
    ended, copied = [], set()
    end_step, rows = StepRecorder.end_step, LastStep.rows

    def counted_step(self, **measures):
        end_step(self, **measures)
        ended.append(1)

    def counted_rows(self):
        copied.add(len(ended))
        return rows(self)

    with (
        mock.patch.object(flight, "NUM_STEPS", 4),
        mock.patch.object(StepRecorder, "end_step", counted_step),
        mock.patch.object(LastStep, "rows", counted_rows),
    ):
        run(values_with_nan(tmp_path, log_every=6, record={}))
    assert copied == {6, 12}
    assert load_event(tmp_path).first.step.tolist() == [2, 3, 4, 5]


def test_the_command_shows_it(tmp_path, capsys):
    values = values_with_nan(tmp_path)
    _, record = run({**values, "record": {}})
    capsys.readouterr()
    assert main([str(tmp_path), "--flight"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("00000005-alarm: nonfinite 1 (usual 0, inf ")
    assert f"| 5    | {record.loss[5]:.4g}" in shown
    assert "steps 0 to 5; ranks: 1" in shown
    table = shown.split("step 5:\n")[1]
    assert main([str(tmp_path), "--step", "5"]) == 0  # found by itself
    assert table.rstrip() in capsys.readouterr().out
    assert main([str(tmp_path), "--flight", "--step", "2"]) == 0
    assert "step 2:\n" in capsys.readouterr().out
    assert main([str(tmp_path), "--flight", "--step", "9"]) == 2
    assert "no event with step 9" in capsys.readouterr().err


def run_on_rank(values):
    with losses_at(6, lambda loss: loss * math.nan):
        pretrain(values)


@pytest.mark.slow
def test_every_rank_writes_its_own(tmp_path):
    values = make_values(tmp_path / "one", batch_size=4)
    _, one = run(values)
    values = make_values(tmp_path / "tp", batch_size=4)
    values |= {"record": {}, "parallel": {"tp": 2}}
    run_on_ranks(run_on_rank, 2, values=values)
    event = load_event(tmp_path / "tp")
    assert event.name == "00000008-alarm"
    assert [len(rank.step) for rank in event.ranks] == [9, 9]
    for step in range(6):
        found = event.tensors(step)
        assert {*found} == {*one.tensor_names}
        norms = [found[name][0] for name in one.tensor_names]
        expected = one.tensors["norm"][step]
        np.testing.assert_allclose(norms, expected, rtol=1e-3)
    assert math.isnan(event.loss(6))
    assert event.loss(5) == pytest.approx(one.loss[5], rel=1e-5)


def test_a_nan_loss_is_an_alarm_once_and_no_divergence(tmp_path, caplog):
    with losses_at(3, lambda loss: loss * math.nan):
        status, record = run(make_values(tmp_path))
    assert (status, record.num_steps) == ("finished", 12)
    assert np.flatnonzero(np.isnan(record.loss)).tolist() == [3]
    found = {(a["series"], a["start"], a["end"]) for a in record.run["alarms"]}
    assert ("loss", 3, 3) in found
    in_rows = [a for row in rows_of(tmp_path) for a in row.get("alarms", [])]
    assert repr(in_rows) == repr(record.run["alarms"])
    assert all(a["start"] == 3 for a in rows_of(tmp_path)[3]["alarms"])
    (logged,) = [r for r in caplog.messages if r.startswith("alarm: loss")]
    assert logged.endswith("at step 3")
    text = "\n".join(summarise_run(tmp_path).lines)
    assert "alarms: loss 1" in text


@pytest.mark.parametrize("log_every", [3, 50])
def test_nonfinite_total_does_not_depend_on_log_every(tmp_path, log_every):
    values = make_values("", save_every=4, log_every=log_every)
    values |= {"faults": nan_at(5), "record": {}}
    whole = run_whole_and_cut(values, tmp_path)
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


def test_a_stuck_tensor_is_an_alarm_once(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "_STUCK_STEPS", 4)
    values = make_values(tmp_path, record={})
    values["clip"] = {"name": "adagc", "t_start": 1, "lambda_rel": 1e-4}
    with pytest.warns(UserWarning, match=r"below h 0\.01 .*: .*weight"):
        record = run(values)[1]
    alarms = [a for a in record.run["alarms"] if a["series"] == "stuck"]
    assert [a["start"] for a in alarms] == [8]
    (named,) = (r["stuck"] for r in rows_of(tmp_path) if "stuck" in r)
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
