# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs are found by their config, whoever ordered them."""

from paddle_adagc.lab.reproduce.pool import Arm, Pool
from paddle_adagc.lab.reproduce.results import (
    CellResult,
    ExperimentResult,
    TargetResult,
    longest,
    merge_results,
    paired,
)

CONFIG = {"schedule.kind": "constant", "train.max_steps": 2500, "a": 1}


def cell(
    key, method="A", seed=1, steps=2500, config=None, cpu=None, **measures
):
    return CellResult(
        method=method,
        seed=seed,
        key=key,
        measures={"steps": float(steps), **measures},
        config=config or {},
        machine={"processor": cpu, "instruction_sets": []} if cpu else {},
    )


def result(*cells, target="t", config=CONFIG):
    experiment = ExperimentResult(
        name="e", title="E", config=config, cells=[*cells]
    )
    return TargetResult(target=target, title="T", experiments=[experiment])


def test_every_file_is_searched_and_a_run_counts_once():
    adagc = {"clip.name": "adagc"}
    first = result(cell("x", config=adagc), cell("y", seed=2, config=adagc))
    second = result(
        cell("x", config=adagc),
        cell("z", seed=3, config={**adagc, "clip.beta": 0.99}),
        cell("other", config={"clip.name": "global_norm"}),
        target="u",
    )
    pool = Pool([first, second])
    runs = pool.runs(Arm.of({**CONFIG, **adagc}))
    assert [run.key for run in runs] == ["x", "y", "z"]
    strict = Arm.of({**CONFIG, **adagc, "clip.beta": 0.98})
    assert pool.runs(strict) == []


def test_lengths_pool_under_a_constant_schedule_alone():
    for kind, expected in (
        ("constant", ["short", "long"]),
        ("cosine", ["short"]),
    ):
        config = {**CONFIG, "schedule.kind": kind}
        del config["train.max_steps"]
        pool = Pool(
            [
                result(
                    cell("short", config={"train.max_steps": 2500}),
                    cell("long", steps=4000, config={"train.max_steps": 4000}),
                    config=config,
                )
            ]
        )
        arm = Arm.of({**CONFIG, "schedule.kind": kind})
        assert [run.key for run in pool.runs(arm)] == expected


def test_pairs_share_seed_length_and_processor():
    runs = [
        cell("a", loss=1),
        cell("b", steps=4000, loss=1),
        cell("c", seed=2, cpu="X", loss=1),
        cell("d", seed=3, loss=1),
    ]
    others = [
        cell("A", loss=2),
        cell("C", seed=2, cpu="Y", loss=2),
        cell("D", seed=3),
    ]
    assert [run.key for run in longest(runs)] == ["b", "c", "d"]
    assert paired(runs, others, "loss") == [(runs[0], others[0])]
    assert len(paired(runs, others)) == 2


def test_a_run_whose_processor_was_recorded_comes_first():
    runs = [cell("a", loss=1), cell("a", cpu="X", loss=3)]
    others = [cell("b", loss=2)]
    assert longest(runs) == [runs[1]]
    assert paired(runs, others) == [(runs[0], others[0])]
    others += [cell("b", cpu="X", loss=5)]
    assert paired(runs, others) == [(runs[1], others[1])]
    assert [run.run_id for run in runs] == ["a", "a on X"]


def test_merging_keeps_all_runs_and_their_configs():
    old = result(cell("x", loss=1), cell("y", seed=2))
    config = {**CONFIG, "a": 2}
    new = result(cell("x", loss=3), cell("z", seed=3), config=config)
    merged = merge_results(old, new)
    (experiment,) = merged.experiments
    assert {c.key: c.config.get("a") for c in experiment.cells} == {
        "x": 2,
        "y": 1,
        "z": 2,
    }
    assert "a" not in experiment.config
    x, y = (Pool([merged]).runs(Arm.of({**CONFIG, "a": a})) for a in (2, 1))
    assert [run.key for run in x] == ["x", "z"]
    assert x[0].measures["loss"] == 3
    assert [run.key for run in y] == ["y"]
