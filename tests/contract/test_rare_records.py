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

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.watch import Record, read_record
from paddle_adagc.watch.command import main, make_page
from paddle_adagc.watch.judge import Judge
from paddle_adagc.watch.measure import Steps, add_numbers
from paddle_adagc.watch.store import FILE
from paddle_adagc.watch.text import as_text

KEYS = ["0.weight", "0.bias", "1.weight"]
GLOBAL_NORM = "Gradient Clip By GlobalNorm, global_norm=1.000000"
SHADOW = (
    "ClipGradByAdaGC(lambda_rel=2.0, lambda_abs=1.0, t_start=100, "
    "init='warmup_ema')"
)


def write_run(folder, steps, losses, *, bad=(), clip=GLOBAL_NORM, **ends):
    """Append a session; ``bad`` steps have Inf in the second tensor."""
    rng = np.random.default_rng(0)
    norm = 1 + 0.1 * rng.random((len(steps), len(KEYS)), np.float32)
    norm[np.isin(steps, bad), 1] = np.inf
    tables = {"norm": norm, "gamma": norm + 0, "h": np.ones_like(norm)}
    rows = [
        {"step": step, **({} if loss is None else {"loss": loss})}
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


def test_the_clip_of_the_step_is_named_not_the_newest(tmp_path):
    before, after = range(1, 221), range(221, 400)
    write_run(tmp_path, before, calm(before), bad=[200])
    clip = "ClipGradByAdaGC(t_start=0)"
    write_run(tmp_path, after, calm(after), clip=clip)
    text = make_page(tmp_path)["verdict"]["text"]
    assert "a clip by global norm spreads a NaN" in text
    assert "AdaGC set" not in text


def test_a_checkpoint_of_another_run_is_not_named(tmp_path):
    for folder in (
        "out/checkpoint-200",
        "out/checkpoint-900",
        "checkpoint-250",
    ):
        (tmp_path / folder).mkdir(parents=True)
    steps, record = range(1, 301), tmp_path / "out" / "record"
    write_run(record, steps, calm(steps), kind="exception", text="Error")
    (advice,) = make_page(record)["actions"]
    assert advice["command"].endswith("out/checkpoint-200")


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
    assert make_page(folder)["events"][0]["is_known"] is True
    rows = [
        {"step": s, "loss": 9.0 if s == 300 else 2.0} for s in range(1, 301)
    ]
    none = {name: np.zeros((300, 0), "f4") for name in ("norm", "gamma", "h")}
    ends = {"kind": "finished"}
    other = write(tmp_path / "b", Steps(rows, [], none), {}, ends)
    assert make_page(other)["events"][0]["is_known"] is False


def test_a_record_that_has_just_begun_is_called_empty(tmp_path, capsys):
    (tmp_path / FILE).touch()
    assert main([str(tmp_path)]) == 2
    assert "is empty: no step has been written yet" in capsys.readouterr().err


def test_a_shadow_that_saw_nothing_since_an_error_cannot_act(tmp_path):
    model, optimizer = make_training()
    record = Record(tmp_path, optimizer, model, num_steps=2)
    make_steps(record, model, optimizer, 4)
    # As Paddle says that a kernel on the GPU has failed.
    record._end(OSError("(External) CUDA error(700)"))
    make_steps(record, model, optimizer, 4)
    with pytest.raises(RuntimeError, match="the record has ended"):
        record.switch()
    assert not isinstance(optimizer._grad_clip, ClipGradByAdaGC)
    record.close()
    run = read_record(tmp_path)
    assert run.end["kind"] == "unknown"
    assert run.end["step"] == run.step[-1]


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
    assert end["kind"] == ("exception" if fails else "finished")
    assert ("no more data" in end["text"]) == bool(fails)
    assert json.dumps(end["step"]) == "3"
