# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report names what was done to a run; its data is read, not its prose."""

import json
import re
import shutil
import subprocess
import types

import numpy as np
import paddle
import pytest
from core.record.training import make_training, train, write
from helpers import slow_but
from paddle_adagc.record.blocks import QUANTITIES, array_bytes, arrays
from paddle_adagc.record.files import TENSORS
from paddle_adagc.record.writer import RecordWriter

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.report import pictures
from paddle_adagc.report.actions import actions_for
from paddle_adagc.report.command import main, make_page
from paddle_adagc.report.text import as_text
from paddle_adagc.report.what_if import most_clipped
from paddle_adagc.watch import Record, read_record

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
    "ours": lambda: ClipGradByAdaGC(),
}


def test_a_calm_run(tmp_path):
    page = page_of(tmp_path, CLIPS["global"]())
    assert page["verdict"]["kind"] == "calm"
    assert page["worst"] is None
    assert page["events"] == page["actions"] == []
    assert page["num_steps"] == NUM_STEPS


@pytest.mark.parametrize(
    ("num_steps", "expected"),
    [(40, "Too short to judge: 40 steps"), (70, "no spike in 6 judged steps")],
)
def test_the_first_steps_are_not_judged(num_steps, expected, tmp_path):
    loss = 1 + 0.01 * np.random.default_rng(0).normal(size=num_steps)
    loss[20] = 50.0
    one = np.ones((num_steps, 1), "f4")
    write(tmp_path, one, one, loss, keys=["0.weight"])
    assert expected in make_page(tmp_path)["verdict"]["text"]
    text = make_page(tmp_path, 20)["verdict"]["text"]
    assert "the first 64 steps are not judged" in text


@pytest.mark.parametrize(
    ("state", "steps", "title", "at"),
    [
        (True, [100, 280], "there", "280"),
        (False, [100, 280], "at checkpoint-100", "100"),
        (False, [280], "100 steps before", "STEP"),
    ],
)
def test_a_switch_is_early_enough(state, steps, title, at, tmp_path):
    """In its warm-up AdaGC would do to the spike what GlobalGC did."""
    for step in steps:
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state:
            (tmp_path / f"checkpoint-{step}/adagc_state.safetensors").touch()
    run = types.SimpleNamespace(directory=tmp_path / "record")
    event = {"start": 300, "kind": "loss", "samples": [], "guilty": []}
    session = {"clip": "GlobalNorm", "shadow": str(ClipGradByAdaGC())}
    back, switch = actions_for(run, event, session)
    assert back["text"] == str(tmp_path / "checkpoint-280")
    assert switch["title"] == f"Switch to AdaGC {title}"
    assert ("acts like GlobalGC in its" in switch["text"]) == (not state)
    assert ("--missing-state" in switch["text"]) == (not state)
    (tmp_path / "run.json").touch()  # of the laboratory
    command = f"clip.name=adagc --fork NEW_FOLDER --at {at}"
    assert command in actions_for(run, event, session)[1]["text"]


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
    assert "The clip cut the norm" in page["verdict"]["text"]
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
    most = page["what_if"]["most_clipped"]
    assert most[0]["tensors"] == "N.bias"
    assert most[0]["clipped"] >= rows[0]["calm_clipped"]


@pytest.mark.parametrize("num_steps", [3, 70])
def test_a_run_resumed_from_within_its_event(num_steps, tmp_path):
    """Back to a checkpoint at step 200; the worst step was 205."""
    keys, rng = ["0.weight"], np.random.default_rng(0)
    loss = 1 + 0.01 * rng.normal(size=240)
    loss[195:206] += 2 + 0.5 * np.arange(11)
    one = np.ones((240, 1), "f4")
    write(tmp_path, one, one, loss, keys=keys)
    calm = np.concatenate([loss[:200], loss[100 : 100 + num_steps]])
    one = np.ones((len(calm), 1), "f4")
    write(tmp_path, one, one, calm, keys=keys, start=200)
    page = make_page(tmp_path)
    (event,) = page["events"]
    assert (event["start"], event["end"]) == (195, 199)
    assert event["worst_step"] == 199
    assert event["loss"] == pytest.approx(loss[199], rel=1e-4)
    (alarm,) = read_record(tmp_path).alarms
    assert alarm["worst"] == pytest.approx(loss[199], rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "is_bound"),
    [
        ({"nonfinite": "raise"}, True),
        ({"overrides": {r"linear_\d+\.w": {"lambda_rel": 1.1}}}, False),
    ],
)
def test_what_if_takes_what_a_replay_can(arguments, is_bound, tmp_path):
    clip = ClipGradByAdaGC(t_start=20, **arguments)
    model, optimizer = make_training(clip)
    if is_bound:
        clip.bind(model)
    record = Record(tmp_path, optimizer, model)
    train(model, optimizer, range(150), record=record)
    record.close()
    assert len(make_page(tmp_path)["what_if"]["rows"]) == 4


