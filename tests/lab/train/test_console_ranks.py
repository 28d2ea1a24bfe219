# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several processes print and record the numbers of one."""

import contextlib
import io
import json
import re
from collections import Counter
from pathlib import Path
from unittest import mock

import paddle.distributed as dist
import pytest
from core.parallel.ranks import run_on_ranks
from helpers import long_but

from paddle_adagc.lab.train.parse import load_config
from paddle_adagc.lab.train.recorder import StepRecorder
from paddle_adagc.lab.train.run import run_pretraining

ROOT = Path(__file__).parents[3]
ERNIE = ROOT / "configs/proxy/ernie_moe.yaml"
SMALL = (
    "model.hidden_size=32",
    "model.moe_intermediate_size=32",
    "record.tensors=false",
    "record.moments=false",
    "data.validation_size=16",
    "train.max_steps=12",
    "train.log_every=4",
    "train.gradient_accumulation_steps=2",
    "train.visualdl=false",
    "train.save_every=0",
)
LAYOUTS = {
    "dp2": (2, ("train.batch_size=4", "parallel.dp=2")),
    "tp2_pp2": (4, ("train.batch_size=8", "parallel.tp=2", "parallel.pp=2")),
    "ep2": (2, ("train.batch_size=4", "parallel.ep=2", "parallel.sharding=2")),
}
CLIPS = {
    "adagc": ("clip.t_start=4",),
    "global_norm": ("clip.name=global_norm", "clip.lambda_abs=0.1"),
}
RECORDED = ("loss", "global_grad_norm", "clipped_fraction", "nonfinite")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


def printed(overrides):
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
        run_pretraining(load_config(ERNIE, [*SMALL, *overrides]))
    return out.getvalue().splitlines(), dict(gathers)


def rows(directory):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "most_clipped" in row]


def log_lines(lines):
    """Lines of the log up to their rate."""
    return [re.split(r"  \S+ tok/s", x)[0] for x in lines if "tok/s" in x]


@pytest.fixture(scope="module", params=CLIPS)
def alone(request, tmp_path_factory):
    """Clip, and what one process recorded and printed with it."""
    directory = tmp_path_factory.mktemp("alone") / "run"
    values = ["train.batch_size=8", f"train.output_dir={directory}"]
    lines, _ = printed([*CLIPS[request.param], *values])
    return request.param, directory, lines


@pytest.mark.slow
@pytest.mark.parametrize("layout", long_but(("dp2", "tp2_pp2"), LAYOUTS))
def test_numbers_of_one_process(layout, alone, tmp_path):
    clip, directory, expected = alone
    size, overrides = LAYOUTS[layout]
    overrides = [
        *CLIPS[clip],
        *overrides,
        f"train.output_dir={tmp_path / 'run'}",
    ]
    (lines, gathers), *others = run_on_ranks(printed, size, overrides=overrides)
    assert all(silent == [] for silent, _ in others)
    assert lines[0] == expected[0]
    mine, theirs = log_lines(lines), log_lines(expected)
    assert len(mine) == 3
    for one, other in zip(mine, theirs, strict=True):
        assert NUMBER.sub("#", one) == NUMBER.sub("#", other)
        numbers = [[*map(float, NUMBER.findall(x))] for x in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], rel=2e-3)
    for one, other in zip(rows(tmp_path / "run"), rows(directory), strict=True):
        for name in RECORDED:
            assert one[name] == pytest.approx(other[name], rel=1e-5), name
        assert one["most_clipped"] == pytest.approx(
            other["most_clipped"], rel=1e-5
        )
    # One gather for each line of the log, and none in the steps between; none
    # at all where every rank has every tensor. AdaGC also compares the ranks at
    # its first adaptive step, whose number is 4.
    in_steps = Counter({step: n for step, n in gathers.items() if step})
    logs = Counter() if layout == "dp2" else Counter([4, 8, 12])
    assert in_steps == logs + Counter([4] if clip == "adagc" else [])
