# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run prints: lines while it trains, and how it ended."""

import contextlib
import io
import json
import re
import subprocess
from collections import Counter
from unittest import mock

import numpy as np
import paddle.distributed as dist
import pytest
from adagc_lab.data.text import TokenDataset
from adagc_lab.train.console import describe_log, rounded_rate
from adagc_lab.train.recorder import SUMMARIZED, StepRecorder
from core.parallel.ranks import run_on_ranks
from lab.train import runs
from pages import load_tool

LINE = re.compile(
    r"step (\d+)/12  loss [\d.]+  lr [\d.]+  \|g\| [\d.]+  clipped \d+%  "
    r"h_min [\d.]+( \(\S+\))?  [\d.]+k? tok/s  ETA \d\d:\d\d"
)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.5, "0.5"), (685.2, "685"), (999.7, "1.00k"), (12345, "12.3k")],
)
def test_a_rate_has_three_digits_and_no_exponent(rate, text):
    assert rounded_rate(rate) == text


def test_plain_lines_and_how_a_run_went_on(tmp_path, capsys):
    values = runs.make_values(tmp_path / "run", eval_every=6, save_every=4)
    with runs.interrupted_at(9):
        runs.run(values)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "10,416 parameters in 12 tensors, 64 tokens per step, 12 steps"
    )
    steps = [int(m[1]) for line in lines if (m := LINE.fullmatch(line))]
    assert steps == [3, 6, 9]
    assert len(lines) == 5
    assert lines[3].startswith("step 6/12  validation loss ")
    runs.run(values)
    assert "resumed at step 8" in capsys.readouterr().out.splitlines()
    runs.run(values)
    assert capsys.readouterr().out == (
        f"{tmp_path / 'run'}: already finished, nothing to do\n"
    )


@pytest.mark.slow
def test_a_rising_loss_is_said_and_is_exit_status_1(tmp_path):
    changes = {"schedule": {"learning_rate": 3.0}, "max_steps": 30}
    changes["clip"] = {"name": "global_norm", "lambda_abs": 1e6}
    values = runs.make_values(tmp_path / "run", **changes)
    process = runs.start(values, tmp_path, stderr=subprocess.PIPE)
    out, errors = process.communicate()
    assert process.returncode == 1, errors
    last = out.splitlines()[-1]
    assert re.match(r"the loss (ended at .* above|is not finite)", last)


def test_a_run_that_an_error_ended_is_not_called_running(tmp_path, capsys):
    values = runs.make_values(tmp_path / "run")
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(values))
    get = TokenDataset.__getitem__

    def read(self, index):
        if index == 17:
            raise ValueError("shard x.tar is damaged")
        return get(self, index)

    with mock.patch.object(TokenDataset, "__getitem__", read):
        assert load_tool("pretrain").main([str(config)]) == 2
    assert "shard x.tar is damaged" in capsys.readouterr().err
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert run["status"] == "stopped"
    record = (tmp_path / "run/metrics.jsonl").read_text()
    assert len(record.splitlines()) in (3, 4)


def test_a_log_without_a_clip_s_numbers():
    logs = {"loss": 3.49123, "learning_rate": 3e-3}
    assert describe_log(logs, {}) == "loss 3.491  lr 0.003"


@pytest.mark.parametrize("name", ["global_norm", "value", "none"])
def test_other_clips_have_the_same_numbers_at_every_log(tmp_path, name, capsys):
    """Norms read by the clip alone and by the record of all tensors."""
    records = {}
    for tensors in (True, False):
        clip = {} if name == "none" else {"lambda_abs": 0.01}
        values = runs.make_values(
            tmp_path / str(tensors),
            save_every=5,
            clip={"name": name, **clip},
            record={"tensors": tensors},
        )
        _, records[tensors] = runs.run(values)
    whole, logged = records[True].metrics, records[False].metrics
    np.testing.assert_array_equal(whole["loss"], logged["loss"])
    has_numbers = np.isfinite(logged["global_grad_norm"])
    steps = np.flatnonzero(has_numbers) + 1
    assert steps.tolist() == [3, 5, 6, 9, 10, 12]
    for key in ("global_grad_norm", "clipped_fraction"):
        expected = np.where(has_numbers, whole[key], np.nan)
        np.testing.assert_allclose(logged[key], expected, rtol=1e-6)
    lines = [x for x in capsys.readouterr().out.splitlines() if "tok/s" in x]
    assert len(lines) == 8
    assert all(map(LINE.match, lines))
    numbers = [re.split(r"  \S+ tok/s", line)[0] for line in lines]
    assert numbers[:4] == numbers[4:]


SMALL = (
    "data.validation_size=16",
    "train.max_steps=12",
    "train.log_every=4",
    "train.gradient_accumulation_steps=2",
    "train.save_every=0",
)
LAYOUTS = {
    "dp2": (2, ("train.batch_size=4", "parallel.dp=2")),
    "tp2": (2, ("train.batch_size=8", "parallel.tp=2")),
}
ADAGC = "clip.t_start=4"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


def printed(output_dir, overrides):
    """Run on this rank; what it prints, and its gathers by number of steps."""
    ended, gathers = [], Counter()
    end_step, gather = StepRecorder.end_step, dist.all_gather_object

    def counted_step(self, **measures):
        end_step(self, **measures)
        ended.append(1)

    def counted_gather(*args, **kwargs):
        gathers[len(ended)] += 1
        return gather(*args, **kwargs)

    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        mock.patch.object(StepRecorder, "end_step", counted_step),
        mock.patch.object(dist, "all_gather_object", counted_gather),
    ):
        runs.pretrain(runs.small_ernie(output_dir, *SMALL, *overrides))
    return out.getvalue().splitlines(), dict(gathers)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process recorded and printed."""
    directory = tmp_path_factory.mktemp("alone") / "run"
    lines, _ = printed(directory, [ADAGC, "train.batch_size=8"])
    return directory, lines


def logged(lines, directory):
    """Text of the log up to its rates without numbers; recorded numbers."""
    logs = [re.split(r"  \S+ tok/s", x)[0] for x in lines if "tok/s" in x]
    recorded = [
        {name: row[name] for name in ("loss", *SUMMARIZED)}
        for row in runs.rows_of(directory)
        if SUMMARIZED[0] in row
    ]
    return [NUMBER.sub("#", line) for line in logs], recorded


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_processes_print_the_numbers_of_one(layout, alone, tmp_path):
    directory, expected = alone
    size, overrides = LAYOUTS[layout]
    (lines, gathers), *others = run_on_ranks(
        printed,
        size,
        output_dir=tmp_path / "run",
        overrides=[ADAGC, *overrides],
    )
    assert all(silent == [] for silent, _ in others)
    assert lines[0] == expected[0]
    texts, recorded = logged(lines, tmp_path / "run")
    their_texts, theirs = logged(expected, directory)
    assert texts == their_texts
    assert len(texts) == 3
    for one, other in zip(recorded, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    # Two gathers for each line of the log, of the summary and of the record,
    # and none in the steps between. Where every rank has every tensor the
    # summary needs none. AdaGC also compares the ranks at its first adaptive
    # step, whose number is 4.
    in_steps = Counter({step: n for step, n in gathers.items() if step})
    logs = Counter([4, 8, 12] * (1 if layout == "dp2" else 2))
    assert in_steps == logs + Counter([4])
