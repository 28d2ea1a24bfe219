# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
    in_running_order,
    measured_costs,
    parallel_seconds,
    probes,
)
from paddle_adagc.lab.reproduce.grid import make_cells
from paddle_adagc.lab.reproduce.grid_file import load_target
from paddle_adagc.lab.reproduce.running import NEVER
from paddle_adagc.lab.reproduce.verdicts import MIN_SEEDS

STEPS = 4000


def fake_cell(directory, seconds, seed=0):
    return SimpleNamespace(directory=directory, seconds=seconds, seed=seed)


def experiment(name, priority=1, shares=None):
    return SimpleNamespace(name=name, priority=priority, shares=shares or name)


def cells_of(planned, scale):
    """Five seeds of runs of 4,000 steps, a second for every 100 steps."""
    seeds = range(min(5, scale.num_seeds or 5))
    return [
        fake_cell((planned.shares, seed), scale.num_steps(STEPS) / 100)
        for seed in seeds
    ]


def chosen(experiments, seconds, num_jobs=1):
    return choose(
        experiments, cells_of, lambda c: c.seconds, num_jobs, seconds / USABLE
    )


def test_seeds_are_cut_first_then_steps():
    one = [experiment("a")]
    assert chosen(one, 200).scale == SCALES[0]
    assert chosen(one, 199).scale.num_seeds == 4
    three = chosen(one, 120).scale
    assert (three.num_seeds, three.ratio) == (3, 1.0)
    shorter = chosen(one, 119).scale
    assert (shorter.num_seeds, shorter.ratio) == (3, 0.9)
    assert chosen(one, 75).scale == SCALES[-1]
    assert SCALES[-1].num_seeds == MIN_SEEDS
    assert not chosen(one, 74).fits


def test_experiments_are_left_out_by_priority():
    parts = [experiment("a"), experiment("b", 3), experiment("c", 3)]
    parts.append(experiment("d", 2))
    choice = chosen(parts, 200)
    assert [p.name for p in choice.left_out] == ["c", "b"]
    assert choice.fits
    assert choice.seconds <= 200
    nothing = chosen(parts, 1)
    assert [p.name for p in nothing.left_out] == ["c", "b", "d"]
    assert not nothing.fits


def test_shared_runs_count_once():
    shared = [experiment("a"), experiment("b", shares="a")]
    assert chosen(shared, 200).scale == SCALES[0]


def test_what_costs_nothing_more_is_taken_back():
    parts = [experiment("a"), experiment("b", 2), experiment("c", 3, "a")]
    choice = chosen(parts, 100)
    assert [p.name for p in choice.left_out] == ["b"]
    assert choice.seconds <= 100


def test_parallel_time_is_an_upper_bound():
    cells = [fake_cell(i, s) for i, s in enumerate((3.0, 3.0, 4.0))]
    bound = parallel_seconds(cells, lambda c: c.seconds, 2)
    assert bound == (3 + 3) / 2 + 4
    assert parallel_seconds(cells, lambda c: c.seconds, 1) == 10


def test_the_seeds_of_a_verdict_come_first():
    groups = [
        [fake_cell((name, seed), 1.0, seed) for seed in seeds for _ in range(2)]
        for name, seeds in (("a", (7, 5, 6, 8, 9)), ("b", (5, 6, 7, 8)))
    ]
    order = [cell.directory for cell in in_running_order(groups)[::2]]
    first = [("a", 7), ("a", 5), ("a", 6), ("b", 5), ("b", 6), ("b", 7)]
    assert order == [*first, ("a", 8), ("b", 8), ("a", 9)]


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
