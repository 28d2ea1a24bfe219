# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The whole plan, of recipes at full size and on the command line."""

import json
from pathlib import Path

import pytest

from paddle_adagc.lab.cli.plan import main
from paddle_adagc.lab.plan.costs import PAPER_RUNS, Interconnect, compare
from paddle_adagc.lab.plan.dry_run import ADAGC, GLOBAL_GC
from paddle_adagc.lab.plan.plan import plan_run, resized
from paddle_adagc.lab.plan.text import as_json, render
from paddle_adagc.lab.train.config import ParallelConfig

CONFIGS = Path(__file__).parents[3] / "configs"
PROXY = CONFIGS / "proxy/ernie_moe.yaml"
ERNIE = CONFIGS / "ernie_10b_a1.4b_fp8/adagc.yaml"


@pytest.fixture(scope="module")
def ernie():
    return plan_run(ERNIE, sizes_to_grow=[8, 32, 512])


@pytest.mark.slow
def test_ernie_recipe(ernie):
    assert ernie.config.parallel.num_processes == 256
    assert ernie.config.global_batch == 4096
    # 25 layers x (qkv, o, 2 norms, router, 2 each of 49 experts) + 3
    assert ernie.size.tensors_if_fused == 25 * 103 + 3
    assert len(ernie.stages) == 4
    # A rank holds 6 of 48 experts; the other 42 are on other ranks.
    held = ernie.size.tensors - 25 * 3 * 42
    assert sum(stage.tensors for stage in ernie.stages) == held
    experts = 25 * 3 * 2560 * 1024
    held = ernie.size.parameters - 42 * experts
    assert sum(stage.parameters for stage in ernie.stages) == held
    assert ernie.worst_stage.stage == 0


def test_growth_leaves_out_what_does_not_fit(ernie):
    assert [*ernie.growth] == [32, 512]
    for num_gpus, steps in ernie.growth.items():
        sharding = num_gpus // 4
        by_step = {step.step: step for step in steps}
        first = by_step[GLOBAL_GC].collectives[0]
        assert (first.group, len(first.ranks)) == ("sharding", sharding)
    small, large = (steps[-1] for steps in ernie.growth.values())
    assert [c.group for c in small.collectives] == ["sharding"]
    assert [c.group for c in large.collectives] == ["sharding", "moe_sharding"]
    assert large.step == ADAGC
    assert large.ring_us > small.ring_us


def test_text_and_json(ernie):
    text = render(ernie)
    assert "10,559,741,440 (10.56B)" in text
    assert "3,853, 3,828 without routers" in text
    assert "1 all_reduce of 280 B over sharding (64 ranks)" in text
    assert "The layout does not fit on 8 GPUs." in text
    assert max(map(len, text.splitlines())) <= 120
    values = json.loads(json.dumps(as_json(ernie)))
    assert values["model"]["gamma_bytes"] == 4 * 3853
    assert values["clip"][0]["collectives"][0] == {
        "name": "all_reduce",
        "group": "sharding",
        "num_ranks": 64,
        "num_bytes": 4,
    }
    total = sum(values["stages"][0]["memory"].values())
    assert values["stages"][0]["total_bytes"] == total


@pytest.mark.parametrize(
    ("parallel", "num_gpus", "expected"),
    [
        ({"dp": 2, "tp": 2}, 16, {"dp": 8, "tp": 2}),
        ({"sharding": 64, "pp": 4, "ep": 8}, 32, {"sharding": 8}),
        ({"dp": 2, "sharding": 4}, 16, {"dp": 2, "sharding": 8}),
        ({"tp": 2, "sharding": 2, "ep": 4}, 8, {"sharding": 4, "ep": 4}),
    ],
)
def test_resized(parallel, num_gpus, expected):
    layout = resized(ParallelConfig(**parallel), num_gpus)
    assert layout.num_processes == num_gpus
    assert {key: getattr(layout, key) for key in expected} == expected


def test_refuses_a_number_of_gpus_with_the_nearest_ones():
    layout = ParallelConfig(sharding=64, pp=4, ep=8)
    with pytest.raises(
        ValueError, match=r"100 GPUs .* pp 4 x ep 8 = 32: use 96 or 128"
    ):
        resized(layout, 100)
    with pytest.raises(ValueError, match=r"use 32$"):
        resized(layout, 8)


@pytest.mark.slow
def test_paper_table():
    for run, comparison in zip(
        PAPER_RUNS, compare(Interconnect()), strict=True
    ):
        assert comparison.run == run
        for prediction in comparison.predictions:
            gap = prediction.global_gc_us - prediction.adagc_us
            hours = gap * 1e-6 / 3600 * run.steps * run.num_gpus
            assert prediction.hours_saved == pytest.approx(hours)
            assert prediction.hours_saved < (
                run.global_gc_hours - run.adagc_hours
            )
    assert PAPER_RUNS[0].num_gpus == 256
    assert PAPER_RUNS[1].num_gpus == 64
    assert PAPER_RUNS[3].num_gpus == 256
    # 1,468.2 h on 64 GPUs and 9,000 steps
    assert PAPER_RUNS[1].ms_per_step(1468.2) == pytest.approx(9176.25)


@pytest.mark.slow
def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("paddle_adagc.lab.plan.plan.SIZES", (8, 16))
    arguments = [str(PROXY), "--gpus", "16", "train.batch_size=4"]
    assert main([*arguments, "--json", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    for name in ("plan.json", "plan.txt", "clip_communication.png"):
        assert str(tmp_path / name) in printed.err
    values = json.loads(printed.out)
    assert values["notes"][0] == "64 sequences a step, the recipe has 32"
    assert values["num_gpus"] == 16
    assert values["sequences_per_step"] == 64
    assert values["model"]["tensors_if_fused"] is None
    assert json.loads((tmp_path / "plan.json").read_text()) == values
    assert "Plan of" in (tmp_path / "plan.txt").read_text()
    png = (tmp_path / "clip_communication.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "clip_communication.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(PROXY), "parallel.tp=2", "--gpus", "3"], "3 GPUs are not a"),
        ([str(PROXY), "train.batch=1"], "unknown key 'train.batch'"),
        (
            [str(PROXY), "--interconnect", "ib=1"],
            "interconnect: unknown key 'ib'",
        ),
        (["nowhere.yaml"], "no config file nowhere.yaml"),
        ([str(PROXY), "--gpus", "0"], "GPUs must be at least 1, got 0"),
        ([str(PROXY), "--gpus", "-4"], "GPUs must be at least 1, got -4"),
    ],
)
def test_command_refuses(arguments, message, capsys):
    if "parallel.tp=2" in arguments:
        arguments.insert(2, "record={tensors: false, moments: false}")
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_an_unusable_output_is_refused_before_planning(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("paddle_adagc.lab.plan.plan.plan_run", None)
    (tmp_path / "file").touch()
    assert main([str(PROXY), "--output", str(tmp_path / "file")]) == 2
    error = f"--output is '{tmp_path}/file', and {tmp_path}/file is a file"
    assert f"tools/plan.py: {error}" in capsys.readouterr().err


def test_a_broken_config_is_refused(tmp_path, capsys):
    (tmp_path / "run.yaml").write_text("clip: [")
    assert main([str(tmp_path / "run.yaml")]) == 2
    assert "run.yaml, line 1: not YAML" in capsys.readouterr().err
