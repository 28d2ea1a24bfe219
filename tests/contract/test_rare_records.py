# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a report says of records that few runs make."""

import json
import multiprocessing
import re
import sys

import numpy as np
import paddle
import pytest
from watch.network import write

from paddle_adagc.watch import Record, read_record
from paddle_adagc.watch.alarms import Alarms
from paddle_adagc.watch.command import main, make_page
from paddle_adagc.watch.judge import Judge
from paddle_adagc.watch.measure import Steps, add_numbers
from paddle_adagc.watch.replay import Settings, replay
from paddle_adagc.watch.store import FILE, MAX_BYTES
from paddle_adagc.watch.text import as_text
from paddle_adagc.watch.verdict import _end
from paddle_adagc.watch.writer import Writer

KEYS = ["0.weight", "0.bias", "1.weight"]
GLOBAL_NORM = "Gradient Clip By GlobalNorm, global_norm=1.000000"
SHADOW = (
    "ClipGradByAdaGC(lambda_rel=2.0, lambda_abs=1.0, t_start=100, "
    "init='warmup_ema')"
)


def write_run(
    folder, steps, losses, *, bad=(), clip=GLOBAL_NORM, numbers=None, **ends
):
    """Append a session; ``bad`` steps have Inf in the second tensor."""
    rng = np.random.default_rng(0)
    norm = 1 + 0.1 * rng.random((len(steps), len(KEYS)), np.float32)
    norm[np.isin(steps, bad), 1] = np.inf
    tables = {"norm": norm, "gamma": norm + 0, "h": np.ones_like(norm)}
    rows = [
        {"step": step, **({} if loss is None else {"loss": loss})}
        | (numbers or {}).get(step, {})
        for step, loss in zip(steps, losses, strict=True)
    ]
    given = Steps(rows, KEYS, tables)
    add_numbers(given, None)
    facts = {"clip": clip, "shadow": SHADOW}
    return write(folder, given, facts, {"kind": "finished", **ends})


def calm(steps):
    return [2 + step % 7 / 100 for step in steps]


def make_training():
    model = paddle.nn.Linear(4, 2)
    optimizer = paddle.optimizer.AdamW(
        parameters=model.parameters(),
        grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
    )
    return model, optimizer


def make_steps(record, model, optimizer, number):
    for _ in range(number):
        loss = model(paddle.ones([1, 4])).square().mean()
        loss.backward()
        optimizer.step()
        record.step(loss)
        optimizer.clear_grad()


def test_a_loss_that_came_too_seldom_to_be_judged_is_not_called_calm(tmp_path):
    steps = range(1, 1001)
    losses = [None if step % 100 else 50.0 for step in steps]
    page = make_page(write_run(tmp_path, steps, losses))
    (line,) = page["verdict"]["lines"][:1]
    assert "the global norm did not rise" in line
    assert "loss" not in line


def test_a_gradient_that_stays_nan_is_one_event_to_look_at(tmp_path):
    steps = range(1, 401)
    clip = "ClipGradByAdaGC(t_start=100)"
    page = make_page(
        write_run(tmp_path, steps, calm(steps), bad=range(201, 401), clip=clip)
    )
    (event,) = page["events"]
    assert (event["first"], event["last"]) == (201, 400)
    assert "0.bias" in page["actions"][0]["text"]


def test_a_step_with_nan_says_nothing_of_the_usual_norm():
    judge, rng = Judge(), np.random.default_rng(0)
    for step in range(1, 400):
        norm = 4.0 if step == 200 else 1 + 0.1 * rng.random()
        numbers = {"global_grad_norm": norm}
        if step == 190:
            numbers = {"global_grad_norm": 0.0, "nonfinite": 3}
        series = [event.series for event in judge.add(step, numbers)]
        assert series == (["nonfinite"] if step == 190 else [])


def test_a_checkpoint_of_another_run_is_not_named(tmp_path):
    (tmp_path / "checkpoint-250").mkdir()
    steps, record = range(1, 301), tmp_path / "out" / "record"
    write_run(record, steps, calm(steps), kind="exception", text="Error")
    (advice,) = make_page(record)["actions"]
    assert advice["command"] == ""
    for number in (200, 900):
        (tmp_path / f"out/checkpoint-{number}").mkdir()
    (advice,) = make_page(record)["actions"]
    assert advice["command"].endswith("out/checkpoint-200")


