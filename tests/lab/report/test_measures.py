# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Jumps, measures, labels, configs, formatting and tables."""

import dataclasses
import math

import numpy as np
import pytest

from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.figures import adagc_option
from paddle_adagc.lab.report.focus import group_tensors, tensor_label
from paddle_adagc.lab.report.formatting import (
    format_list,
    format_range,
    format_same,
    format_spread,
)
from paddle_adagc.lab.report.html import common_and_different, extent
from paddle_adagc.lab.report.judged import (
    judged_steps,
    run_excess,
    spike_steps,
    worst_jump,
)
from paddle_adagc.lab.report.measures import measure_experiment, run_measures
from paddle_adagc.lab.report.tables import comparison_table


def with_loss(run, loss, faults=None):
    """``run`` with another loss series and other faults."""
    return dataclasses.replace(
        run,
        metrics={"loss": np.asarray(loss, dtype=np.float64)},
        faults=faults or {},
    )


def experiment(runs, **fields):
    settings = {
        "title": "Test",
        "description": "A test.",
        "skip_steps": 0,
        "windows": (50,),
        "last_steps": 10,
    }
    return Experiment(runs=runs, **(settings | fields))


@pytest.fixture
def run(make_run):
    """Any run, to be given another loss."""
    return make_run(steps=30, layers=0)


def test_worst_jump_by_hand(run):
    loss = np.ones(200)
    loss[::2] += 0.02
    loss[120:127] = 3.0
    jump = worst_jump(with_loss(run, loss), 0)
    assert (jump.step, jump.height) == (120, pytest.approx(1.99))
    # From step 122 on, 5 of 10 losses are high and the median is halfway;
    # from step 123 on, 4 are.
    assert jump.recovery_steps == 3


def test_a_loss_that_stays_high_never_recovers(run):
    loss = np.where(np.arange(200) < 120, 1.0, 1.5)
    jump = worst_jump(with_loss(run, loss), 0)
    assert jump.height == pytest.approx(0.5)
    assert jump.recovery_steps is None


def test_nan_is_the_worst_jump(run):
    loss = np.ones(200)
    loss[150:] = np.nan
    jump = worst_jump(with_loss(run, loss), 0)
    assert (jump.step, jump.height) == (150, np.inf)
    assert jump.recovery_steps is None


def test_skipped_steps_are_no_jump(run):
    loss = np.ones(200)
    loss[60] = 9.0
    loss[150] = 2.0
    assert worst_jump(with_loss(run, loss), 0).step == 60
    assert worst_jump(with_loss(run, loss), 61).step == 150
    assert worst_jump(with_loss(run, loss), 160) is None


def test_judged_steps_leave_out_corrupted_losses_only(run):
    faults = {
        3: [{"kind": "random_tokens", "tensors": []}],
        4: [{"kind": "gradient_nan", "tensors": []}],
        5: [{"kind": "activation_scale", "tensors": ["a"]}],
        6: [
            {"kind": "gradient_inf", "tensors": ["a"]},
            {"kind": "shuffled_labels", "tensors": []},
        ],
    }
    steps = judged_steps(with_loss(run, np.ones(8), faults), 1)
    assert steps.tolist() == [1, 2, 4, 7]


def test_spikes_keep_their_steps_when_a_batch_is_left_out(run):
    rng = np.random.default_rng(0)
    loss = 1 + 0.01 * rng.standard_normal(200)
    loss[100] = 8.0
    loss[103] = 4.0
    faults = {100: [{"kind": "random_tokens", "tensors": []}]}
    record = with_loss(run, loss, faults)
    assert spike_steps(record, 0, 50).tolist() == [103]
    (measures,) = measure_experiment(experiment({"AdaGC": [record]}))["AdaGC"]
    assert measures["judged_50"] == 149
    assert measures["worst_jump_step"] == 103
    assert measures["ten_sigma_50"] == pytest.approx(0.1, rel=0.3)