@pytest.mark.parametrize("name", CLIPS)
def test_what_the_paper_s_adagc_would_have_clipped_first(name, tmp_path):
    model, optimizer = make_training(CLIPS[name]())
    record = Record(tmp_path, optimizer, model)
    train(model, optimizer, range(420), record=record)
    record.close()
    found = make_page(tmp_path)["what_if"]["early"]
    if name == "ours":
        assert found is None
        return
    assert (found["first_step"], found["last_step"]) == (100, 299)
    paper = "init=warmup_min,strict=true"
    (row,) = make_page(tmp_path, 300, [paper])["what_if"]["rows"]
    assert found["clipped"] == row["calm_clipped"]
    with pytest.raises(ValueError, match=r"steps 120 to 419 .*--step 300"):
        make_page(tmp_path, None, [paper])


def test_a_run_without_gradients_has_a_report(tmp_path):
    zero = np.zeros((150, 2), "f4")
    loss = np.ones(150)
    write(tmp_path, zero, zero + 1, loss, keys=["a", "b"])
    assert "what if" in as_text(make_page(tmp_path))


def test_kinds_of_tensors_that_are_clipped_most():
    h = np.array([[0.5, 1, 1, np.nan], [0.5, 0.9, 1, np.nan]])
    keys = ["layers.0.w1", "layers.11.w1", "layers.0.w2", "head"]
    assert most_clipped(h, keys) == [
        {"tensors": "layers.N.w1", "number": 2, "clipped": 0.75}
    ]
    assert most_clipped(h[:, :2], keys[:2]) == []


@pytest.mark.parametrize("seed", slow_but(1, range(1, 9)))
@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_tensors_that_rise_unequally(kind, seed, tmp_path):
    """A batch of wrong labels raises all, few of them by much; a layer some."""
    rng = np.random.default_rng(seed)
    keys = [f"layers.{i}.{part}" for i in range(8) for part in "abcd"]
    norms = np.exp(rng.normal(0, 0.25, (300, len(keys)))).astype("f4")
    loss = 2 + rng.normal(0, 0.02, 300)
    if kind == "batch":
        norms[BAD : BAD + 2] *= np.exp(rng.normal(1, 0.3, len(keys)))
        norms[BAD : BAD + 2, 5] *= 15
        loss[BAD : BAD + 2] += 4
    else:  # and the others, but slightly
        norms[BAD : BAD + 2] *= 1.3
        norms[BAD : BAD + 2, 4:8] *= 15
    lines, _ = write(tmp_path, norms, norms * 0 + 0.9, loss, keys=keys)
    event = worst(make_page(tmp_path))
    assert event["kind"] == kind
    assert (event["start"], event["end"]) == (BAD, BAD + 1)
    assert (event["share"] > 0.7) == (kind == "batch")
    assert event["guilty"][0]["key"] in keys[4:8]
    is_batch = ["tensors at once: a batch" in line for line in lines]
    assert is_batch == [kind == "batch"] * len(lines)
    assert kind == "layer" or lines


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


@pytest.mark.parametrize("name", CLIPS)
def test_nan_in_one_expert(name, tmp_path):
    """Paddle's clip brings it to all weights, a step later."""
    change = scale_gradient(
        lambda name: name == "3.weight",
        lambda step: float("nan") if step == BAD else 1,
    )
    page = page_of(tmp_path, CLIPS[name](), after=change)
    event = worst(page)
    assert event["kind"] == page["verdict"]["kind"] == "nonfinite"
    assert event["guilty"][0]["key"] == "3.weight"
    if name == "global":
        return
    assert [g["key"] for g in event["guilty"]] == ["3.weight"]
    assert event["guilty"][0]["ratio"] is None
    heat = {g["name"]: g["levels"] for g in page["heat"]["groups"]}
    assert "x" in heat["3"]
    assert "x" not in heat["2"]


def test_a_step_that_is_not_made(tmp_path):
    model, optimizer = make_training(CLIPS["global"]())
    lines = []
    record = Record(
        tmp_path, optimizer, model, skip_above=20, on_alarm=lines.append
    )
    change = lambda step, loss: loss * (50 if step == BAD else 1)  # noqa: E731
    steps = range(NUM_STEPS)
    train(model, optimizer, steps, record=record, change=change)
    record.close()
    page = make_page(tmp_path)
    event = worst(page)
    assert event["skipped"] == [BAD]
    assert event["clipped_norm"] is event["shadow_norm"] is None
    assert {guilty["h"] for guilty in event["guilty"]} == {None}
    assert "1 step was not made" in page["verdict"]["text"]
    assert not page["actions"]
    assert "; 1 left out" in lines[0]


