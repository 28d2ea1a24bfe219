# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report names what was done to a run; its data is read, not its prose."""

import json
import re

import numpy as np
import paddle
import pytest
from core.record.training import make_training, train
from helpers import slow_but

from paddle_adagc import Record, make_clip
from paddle_adagc.record import read_record
from paddle_adagc.record.blocks import QUANTITIES
from paddle_adagc.record.writer import RecordWriter
from paddle_adagc.report.command import main, make_page

NUM_STEPS = 300
BAD = 220


def page_of(folder, clip=None, **arguments):
    model, optimizer = make_training(clip, arguments.pop("seed", 1))
    record = Record(folder, optimizer, model)
    train(model, optimizer, range(NUM_STEPS), record=record, **arguments)
    record.close()
    return make_page(folder)


def worst(page):
    return page["events"][page["worst"]]


def scale_gradient(names, factor):
    """Multiply gradients by what ``factor`` gives for the step."""

    def after(step, model):
        for name, parameter in model.named_parameters():
            if names(name) and factor(step) != 1:
                parameter.grad.set_value(parameter.grad * factor(step))

    return after


CLIPS = {
    "global": lambda: paddle.nn.ClipGradByGlobalNorm(1.0),
    "ours": lambda: make_clip("adagc"),
}


def test_a_calm_run(tmp_path):
    page = page_of(tmp_path, CLIPS["global"]())
    assert page["verdict"]["kind"] == "calm"
    assert page["worst"] is None
    assert page["events"] == page["actions"] == []
    assert page["num_steps"] == NUM_STEPS


@pytest.mark.parametrize("name", CLIPS)
def test_one_batch(name, tmp_path):
    bad = {BAD, BAD + 1}
    page = page_of(
        tmp_path,
        CLIPS[name](),
        change=lambda step, loss: loss * (50 if step in bad else 1),
    )
    (event,) = page["events"]
    assert page["verdict"]["kind"] == event["kind"] == "batch"
    assert {*range(event["start"], event["end"] + 1)} == bad
    assert event["share"] > 0.8
    assert event["loss"] > 20 * event["usual_loss"]
    assert event["recovered_after"] == 2
    left = "shadow_norm" if name == "global" else "clipped_norm"
    assert event[left] < event["norm"] / 10
    command = "--missing-state start --lambda-abs 1.0 --init warmup_ema --"
    assert (command in str(page["actions"])) == (name == "global")
    rows = page["what_if"]["rows"]
    median = [row["event_h_median"] for row in rows]
    assert median == sorted(median)
    assert rows[0]["calm_clipped"] > rows[-1]["calm_clipped"]
    # The first case is the AdaGC of the record itself, from its first step.
    h = read_record(tmp_path).tensors("h", slice(100, BAD))
    assert rows[0]["calm_h_median"] == pytest.approx(np.median(h), rel=1e-4)
    assert rows[0]["calm_clipped"] == pytest.approx(np.mean(h < 1), abs=0.01)


@pytest.mark.parametrize("seed", slow_but(1, range(1, 9)))
def test_one_tensor_times_3(seed, tmp_path):
    change = scale_gradient(
        lambda name: name == "2.weight", lambda step: 3 if step == BAD else 1
    )
    page = page_of(tmp_path, CLIPS["global"](), after=change, seed=seed)
    event = worst(page)
    assert (event["start"], event["end"]) == (BAD, BAD)
    assert event["guilty"][0]["key"] == "2.weight"
    assert event["kind"] == "tensor"
    assert event["guilty"][0]["ratio"] == pytest.approx(3, rel=0.5)


def test_a_layer_that_grows(tmp_path):
    change = scale_gradient(
        lambda name: name.startswith("1."),
        lambda step: 1.1 ** min(max(step - BAD, 0), 50),
    )
    page = page_of(tmp_path, CLIPS["global"](), after=change)
    event = worst(page)
    assert event["kind"] == "layer"
    assert event["layers"] == ["1"]
    first = min(guilty["onset"] for guilty in event["guilty"])
    assert BAD < first < BAD + 25


def test_nan_in_one_expert(tmp_path):
    change = scale_gradient(
        lambda name: name == "3.weight",
        lambda step: float("nan") if step == BAD else 1,
    )
    page = page_of(tmp_path, CLIPS["ours"](), after=change)
    event = worst(page)
    assert event["kind"] == page["verdict"]["kind"] == "nonfinite"
    assert [g["key"] for g in event["guilty"]] == ["3.weight"]
    assert event["guilty"][0]["ratio"] is None
    assert event["nonfinite"] == 1
    heat = {g["name"]: g["levels"] for g in page["heat"]["groups"]}
    assert "x" in heat["3"]
    assert "x" not in heat["2"]


def test_page_and_text(tmp_path, capsys):
    page_of(
        tmp_path / "a" / "record",
        change=lambda step, loss: loss * (50 if step == BAD else 1),
    )
    (tmp_path / "a" / "checkpoint-200").mkdir()
    target = tmp_path / "page.html"
    assert main([str(tmp_path / "a"), "--output", str(target)]) == 0
    html = target.read_text()
    own = html.replace("/*! https://github.com/leeoniya/uPlot (v1.6.32) */", "")
    assert not re.search(
        r"src=|href=\"(?!data:)|@import|url\(|https?://(?!www\.w3)", own
    )
    text = re.search(r'id="data">(.*?)</script>', html, re.S)[1]
    (page,) = json.loads(text)
    assert page["name"] == "a"
    assert page["events"][0]["start"] == BAD
    assert page["actions"][0]["text"].endswith("checkpoint-200")
    capsys.readouterr()
    assert main([str(tmp_path / "a"), "--text", "--step", "100"]) == 0
    printed = capsys.readouterr().out
    assert "Step 100" in printed
    assert len(printed.splitlines()) <= 40
    cases = ["--what-if", "zclip:z_thres=3", "--what-if", "lambda_rel=1.5"]
    assert main([str(tmp_path / "a"), "--text", *cases]) == 0
    assert "zclip:z_thres=3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "300"], r"has the steps 0 to 299"),
        (["--what-if", "lambda=2"], "takes no 'lambda'"),
        (["--what-if", "agc"], "whose rule needs the norms alone"),
        (["--what-if", "lambda_rel=x"], "is no number"),
        (["nothing"], "holds no record.json"),
    ],
)
def test_mistakes(arguments, message, tmp_path, capsys):
    writer = RecordWriter(tmp_path)
    writer.index(["a"])
    ones = dict.fromkeys(QUANTITIES, np.ones((300, 1), np.float32))
    writer.append_tensors([*range(300)], ones)
    writer.append_steps({"step": step, "loss": 1.0} for step in range(300))
    writer.close()
    page = tmp_path / "page.html"
    run = [] if arguments == ["nothing"] else [str(tmp_path)]
    assert main([*run, *arguments, "--output", str(page)]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not page.exists()
    assert len(read_record(tmp_path).step) == 300