def test_final_loss_leaves_corrupted_batches_out(run):
    loss = np.ones(200)
    loss[196:] = [9.0, 2.0, 2.0, 5.0]
    faults = {196: [{"kind": "random_tokens", "tensors": []}]}
    record = with_loss(run, loss, faults)
    exp = experiment({"AdaGC": [record]}, last_steps=4)
    (measures,) = measure_experiment(exp)["AdaGC"]
    assert measures["final_loss"] == pytest.approx(3.0)


def test_labels():
    assert tensor_label("model.layers.2.self_attn.q_proj.weight") == (
        "layer 2 · attention.q_proj"
    )
    assert tensor_label("lm_head.weight") == "lm_head"


def test_tensors_are_grouped_by_layer_and_kind():
    names = [
        "model.embed_tokens.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.1.mlp.experts.0.up_proj.weight",
        "model.layers.1.mlp.gate.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.norm.weight",
    ]
    groups = group_tensors(names)
    assert [(g.label, g.indices) for g in groups] == [
        ("embedding", [0]),
        ("layer 0", [5]),
        ("layer 1", [4, 3, 2, 1]),
        ("output", [6]),
    ]
    assert groups[2].labels[2] == "expert 0 · up_proj"


def test_config_options(make_run):
    runs = {m: [make_run(method=m, steps=5)] for m in ("GlobalGC", "AdaGC")}
    common, different = common_and_different(experiment(runs))
    assert common["clip.lambda_abs"] == 1.0
    assert different == {
        "clip.name": {"GlobalGC": "global_norm", "AdaGC": "adagc"},
        "clip.beta": {"AdaGC": 0.9},
        "clip.t_start": {"AdaGC": 20},
    }


def test_adagc_options_that_are_not_set_have_the_default():
    assert adagc_option({"clip": {"name": "adagc"}}, "lambda_rel") == 1.04
    clip = {"name": "adagc", "lambda_rel": 1.1}
    assert adagc_option({"clip": clip}, "lambda_rel") == 1.1
    assert adagc_option({"clip": {"name": "global_norm"}}, "t_start") is None
    assert adagc_option({}, "lambda_rel") is None


def test_formatting():
    assert format_list([9, 8, 1200]) == "9 / 8 / 1,200"
    assert format_list([3, None, float("inf")]) == "3 / – / ∞"
    assert format_spread([1.0, 2.0, 3.0], ".2f") == "2.00 ± 1.00"
    assert format_spread([1.0, float("nan")], ".2f") == "1.00 / NaN"
    assert format_spread([None, None], ".2f") == "–"
    assert format_spread([1.0, None, 3.0], ".2f") == "2.00 ± 1.41 (2 of 3)"
    assert format_spread([1.0, None], ".2f") == "1.00 / –"
    assert format_same([400, 400]) == "400"
    assert format_same(["finished", "diverged"]) == "finished / diverged"


def test_range_of_many_seeds():
    five = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert format_range(five, ".1f") == "0.1 / 0.2 / 0.3 / 0.4 / 0.5"
    assert format_range([*five, 0.9], ".2f") == "0.35 (0.10-0.90)"
    assert format_range([*five, None, 0.9], ".1f") == "0.3 (0.1-0.9) (6 of 7)"
    assert format_range([0.1, None, 0.3], ".1f") == "0.1 / 0.3 (2 of 3)"
    assert format_range([None], ".1f") == "–"
    assert format_range([*five, math.inf], ".1f").endswith("0.5 / ∞")


