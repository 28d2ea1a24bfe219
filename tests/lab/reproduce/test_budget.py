# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a budget pays for, by hand-worked times."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from paddle_adagc.lab.reproduce.budget import (
    SCALES,
    USABLE,
    Cost,
    choose,
    cost_class,
    measured_costs,
    parallel_seconds,
    probes,
    split_at_interim,
)
from paddle_adagc.lab.reproduce.comparison import MIN_SEEDS
from paddle_adagc.lab.reproduce.grid import make_cells
from paddle_adagc.lab.reproduce.grid_file import load_target
from paddle_adagc.lab.reproduce.running import NEVER

STEPS = 4000


def fake_cell(directory, seconds, seed=0):
    return SimpleNamespace(directory=directory, seconds=seconds, seed=seed)


def experiment(name, priority=1, shares=None):
    return SimpleNamespace(name=name, priority=priority, shares=shares or name)


def cells_of(planned, scale):
    """Ten seeds of runs of 4,000 steps, a second for every 100 steps."""
    seeds = range(min(10, scale.num_seeds or 10))
    return [
        fake_cell((planned.shares, seed), scale.num_steps(STEPS) / 100)
        for seed in seeds
    ]


def chosen(experiments, seconds, num_jobs=1):
    return choose(
        experiments, cells_of, lambda c: c.seconds, num_jobs, seconds / USABLE
    )


def test_seeds_are_cut_first_then_steps_never_below_a_verdict():
    one = [experiment("a")]
    assert chosen(one, 400).scale == SCALES[0]
    eight = chosen(one, 399).scale
    assert (eight.num_seeds, eight.ratio) == (MIN_SEEDS, 1.0)
    shorter = chosen(one, 319).scale
    assert (shorter.num_seeds, shorter.ratio) == (MIN_SEEDS, 0.9)
    assert chosen(one, 200).scale == SCALES[-1]
    assert not chosen(one, 199).fits


def test_few_experiments_with_all_seeds_rather_than_many_with_few():
    parts = [experiment("a"), experiment("b", 3), experiment("c", 3)]
    parts.append(experiment("d", 2))
    choice = chosen(parts, 400)
    assert [p.name for p in choice.left_out] == ["c", "b"]
    assert choice.scale.num_seeds == MIN_SEEDS
    assert choice.fits
    assert choice.seconds <= 400
    nothing = chosen(parts, 1)
    assert [p.name for p in nothing.left_out] == ["c", "b", "d"]
    assert not nothing.fits


def test_shared_runs_count_once():
    shared = [experiment("a"), experiment("b", shares="a")]
    assert chosen(shared, 400).scale == SCALES[0]


def test_what_costs_nothing_more_is_taken_back():
    parts = [experiment("a"), experiment("b", 2), experiment("c", 3, "a")]
    choice = chosen(parts, 300)
    assert [p.name for p in choice.left_out] == ["b"]
    assert choice.seconds <= 300


def test_parallel_time_is_an_upper_bound():
    cells = [fake_cell(i, s) for i, s in enumerate((3.0, 3.0, 4.0))]
    bound = parallel_seconds(cells, lambda c: c.seconds, 2)
    assert bound == (3 + 3) / 2 + 4
    assert parallel_seconds(cells, lambda c: c.seconds, 1) == 10


def test_the_look_at_futility_comes_after_five_seeds():
    seeds = (7, 5, 6, 8, 9, 1, 2)
    cells = [fake_cell(s, 1.0, s) for s in seeds for _ in range(2)]
    early, late = split_at_interim(cells)
    assert [c.seed for c in early[::2]] == [7, 5, 6, 8, 9]
    assert [c.seed for c in late[::2]] == [1, 2]


def test_costs_are_measured_by_class(write_grid, fake_runs, tmp_path):
    path = write_grid(
        "grid.yaml",
        {},
        {"name": "wide", "changes": {"model": {"hidden_size": 32}}},
        {"name": "fast", "changes": {"schedule": {"learning_rate": 0.1}}},
    )
    cells = [
        cell
        for part in load_target(path).experiments
        for cell in make_cells(part, path, tmp_path / "cells")
    ]
    short = probes(cells, tmp_path / "cells")
    assert len(short) == 2
    assert len({cost_class(cell.config) for cell in cells}) == 2
    runs = fake_runs(startup=5.0, per_step=0.25)
    first, second = short.values()
    runs(first, NEVER)
    costs = measured_costs(short)
    assert costs == {cost_class(first.config): Cost(5.0, 0.25)}
    assert costs[cost_class(first.config)].of(100) == 30.0
    assert not Path(second.directory).exists()


def test_cost_of_the_proxies_depends_on_the_optimizer_not_on_the_clip():
    path = Path(__file__).parents[3] / "configs/experiments"
    path /= "table-spike-score.yaml"
    part = load_target(path).experiments[0]
    cells = make_cells(part, path, "cells")[: len(part.methods)]
    classes = {c.method: cost_class(c.config) for c in cells}
    assert classes["GlobalGC"] == classes["AdaGC"]
    assert classes["Clippy"] != classes["AdaGC"]


@pytest.mark.parametrize("num_jobs", [1, 2])
def test_choice_fits_its_time(num_jobs):
    parts = [experiment(str(i), 1 + i % 3) for i in range(8)]
    for seconds in (50, 100, 300, 700, 2000):
        choice = chosen(parts, seconds, num_jobs)
        kept = [p for p in parts if p not in choice.left_out]
        cells = [c for p in kept for c in cells_of(p, choice.scale)]
        total = parallel_seconds(cells, lambda c: c.seconds, num_jobs)
        assert total == choice.seconds
        assert total <= seconds or (len(kept) == 1 and not choice.fits)