def test_a_what_if_of_the_run_s_own_settings_is_the_run(tmp_path):
    """Also under ``warmup_ema``, whose bound falls for thousands of steps."""
    rng, settings = np.random.default_rng(0), Settings(init="warmup_ema")
    norm = rng.lognormal(0, 0.6, (3000, len(KEYS))).astype("f4")
    found = replay(norm, settings)
    given = Steps(
        [{"step": 1 + i, "loss": 2.0} for i in range(len(norm))],
        KEYS,
        {"norm": norm, "gamma": found.gamma, "h": found.h},
    )
    add_numbers(given, None)
    facts = {"clip": "ClipGradByAdaGC(init='warmup_ema')"}
    write(tmp_path, given, facts, {"kind": "finished"})
    page = make_page(tmp_path, cases=["lambda_rel=1.04"])
    own, case = page["what_if"]["rows"]
    assert case["calm_clipped"] == pytest.approx(own["calm_clipped"], abs=0.01)
    assert case["calm_h_median"] == pytest.approx(
        own["calm_h_median"], abs=0.01
    )


def test_an_alarm_of_the_norm_does_not_silence_one_of_the_loss():
    said, steps = [], range(1, 301)
    rows = [{"step": s, "loss": 2 + s % 7 / 100} for s in steps]
    norm = np.ones((len(steps), 1), "f4")
    norm[150], rows[250]["loss"] = 30, 9.0
    tables = {"norm": norm, "gamma": norm + 0, "h": np.ones_like(norm)}
    given = Steps(rows, KEYS[:1], tables)
    add_numbers(given, None)
    Alarms(1, None, said.append).judge(given)
    assert [line.partition(":")[0] for line in said] == ["step 151", "step 251"]


def test_the_advice_after_nan_keeps_adagc(tmp_path):
    steps = range(1, 401)
    losses = [x if i < 350 else np.nan for i, x in enumerate(calm(steps))]
    clip = "ClipGradByAdaGC(t_start=0)"
    page = make_page(write_run(tmp_path, steps, losses, clip=clip))
    commands = [advice["command"] for advice in page["actions"]]
    assert "adagc-run --skip-above 8 COMMAND" in commands


def test_a_trainer_s_folder_shows_its_newest_run(tmp_path):
    old, new = range(1, 101), range(1, 51)
    write_run(tmp_path / "out/record", old, calm(old))
    ends = {"kind": "exception", "text": "ValueError: no"}
    write_run(tmp_path / "out/record-2", new, calm(new), **ends)
    page = make_page(tmp_path / "out")
    assert "stopped after step 50" in page["verdict"]["text"]
    assert page["name"] == "out"


def test_spikes_under_globalgc_first_lower_its_threshold(tmp_path):
    steps = range(1, 401)
    losses = calm(steps)
    rng = np.random.default_rng(0)
    norm = 1 + 0.1 * rng.random((len(steps), len(KEYS)), np.float32)
    for step in (150, 230, 310):
        losses[step - 1], norm[step - 1] = 9.0, 40.0
    h = np.where(norm > 9, 0.01, 1).astype("f4")
    rows = [{"step": s, "loss": x} for s, x in zip(steps, losses, strict=True)]
    given = Steps(rows, KEYS, {"norm": norm, "gamma": norm + 0, "h": h})
    add_numbers(given, lambda norm, keys: np.ones_like(norm))
    facts = {"clip": GLOBAL_NORM, "shadow": SHADOW}
    write(tmp_path, given, facts, {"kind": "finished"})
    codes = [advice["code"] for advice in make_page(tmp_path)["actions"]]
    assert codes[-2:] == ["lower", "switch"]


def test_a_norm_that_is_inf_is_no_multiple_of_its_usual_one(tmp_path):
    steps = range(1, 401)
    losses = calm(steps)
    losses[300] = 9.0
    page = make_page(write_run(tmp_path, steps, losses, bad=[302]))
    text = page["verdict"]["text"]
    assert "0.bias left its usual norm, at step 302: to Inf or NaN." in text