def test_experiment_refuses_runs_that_do_not_pair(make_run):
    one, two = make_run(seed=1, steps=5), make_run(seed=2, steps=5)
    with pytest.raises(ValueError, match=r"AdaGC has seeds \[2\]"):
        experiment({"GlobalGC": [one], "AdaGC": [two]})
    with pytest.raises(ValueError, match=r"expected \[1, 2\]"):
        experiment({"GlobalGC": [one, two], "AdaGC": [one]})
    with pytest.raises(ValueError, match="at least one run"):
        experiment({"GlobalGC": []})
    with pytest.raises(ValueError, match="clean_runs has 'AGC'"):
        experiment({"AdaGC": [one]}, clean_runs={"AGC": [one]})
    with pytest.raises(ValueError, match="windows"):
        experiment({"AdaGC": [one]}, windows=())
    with pytest.raises(ValueError, match="last_steps"):
        experiment({"AdaGC": [one]}, last_steps=0)


def test_the_best_follows_the_numbers(run):
    rng = np.random.default_rng(0)
    loss = 1 + 0.001 * rng.standard_normal(200)
    spiky = loss.copy()
    spiky[120:123] = 3.0
    runs = {
        "GlobalGC": [with_loss(run, spiky)],
        "AdaGC": [with_loss(run, loss)],
        "AGC": [with_loss(run, loss + 0.25)],
    }
    rows = {
        row.measure.name: row for row in comparison_table(experiment(runs)).rows
    }
    assert rows["events_50"].best == ["AdaGC", "AGC"]
    assert rows["final_loss"].best == ["GlobalGC", "AdaGC"]
    assert rows["status"].best == []
    # The same curves under each other's name: the best goes with the numbers.
    runs["GlobalGC"], runs["AGC"] = runs["AGC"], runs["GlobalGC"]
    rows = {
        row.measure.name: row for row in comparison_table(experiment(runs)).rows
    }
    assert rows["events_50"].best == ["GlobalGC", "AdaGC"]


def test_every_measure_has_a_name_of_its_own():
    measures = run_measures()
    assert len({m.name for m in measures}) == len(measures)
    brief = [m.title for m in measures if m.level != "detail"]
    assert len(set(brief)) == len(brief)


def test_markdown_table(make_run):
    runs = {m: [make_run(method=m, layers=0)] for m in ("GlobalGC", "AdaGC")}
    table = comparison_table(experiment(runs))
    lines = table.to_markdown().splitlines()
    assert lines[0] == "|  | GlobalGC | AdaGC |"
    rows = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in rows} == {4}
    assert "| Clip time per step (ms) | 0.50 | 1.20 |" in lines
    explained = {label for label, _ in table.legend()}
    assert explained == {
        row.measure.label for row in table.rows if row.measure.group
    }


def test_a_clip_in_the_optimizer_is_not_measured(run):
    values = np.full(30, 0.25)
    metrics = {"loss": values, "clipped_fraction": values}
    runs = [
        dataclasses.replace(
            run, metrics=metrics, run={"config": {"clip": {"name": name}}}
        )
        for name in ("adagc", "none")
    ]
    exp = experiment({"AdaGC": runs[:1], "AGC": runs[1:]})
    measures = measure_experiment(exp)
    assert measures["AdaGC"][0]["clipped_percent"] == 25
    assert measures["AGC"][0]["clipped_percent"] is None
    assert measures["AGC"][0]["clipped_percent_end"] is None


def test_a_diverged_run_is_above_its_twin_to_the_end(run):
    clean = with_loss(run, np.ones(30))
    cut = with_loss(
        run, np.ones(20), {5: [{"kind": "activation_nan", "tensors": []}]}
    )
    for status, num_missing in (("diverged", 10), ("running", 0)):
        faulty = dataclasses.replace(cut, run=cut.run | {"status": status})
        excess = run_excess(faulty, clean)
        assert np.isinf(excess.excess).sum() == num_missing


def test_the_shortest_run_is_named(run):
    runs = [with_loss(run, np.ones(n)) for n in (10, 40)]
    exp = experiment({"AdaGC": runs[:1], "GlobalGC": runs[1:]})
    assert "10 to 40 steps a run" in extent(exp)
