# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The page, the text and the command; records of strangers; CSV files."""

import json
import math
import re
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import feed
from watch.gallery import train
from watch.network import write as write_record

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.watch.command import main, make_page
from paddle_adagc.watch.measure import Steps
from paddle_adagc.watch.replay import Settings, replay
from paddle_adagc.watch.store import FILE
from paddle_adagc.watch.text import as_text


@pytest.fixture(scope="module")
def spiked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spiked") / "record"
    return train("one batch, late", folder)


def data_of(path):
    text = path.read_text()
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    return json.loads(found, parse_constant=pytest.fail)


# ---- the command ------------------------------------------------------------


def test_the_page_lies_in_the_record_and_is_made_anew(spiked, capsys):
    assert main([str(spiked)]) == 0
    assert main([str(spiked)]) == 0
    page = spiked / "report.html"
    assert f"browser:\n    {page}\n" in capsys.readouterr().out
    text = page.read_text()
    assert not re.findall(r'(?:src|href)="(?!data:,)', text)
    (found,) = data_of(page)
    assert found["verdict"]["kind"] == "loss spike"
    assert len(found["heat"]["groups"][0]["levels"]) <= 120


def test_a_file_of_somebody_else_stays(spiked, tmp_path, capsys):
    mine = tmp_path / "report.html"
    mine.write_text("<html>mine</html>")
    assert main([str(spiked), "--output", str(mine)]) == 2
    assert "--output" in capsys.readouterr().err
    assert mine.read_text() == "<html>mine</html>"


def test_two_runs_are_on_one_page(spiked, tmp_path):
    other = train("NaN loss raised", tmp_path / "b")
    page = tmp_path / "ab.html"
    assert main([str(spiked), str(other), "--output", str(page)]) == 0
    assert [run["num_steps"] for run in data_of(page)] == [400, 379]