def test_a_record_that_failed_does_not_say_that_the_run_stopped(tmp_path):
    steps = range(1, 101)
    why = {"kind": "unknown", "text": "RuntimeError: of observing"}
    page = make_page(write_run(tmp_path, steps, calm(steps), **why))
    assert "RuntimeError: of observing" in page["verdict"]["text"]
    assert page["actions"][0]["text"].startswith("If the training stopped")


def test_the_advice_to_switch_has_all_of_the_shadow_s_settings(tmp_path):
    steps = range(1, 401)
    losses = [
        5.0 if step > 300 else loss
        for step, loss in zip(steps, calm(steps), strict=True)
    ]
    write_run(tmp_path, steps, losses, bad=range(300, 401))
    text = as_text(make_page(tmp_path))
    options = re.findall(r"adagc-run (--lambda.*) COMMAND", text)
    expected = "--lambda-rel 2.0 --lambda-abs 1.0 --init warmup_ema"
    assert options == [expected]


def test_a_page_without_norms_does_not_say_that_none_left_its_usual(tmp_path):
    folder = write_run(tmp_path, range(1, 301), [2.0] * 299 + [9.0])
    (event,) = make_page(folder)["events"]
    assert (event["is_known"], event["num_guilty"]) == (True, 0)
    rows = [
        {"step": s, "loss": 9.0 if s == 300 else 2.0} for s in range(1, 301)
    ]
    none = {name: np.zeros((300, 0), "f4") for name in ("norm", "gamma", "h")}
    ends = {"kind": "finished"}
    other = write(tmp_path / "b", Steps(rows, [], none), {}, ends)
    (event,) = make_page(other)["events"]
    assert (event["is_known"], event["num_guilty"]) == (False, None)


def test_a_resumed_run_that_made_no_step_hides_none(tmp_path):
    steps = range(1, 261)
    write_run(tmp_path, steps, calm(steps), bad=[221])
    past = read_record(tmp_path)
    facts = {"clip": "ClipGradByAdaGC(t_start=0)"}
    writer = Writer(tmp_path, 201, facts, MAX_BYTES, None, past)
    writer.close({"kind": "exception", "text": "no memory", "step": None}, 60)
    run = read_record(tmp_path)
    assert run.step.tolist() == [*steps]
    assert [s.superseded_from for s in run.sessions] == [None, None]
    page = make_page(tmp_path)
    assert page["events"][0]["first"] == 221
    assert "ClipGradByAdaGC" not in run.facts(221)["clip"]
    assert "no memory" in page["verdict"]["text"]


def test_a_half_written_checkpoint_is_not_named(tmp_path):
    steps, record = range(1, 301), tmp_path / "record"
    write_run(record, steps, calm(steps), kind="signal", text="SIGTERM")
    for number, names in (
        (100, ["trainer_state.json", "scheduler.pdparams"]),
        (200, ["trainer_state.json"]),
    ):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    (advice,) = make_page(record)["actions"]
    assert advice["command"].endswith("checkpoint-100")


def test_a_run_that_is_alive_is_not_said_to_go_on(tmp_path):
    assert _end({"kind": "running", "step": 9, "text": ""}) == (
        "The process is alive; its last recorded step is 9."
    )


def test_a_record_that_has_just_begun_is_called_empty(tmp_path, capsys):
    (tmp_path / FILE).touch()
    assert main([str(tmp_path)]) == 2
    assert "is empty: no step has been written yet" in capsys.readouterr().err


def _train(folder, fails):
    model, optimizer = make_training()
    record = Record(folder, optimizer, model)
    make_steps(record, model, optimizer, 3)
    if fails == "exit":
        try:
            raise ValueError("no more data")
        except ValueError:
            sys.exit(1)
    if fails:
        raise ValueError("no more data")


@pytest.mark.parametrize("fails", ["", "raises", "exit"])
def test_how_a_process_of_multiprocessing_ended(fails, tmp_path):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_train, args=(tmp_path, fails))
    process.start()
    process.join(120)
    assert (process.exitcode != 0) == bool(fails)
    end = read_record(tmp_path).end
    if sys.version_info >= (3, 13):  # nothing tells the child
        assert end["kind"] == "unknown"
        return
    assert end["kind"] == ("exception" if fails else "finished")
    assert ("no more data" in end["text"]) == bool(fails)
    assert json.dumps(end["step"]) == "3"
