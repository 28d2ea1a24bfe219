# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Results: found by config, merged, stored and read, with their losses."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from adagc_lab.reproduce.packed import LAST_CODE, decode_losses, encode_losses
from adagc_lab.reproduce.pairs import differences_of, paired, paired_once
from adagc_lab.reproduce.pool import Catalogue, Method, PooledResults
from adagc_lab.reproduce.results import (
    clean_runs,
    longest,
    merge_results,
    read_results,
    with_derived,
    write_results,
)
from adagc_lab.reproduce.targets import summarise_experiment
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from lab.report.conftest import make_directory, make_experiment
from lab.reproduce.conftest import cell
from lab.reproduce.conftest import result as made

from paddle_adagc.stability import WATCHES, Monitor
from paddle_adagc.stability.spike_score import spike_score

ERNIE = Path(__file__).parents[3] / "results/ernie.jsonl"
TARGET = '{"kind": "target", "target": "t", "title": "T"}'
CONFIG = {"schedule.kind": "constant", "train.max_steps": 2500, "a": 1}


def result(*cells, config=CONFIG, **fields):
    return made(*cells, config=config, **fields)


def pooled(*results):
    return PooledResults(Catalogue({}), dict(enumerate(results)))


def test_every_file_is_searched_and_a_run_counts_once():
    adagc = {"clip.name": "adagc"}
    first = result(cell("x", config=adagc), cell("y", seed=2, config=adagc))
    second = result(
        cell("x", config=adagc),
        cell("z", seed=3, config={**adagc, "clip.beta": 0.99}),
        cell("other", config={"clip.name": "global_norm"}),
        target="u",
    )
    pool = pooled(first, second)
    runs = pool.runs_of(Method.of({**CONFIG, **adagc}))
    assert [run.key for run in runs] == ["x", "y", "z"]
    strict = Method.of({**CONFIG, **adagc, "clip.beta": 0.98})
    assert pool.runs_of(strict) == []


def test_lengths_pool_under_a_constant_schedule_alone():
    short = cell("short")
    long = cell("long", steps=4000, config={"train.max_steps": 4000})
    both = ["short", "long"]
    for kind, expected in (("constant", both), ("cosine", ["short"])):
        config = {**CONFIG, "schedule.kind": kind}
        pool = pooled(result(short, long, config=config))
        found = pool.runs_of(Method.of(config))
        assert [run.key for run in found] == expected


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
    assert len(paired(runs, others, "steps")) == 2


def test_a_run_whose_processor_was_recorded_comes_first():
    runs = [cell("a", loss=1), cell("a", cpu="X", loss=3)]
    others = [cell("b", loss=2)]
    assert longest(runs) == [runs[1]]
    assert paired(runs, others, "steps") == [(runs[0], others[0])]
    others += [cell("b", cpu="X", loss=5)]
    both = [(runs[1], others[1]), (runs[0], others[0])]
    assert paired(runs, others, "steps") == both
    assert paired_once(runs, others, "steps") == both[:1]
    assert differences_of(both, "loss").tolist() == [-1.5]
    assert [run.run_id for run in runs] == ["a", "a on X"]


def test_damage_is_also_measured_from_another_grids_clean_run():
    def run(key, seed, loss, faults, **config):
        series = {
            "loss": encode_losses(np.array([1.0] * 5 + [loss] * 5)),
            "faults": faults,
            "left_out": [],
        }
        made = cell(key, key, seed, steps=10, config=config)
        return dataclasses.replace(made, series=series)

    gc, adagc = {"clip.name": "global_norm"}, {"clip.name": "adagc"}
    grid = result(
        *(run(f"gc{seed}", seed, 1.0 + seed, [], **gc) for seed in (1, 2)),
        run("low", 1, 9.0, [], **gc, **{"clip.lambda_abs": 0.1}),
        run("other", 1, 9.0, [], **gc, **{"model": "wide"}),
    )
    faulty = result(
        *(run(f"a{seed}", seed, 4.0, [[5, 5]], **adagc) for seed in (1, 2, 3)),
        target="u",
    )
    clean = clean_runs([grid, faulty])
    found = with_derived(faulty.experiments[0], clean).all_runs
    areas = [run.measures.get("excess_area_global") for run in found]
    assert areas[:2] == pytest.approx([10.0, 5.0], rel=1e-3)
    assert areas[2] is None
    # With a clean run of its own an experiment takes no other's.
    twin = dataclasses.replace(
        run("own", 3, 2.0, [], **gc), method="GlobalGC", is_clean_twin=True
    )
    mixed = result(*faulty.experiments[0].all_runs, twin)
    found = with_derived(mixed.experiments[0], clean).all_runs
    areas = [run.measures.get("excess_area_global") for run in found[:3]]
    assert areas == [None, None, pytest.approx(10.0, rel=1e-3)]


def test_merging_keeps_all_runs_and_their_configs():
    old = result(cell("x", loss=1), cell("y", seed=2))
    config = {**CONFIG, "a": 2}
    new = result(cell("x", loss=3), cell("z", seed=3), config=config)
    merged = merge_results(old, new)
    (experiment,) = merged.experiments
    found = {c.key: c.config.get("a") for c in experiment.all_runs}
    assert found == {"x": 2, "y": 1, "z": 2}
    x, y = (
        pooled(merged).runs_of(Method.of({**CONFIG, "a": a})) for a in (2, 1)
    )
    assert [run.key for run in x] == ["x", "z"]
    assert x[0].measures["loss"] == 3
    assert [run.key for run in y] == ["y"]