def test_every_event_has_a_cause(tmp_path):
    """The loss alone; and norms that were unusual only to an older level."""
    rng = np.random.default_rng(1)
    norms = np.exp(rng.normal(0, 0.1, (300, 4))).astype("f4")
    norms[:, 0] = [1] * 64 + [1.9] * 26 + [2.1] * 210
    loss = 2 + rng.normal(0, 0.02, 300)
    loss[BAD] = 9
    lines, run = write(tmp_path, norms, norms * 0 + 0.9, loss, keys=[*"abcd"])
    assert run.alarms[0]["series"] == "tensor_norm"  # at 90
    page = make_page(tmp_path)
    assert [e["kind"] for e in page["events"]] == ["loss"]
    assert lines == [
        f"step {BAD}: loss 9 (usual {np.median(loss[92:220]):.4g})"
    ]
    assert worst(make_page(tmp_path, step=280))["kind"] == "calm"


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
    assert re.search(r"The norm [\d.]+ passed whole", printed)
    cases = ["--what-if", "lambda_rel=1.5", "--what-if", "beta=0.5"]
    assert main([str(tmp_path / "a"), "--text", *cases]) == 0
    printed = capsys.readouterr().out
    assert "beta=0.5" in printed
    assert re.search(r"calm, .*=1.5: clips \d+% of N\.bias \(4 ", printed)


def write_calm(folder, num_steps):
    """A record in which nothing changes."""
    writer = RecordWriter(folder)
    writer.index(["a"])
    ones = dict.fromkeys(QUANTITIES, np.ones((num_steps, 1), np.float32))
    writer.append_tensors([*range(num_steps)], ones)
    writer.append_steps({"step": s, "loss": 1.0} for s in range(num_steps))
    writer.close()