def test_the_text_has_at_most_40_lines(spiked, capsys):
    assert main(["--text", str(spiked)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert any("There is nothing to do" in line for line in lines)
    assert '"skip_data_intervals": [[300, 300]]' in "\n".join(lines)
    assert any(line.startswith("this run's clip") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "401"], "has the steps 1 to 400"),
        (["--what-if", "lambda_rell=2"], "the arguments are lambda_rel"),
        (["--what-if", "beta=1.0"], r"beta must be in \[0, 1\)"),
        (["--what-if", "t_start=9"], "give lambda_rel or beta"),
        (["--text", "--output", "x"], "--text writes no"),
    ],
)
def test_a_mistake_is_named(arguments, message, spiked, capsys):
    assert main([str(spiked), *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_reading_takes_numpy_alone(spiked):
    code = (
        "import sys; sys.modules['paddle'] = None\n"
        "from paddle_adagc.watch.command import main\n"
        f"sys.exit(main(['--text', {str(spiked)!r}]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert ended.returncode == 0, ended.stderr


# ---- records of strangers ---------------------------------------------------


def write(folder, rows, keys=("a.0.weight",), facts=None, ends=None):
    table = np.ones((len(rows), len(keys)), "f4")
    tensors = dict.fromkeys(("norm", "gamma", "h"), table)
    ends = ends or {"kind": "exception", "text": "\x1b[2Jboo"}
    steps = Steps(rows, [*keys], tensors)
    return write_record(folder, steps, facts or {}, ends)


def write_series(folder, losses, **series):
    """A finished run of one loss, and other numbers, a step."""
    series = {"loss": losses, **series}
    rows = [
        {"step": step, **dict(zip(series, map(float, values), strict=True))}
        for step, values in enumerate(zip(*series.values(), strict=True), 1)
    ]
    return write(folder, rows, ends={"kind": "finished"})


def hostile(folder):
    rows = [
        {"step": step, "loss": 1.0 + step % 3 / 50, "samples": "all of them"}
        for step in range(1, 200)
    ]
    rows[100] |= {"loss": "high", "global_grad_norm": [1], "x" * 9: 10**400}
    rows[150] |= {"loss": 9.0, "learning_rate": math.nan}
    facts = {
        "clip": "ClipGradByAdaGC(overrides={'(a|a)+$': 0}, lambda_rel=inf)",
        "shadow": "ClipGradByAdaGC(" + "(" * 5000,
        "beta2": "</script><script>alert(1)</script>",
        "optimizer": "\x1b]0;title\x07",
        "model": {"a": [1]},
        "shares_loss_with": ["\x1b[1m", 3],
    }
    keys = ["a" * 40 + "!.0.w", "\x1b[2J\u202e.1.w", "</script><b>.2.w"]
    write(folder, rows, keys, facts)
    alarms = [
        (1, "state", "unheard\x1b[2J of", '{"value": 3.0}'),
        (151, "spike", "unheard of", '{"value": 1, "usual": 1, "bound": 1}'),
        (120, "spike", "loss", '{"value": 1, "usual": 1, "bound": 99}'),
        (9999, "nan", "loss", '{"value": 1, "usual": 1, "bound": 1}'),
        (101, "spike", "loss", '{"value": 1, "usual": 1, "bound": 1}'),
    ]
    with sqlite3.connect(folder / FILE) as file:
        query = "INSERT INTO alarms VALUES (1, ?, ?, ?, ?)"
        file.executemany(query, alarms)
    return folder


def test_nothing_of_a_stranger_s_runs_hangs_or_reaches_the_terminal(
    tmp_path, capsys
):
    folder, started = hostile(tmp_path / "re\x1bcord"), time.monotonic()
    assert main([str(folder)]) == 0
    assert main(["--text", str(folder)]) == 0
    assert time.monotonic() - started < 20
    out = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in out)
    assert "\\x1b[2Jboo" in out
    assert "The loss reaches the parameters of \\x1b[1m, 3, too" in out
    text = (folder / "report.html").read_text()
    assert text.count("</script>") == 2
    assert "<b>" not in text
    (page,) = data_of(folder / "report.html")
    assert page["events"][page["worst"]]["first"] == 151


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"step": 5}],
        [{"step": s, "loss": math.nan} for s in range(1, 100)],
        [{"step": s, "loss": 0.0} for s in range(1, 100)],
        [{"step": s, "loss": -s * 1e300} for s in range(1, 100)],
        [{"step": 3 * s, "loss": 2.0 + s % 2} for s in range(1, 100)],
        [{"step": s, "global_grad_norm": 1e38} for s in range(1, 100)],
        [
            {"step": s, **({} if s % 4 else {"loss": 1 + s % 7 / 100})}
            for s in range(1, 400)
        ],
    ],
    ids=[
        *("no step", "one step", "NaN alone", "zeros"),
        *("far below zero", "gaps", "no loss", "few losses"),
    ],
)
def test_a_record_with_little_in_it(rows, tmp_path):
    page = make_page(write(tmp_path, rows))
    json.dumps(page, allow_nan=False)
    assert as_text(page)
    is_nan = any(row.get("loss", 0) != row.get("loss", 0) for row in rows)
    assert len(page["events"]) == is_nan


@pytest.mark.parametrize("seed", range(5))
def test_a_spike_among_noise_leaves_nothing_behind(seed, tmp_path):
    """What is usual there is known no better than 64 losses tell."""
    random = np.random.default_rng(seed)
    losses = 2 + 0.05 * random.normal(size=4000)
    losses[1000:4000:500] *= 2
    events = make_page(write_series(tmp_path, losses))["events"]
    assert [e["kind"] for e in events] == ["loss spike"] * 6
    assert [e["first"] for e in events] == [*range(1001, 4001, 500)]


def test_a_loss_that_stays_higher_was_never_usual_again(tmp_path):
    """The spike ends; what it left behind does not."""
    losses = 2 + 0.02 * np.random.default_rng(0).normal(size=400)
    losses[200:203] *= 4
    losses[203:] += 0.15
    (event,) = make_page(write_series(tmp_path, losses))["events"]
    assert event["kind"] == "loss shift"
    assert (event["first"], event["last"]) == (201, 203)
    assert event["after"][0]["mean"] == pytest.approx(2.15, abs=0.02)
    assert event["back"] is None


def test_a_loss_that_comes_back_slowly_is_measured_against_before(tmp_path):
    """A step looked at before it is back has the same steps before it."""
    losses = 2 + 0.05 * np.random.default_rng(0).normal(size=600)
    losses[300:305] *= 1.7
    losses[305:] += 0.25 * np.exp(-np.arange(295) / 60)
    rates = np.full(600, 0.003)
    rates[298:304] = 0.09
    folder = write_series(tmp_path, losses, learning_rate=rates)
    page = make_page(folder)
    (event,) = page["events"]
    assert [action["code"] for action in page["actions"]] == ["rate"]
    assert event["kind"] == "loss spike"
    assert 400 < event["back"] < 550
    page = make_page(folder, step=380)
    (step,) = page["events"]
    assert (page["verdict"]["kind"], page["actions"]) == ("step", [])
    assert step["before"] == event["before"]
    assert (step["before"]["first"], step["before"]["last"]) == (237, 300)