def test_results_come_back_from_their_file(tmp_path):
    own = cell("y", loss=-math.inf, config={"a": 2})
    first = result(cell("x", loss=math.inf), own)
    path = write_results(tmp_path / "deep/t.jsonl", first)
    assert read_results(path) == first
    _, *lines = (
        json.loads(line, parse_constant=lambda name: pytest.fail(name))
        for line in path.read_text().splitlines()
    )
    shared = {key: value for key, value in CONFIG.items() if key != "a"}
    configs = [line.get("config") for line in lines]
    assert configs == [shared, {"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", "line 1"),
        ('{"kind": "cell", "method": "A"}', "line 1"),
        ('{"kind": "target", "target": "t", "titel": "T"}', "titel"),
        (f'{TARGET}\n{{"kind": "cell", "measures": {{}}}}', "line 2: IndexE"),
    ],
)
def test_bad_results_are_named(tmp_path, text, message):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_results(path)


@pytest.fixture
def summarise(tmp_path):
    def make(config=None, **fields):
        record = make_directory(tmp_path / "run", **fields)
        record.run["config"] = config or {}
        experiment = make_experiment(
            {"AdaGC": [record]}, skip_steps=20, windows=(1000, 200)
        )
        return summarise_experiment(experiment, "e").all_runs[0]

    return make


@pytest.mark.parametrize("nan_from", [5, 150, 300])
def test_a_run_that_diverged_has_a_spike_and_the_worst_loss(
    summarise, nan_from
):
    config = {"data": {"kind": "shapes"}}
    run = summarise(config, nan_from=nan_from, status="diverged")
    for name in ("spikes_1000", "events_1000", "judged_1000", "spikes_200"):
        assert run.measures[name] >= 1
    assert run.measures["validation_loss"] == math.inf
    assert run.measures["retrieval_accuracy"] == -math.inf
    assert math.isnan(run.measures["final_loss"])
    assert run.measures["diverged"] == 1


def test_fixed_sequences_have_no_validation_loss(summarise):
    config = {"data": {"kind": "fixed_sequences"}}
    run = summarise(config, nan_from=300, status="diverged")
    assert not {"validation_loss", "retrieval_accuracy"} & {*run.measures}


def test_a_line_holds_its_losses_and_where_they_come_from(summarise):
    cell = summarise(steps=400)
    losses = decode_losses(cell.series["loss"])
    assert len(losses) == 400
    assert losses[-100:].mean() == pytest.approx(
        cell.measures["final_loss"], rel=1e-6
    )
    assert cell.series["faults"] == cell.series["left_out"] == []
    assert cell.machine == {"num_cores": 2}
    assert cell.cpu_model == "recorded before"


@settings(deadline=None)
@given(
    hnp.arrays(
        np.float64,
        st.integers(0, 50),
        elements=st.floats(1e-3, 1e3) | st.sampled_from([np.nan, np.inf]),
    )
)
def test_losses_come_back_within_the_stated_error(losses):
    packed = encode_losses(losses)
    back = decode_losses(packed)
    finite = np.isfinite(losses)
    np.testing.assert_array_equal(back[~finite], losses[~finite])
    error = np.abs(back[finite] / losses[finite] - 1)
    stated = np.expm1((packed["high"] - packed["low"]) / (2 * LAST_CODE))
    assert (error <= stated * (1 + 1e-6) + 1e-8).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoding": "float16"}, "'float16' is unknown"),
        ({"data": "AAAA"}, "damaged"),
        ({"data": None}, "damaged"),
        ({"low": None}, "damaged"),
        ({"num_steps": 4}, "expected 8"),
        ({"num_steps": 1}, "has 3 bytes or more, expected 2"),
        ({"num_steps": 10**12}, "num_steps is 1000000000000"),
        ({"num_steps": -1}, "num_steps is -1"),
    ],
)
def test_damaged_series_are_named(change, message):
    packed = encode_losses(np.array([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match=message):
        decode_losses({**packed, **change})


def test_a_negative_loss_is_named():
    with pytest.raises(ValueError, match=r"-0\.5 is negative"):
        encode_losses(np.array([1.0, -0.5]))


def calm_losses(path, experiment):
    """Stored losses of an experiment's runs without a fault or a spike."""
    current = None
    for row in map(json.loads, path.read_text().splitlines()):
        current = row["name"] if row["kind"] == "experiment" else current
        series = row.get("series")
        if current == experiment and series and not series["faults"]:
            losses = decode_losses(series["loss"])
            if np.isfinite(losses).all() and not spike_score(losses).num_spikes:
                yield losses


@pytest.mark.slow
def test_a_monitor_is_quiet_on_the_committed_losses():
    """docs/quickstart.md says how quiet."""
    series = [*calm_losses(ERNIE, "recipe")]
    alarms = [
        alarm
        for losses in series
        for alarm in Monitor({"loss": WATCHES["loss"]}).update(
            (step, {"loss": loss}) for step, loss in enumerate(losses.tolist())
        )
    ]
    assert (len(series), sum(map(len, series)), len(alarms)) == (24, 60_000, 1)