def test_what_if_in_a_short_run(tmp_path, capsys):
    write_calm(tmp_path, 20)
    assert main([str(tmp_path), "--text"]) == 0
    assert "more than 100 recorded steps" in capsys.readouterr().out
    assert main([str(tmp_path), "--text", "--what-if", "foo=1"]) == 2
    assert "argument 'foo'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "300"], r"has the steps 0 to 299"),
        (["--what-if", "lambda=2"], "argument 'lambda'"),
        (["--what-if", "foo"], "--what-if foo: write lambda_rel=1.2"),
        (["--what-if", "lambda_rel=x"], "must be a number, got 'x'"),
        (["nothing"], "holds no record.json"),
    ],
)
def test_mistakes(arguments, message, tmp_path, capsys):
    write_calm(tmp_path, 300)
    page = tmp_path / "page.html"
    run = [] if arguments == ["nothing"] else [str(tmp_path)]
    assert main([*run, *arguments, "--output", str(page)]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not page.exists()
    assert len(read_record(tmp_path).step) == 300


def test_a_run_whose_tensors_are_not_copied_yet(tmp_path, capsys):
    model, optimizer = make_training(CLIPS["global"]())
    record = Record(tmp_path, optimizer, model, shadow=False)
    train(model, optimizer, range(5), record=record)
    record.flush()
    assert main([str(tmp_path), "--text"]) == 0
    text = capsys.readouterr().out
    assert "needs more than 100 recorded steps, and there are 0." in text
    record.close()


def test_tensors_that_left_what_was_usual_long_before_are_no_event(tmp_path):
    """All grow by 2% a step until step 84: no tensor stands out."""
    rng = np.random.default_rng(0)
    level = np.exp(0.02 * np.minimum(np.arange(128), 84))[:, None]
    norms = (level * np.exp(rng.normal(0, 0.003, (128, 8)))).astype("f4")
    keys = [f"layers.{i}.w" for i in range(8)]
    lines, run = write(tmp_path, norms, norms * 0 + 1, np.ones(128), keys=keys)
    assert not lines
    assert {alarm["series"] for alarm in run.alarms} == {"tensor_norm"}
    assert make_page(tmp_path)["verdict"]["kind"] == "calm"


@pytest.mark.parametrize("samples", [32, [1, 2, 3], ["a", "b"]])
def test_samples_that_are_no_range_are_left_out(samples, tmp_path):
    rng = np.random.default_rng(0)
    norms = np.exp(rng.normal(0, 0.05, (200, 3))).astype("f4")
    norms[150] *= 50
    loss = 2 + rng.normal(0, 0.01, 200)
    loss[150] = 9
    rows = {"samples": samples}
    write(tmp_path, norms, norms * 0 + 1, loss, keys=[*"abc"], rows=rows)
    page = make_page(tmp_path)
    assert worst(page)["samples"] == []
    assert "Skip these samples" not in str(page["actions"])


def test_the_map_of_a_long_run_shows_its_event(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "_MAX_ROWS", 50)
    rng = np.random.default_rng(0)
    norms = np.exp(rng.normal(0, 0.05, (600, 3))).astype("f4")
    norms[301] *= 100
    write(tmp_path, norms, norms * 0 + 1, np.ones(600), keys=[*"abc"])
    groups = make_page(tmp_path)["heat"]["groups"]
    assert ["9" in group["levels"] for group in groups] == [True] * len(groups)


def test_what_if_keeps_what_is_recorded_of_the_clip(tmp_path):
    """In a run that is longer than what is replayed."""
    clip = ClipGradByAdaGC(beta=0.8, overrides={"^0[.]": {"lambda_rel": 3.0}})
    model, optimizer = make_training(clip)
    clip.bind(model)
    record = Record(tmp_path, optimizer, model)
    train(model, optimizer, range(450), record=record)
    record.close()
    h = read_record(tmp_path).tensors("h")[-200:]
    (row, *_) = make_page(tmp_path)["what_if"]["rows"]
    assert row["calm_clipped"] == pytest.approx(np.mean(h < 1), abs=0.01)


def test_a_step_whose_tensors_were_thinned_out(tmp_path):
    rng = np.random.default_rng(0)
    norms = np.exp(rng.normal(0, 0.05, (400, 3))).astype("f4")
    write(tmp_path, norms, norms * 0 + 1, np.ones(400), keys=[*"abc"])
    page = make_page(tmp_path, step=150)
    assert "No tensor left its usual norm" in page["verdict"]["text"]
    assert not page["actions"]
    rows = [block.copy() for block in arrays(tmp_path / TENSORS)]
    (tmp_path / TENSORS).write_bytes(
        b"".join(array_bytes(block[block["step"] % 2 == 0]) for block in rows)
    )
    text = make_page(tmp_path, step=151)["verdict"]["text"]
    assert "The tensors of this step were not kept" in text


def test_the_farthest_tensor_is_named(tmp_path):
    """The first of the second event is nearer than that of the first."""
    rng = np.random.default_rng(0)
    norms = np.exp(rng.normal(0, 0.03, (400, 20))).astype("f4")
    norms[:, 10:] *= 20
    norms[200, 1] *= 3
    norms[201, 2] *= 20
    norms[260, 3] *= 5
    keys = [f"layers.{i}.w" for i in range(20)]
    write(tmp_path, norms, norms * 0 + 1, np.ones(400), keys=keys)
    text = make_page(tmp_path)["verdict"]["text"]
    assert "2 tensors, layers.2.w at" in text


@pytest.mark.parametrize(
    "clip",
    [None, paddle.nn.ClipGradByNorm(0.5), paddle.nn.ClipGradByValue(0.01)],
)
def test_what_the_paper_s_adagc_clips_is_told_of_global_gc_alone(
    clip, tmp_path
):
    model, optimizer = make_training(clip)
    record = Record(tmp_path, optimizer, model)
    train(model, optimizer, range(310), record=record)
    record.close()
    assert make_page(tmp_path)["what_if"]["early"] is None


def test_the_clip_that_is_recorded_is_named(tmp_path):
    model, optimizer = make_training(CLIPS["global"]())
    record = Record(tmp_path, optimizer, model, shadow=ClipGradByAdaGC())
    bad = lambda step, loss: loss * (50 if step == 150 else 1)  # noqa: E731
    train(model, optimizer, range(200), record=record, change=bad)
    record.flush()
    page = make_page(tmp_path)
    assert "h of AdaGC" in as_text(page)
    assert "AdaGC would have left" in page["verdict"]["text"]
    assert "record.switch()" in str(page["actions"])
    record.switch()
    train(model, optimizer, range(200, 210), record=record)
    record.close()
    page = make_page(tmp_path)
    assert page["clip"].startswith("ClipGradByAdaGC(")
    assert page["shadow"] is None
    assert "Switch" not in str(page["actions"])


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
NARROW = "<style>body { width: 400px !important; }</style></head>"
MEASURE = """<script>
const seen = [...document.querySelectorAll(".scroll, main")].map(
  box => box.scrollWidth - box.clientWidth);
document.body.innerHTML = `<pre id="seen">${JSON.stringify(seen)}</pre>`;
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_nothing_scrolls_sideways_at_400_pixels(tmp_path):
    change = lambda step, loss: loss * (50 if step % 100 == 90 else 1)  # noqa: E731
    page_of(tmp_path, CLIPS["global"](), change=change)
    path = tmp_path / "page.html"
    assert main([str(tmp_path), str(tmp_path), "--output", str(path)]) == 0
    page = path.read_text().replace("</head>", NARROW, 1)
    path.write_text(page.replace("</body>", MEASURE))
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu"),
        "--window-size=500,900",
        *(f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"),
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (seen,) = re.findall(r'<pre id="seen">(.*?)</pre>', done.stdout)
    assert {*json.loads(seen)} == {0}
    assert len(json.loads(seen)) > 4