@pytest.mark.parametrize("rise", [0, 0.06])
def test_a_norm_that_stays_is_harm_only_with_a_higher_loss(rise, tmp_path):
    random = np.random.default_rng(0)
    losses = 2 + 0.05 * random.normal(size=600)
    norms = np.exp(0.1 * random.normal(size=600))
    losses[420:] += rise
    norms[420:] *= 1e8
    folder = write_series(tmp_path, losses, global_grad_norm=norms)
    page = make_page(folder)
    assert page["verdict"]["kind"] == "norm shift"
    advised = [action["code"] for action in page["actions"]]
    assert advised == (["return"] if rise else ["nothing"])


# ---- replay -----------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"init": "warmup_ema"},
        {"strict": True},
        {"lambda_rel": 1.5, "beta": 0.9, "t_start": 20},
        {"lambda_abs": 50.0, "t_start": 10, "init": "warmup_ema"},
        {"lambda_abs": math.inf, "t_start": 0},
    ],
    ids=str,
)
def test_a_replay_is_the_clip(arguments):
    """On steps that the rule treats as exceptions, too."""
    random = np.random.default_rng(1)
    norms = np.exp(random.normal(size=(200, 6)) / 2).astype("f4")
    norms[30] *= 1e4
    norms[5] *= 1e-3
    norms[7, 3] *= 1e-2
    norms[31, 2] = 0
    norms[150] *= 20
    norms[160, 1] = np.inf
    clipped, gamma = feed(ClipGradByAdaGC(**arguments), norms)
    found = replay(norms, Settings(**arguments))
    finite = np.where(np.isfinite(norms), norms, 0)
    np.testing.assert_allclose(clipped, found.h * finite, rtol=2e-6)
    np.testing.assert_allclose(gamma, found.gamma, rtol=2e-6)


KEYS = [f"layers.{i}.weight" for i in range(8)]


def csv_of(norms, kind):
    if kind == "long":
        yield "step,tensor,norm"
    else:
        yield "Step," + ",".join(f"run - {k},run - {k}__MIN" for k in KEYS)
    for step, row in enumerate(norms.tolist(), 1):
        if kind == "long":
            yield from (
                f"{step},{k},{x}" for k, x in zip(KEYS, row, strict=True)
            )
        else:
            yield f"{step}," + ",".join(f"{x},{x}" for x in row)


@pytest.mark.parametrize("kind", ["long", "wide"])
def test_norms_of_any_trainer_are_replayed(kind, tmp_path, capsys):
    norms = np.exp(np.random.default_rng(2).normal(size=(200, 8)) / 10)
    norms[150, 4] *= 40
    file = tmp_path / "norms.csv"
    file.write_text("\n".join(csv_of(norms, kind)))
    assert main(["replay", str(file), "--settings", "t_start=50"]) == 0
    out = capsys.readouterr().out
    assert "200 steps (1 to 200), 8 tensors" in out
    h = replay(norms, Settings(t_start=50)).h[50:]
    assert f"{np.mean(h < 1):.0%} of the tensors; median h" in out
    worst = next(x for x in out.splitlines() if "layers.4.weight" in x)
    assert "151" in worst
    assert "open loop" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column is named step"),
        ("a,b\n1,2", "columns are a, b, and have to be step, tensor, norm; or"),
        ("step,tag,value\n1,a,2", "columns are step, tag, value, and have"),
        ("step,a\n1,x", "line 2: could not convert string to float: 'x'"),
        ("step,a\n", "no norms of tensors"),
        ("step,a\nnan,1", "line 2: invalid literal for int()"),
        ("step,a\n1," + "9" * 200_000, "field larger than field limit"),
    ],
)
def test_a_wrong_csv_is_named(text, message, tmp_path, capsys):
    (tmp_path / "x.csv").write_text(text)
    assert main(["replay", str(tmp_path / "x.csv")]) == 2
    assert message in capsys.readouterr().err
