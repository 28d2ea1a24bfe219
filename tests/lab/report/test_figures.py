# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the figures show: focus, lines, marks, the rows of the heat map."""

import dataclasses
from xml.etree import ElementTree

import numpy as np
import pytest
from adagc_lab.report.charts import (
    QUANTITIES,
    excess_chart,
    is_noisy,
    loss_chart,
    smooth,
    tensor_charts,
)
from adagc_lab.report.drawings import charts_svg, method_colors
from adagc_lab.report.figures import (
    clip_threshold,
    heat_maps,
    norm_charts,
)
from adagc_lab.report.focus import (
    choose_focus,
    fault_bursts,
    tensor_label,
)
from lab.report.conftest import make_experiment

HIT = "layers.0.mlp.up_proj.weight"


@pytest.fixture
def faulty(make_run):
    """Two methods with one gradient fault, which only GlobalGC feels."""
    faults = {300: {"kind": "gradient_scale", "tensors": [HIT]}}
    hit = make_run(method="GlobalGC", spikes={301: 3.0}, faults=faults)
    return make_experiment(
        {"GlobalGC": [hit], "AdaGC": [make_run(faults=faults)]}
    )


def loss_line(*runs):
    """The line of these seeds of AdaGC in the chart of the loss."""
    (line,) = loss_chart(make_experiment({"AdaGC": [*runs]})).lines
    return line


def test_loss_chart_marks_spikes_and_faults(faulty):
    chart = loss_chart(faulty)
    hit, calm = chart.lines
    assert (hit.label, calm.label) == ("GlobalGC", "AdaGC")
    assert 301 in [step for step, _ in hit.marks]
    assert calm.marks == ()
    assert chart.spans == ((300, 300),)


def test_several_seeds_are_a_mean_and_a_band(make_run):
    runs = [make_run(seed=s) for s in (1, 2, 3)]
    line = loss_line(*runs)
    series = np.array([run.loss for run in runs])
    np.testing.assert_allclose(line.values, series.mean(0))
    np.testing.assert_allclose(line.low, series.min(0))
    np.testing.assert_allclose(line.high, series.max(0))


def test_loss_axis_is_logarithmic_if_the_loss_falls_far(make_run):
    for floor, is_log in ((0.05, True), (2.0, False)):
        runs = {"AdaGC": [make_run(floor=floor, noise=0.001)]}
        assert loss_chart(make_experiment(runs)).log == is_log


def test_the_last_finite_loss_of_a_diverged_run_is_marked(make_run):
    assert loss_line(make_run(nan_from=300)).marks[-1][0] == 299


def test_excess_is_that_over_the_run_without_faults(make_run):
    faults = {250: {"kind": "gradient_scale", "tensors": [HIT]}}
    exp = make_experiment(
        {"AdaGC": [make_run(spikes={251: 2.0}, faults=faults)]},
        clean_runs={"AdaGC": [make_run()]},
    )
    (line,) = excess_chart(exp).lines
    assert np.allclose(line.values[:251], 0)
    assert line.values[251] == pytest.approx(2.0)
    assert excess_chart(dataclasses.replace(exp, clean_runs={})) is None


def test_noisy_series_are_smoothed_by_the_mean_of_the_past():
    calm = np.linspace(5, 1, 1000)
    noisy = 1 + np.random.default_rng(0).standard_normal(1001)
    noisy[500] = np.nan
    assert not is_noisy(calm)
    assert is_noisy(noisy)
    assert not is_noisy(noisy[:999])
    smoothed = smooth(noisy)
    assert smoothed[2] == pytest.approx(noisy[:3].mean())
    assert smoothed[499] == pytest.approx(noisy[495:500].mean())
    assert smoothed[502] == pytest.approx(np.nanmean(noisy[498:503]))
    assert np.isnan(smoothed[500])


def test_focus_is_the_fault_and_the_tensor_it_names(faulty):
    focus = choose_focus(faulty)
    assert focus.event == 300
    assert focus.start <= 260
    assert focus.stop > 380
    assert focus.tensors == [HIT]
    assert "gradient_scale" in focus.reason


def test_focus_takes_the_worst_seed_and_the_tensors_that_rose(make_run):
    small = make_run(spikes={200: 0.5})
    run = make_run(seed=2, spikes={300: 2.0}, outliers=(298,))
    focus = choose_focus(make_experiment({"AdaGC": [small, run]}))
    assert (focus.seed_index, focus.event) == (1, 300)
    norm = run.tensors["norm"]
    rise = norm[290:301].max(0) / np.median(norm[260:290], 0)
    expected = [run.tensor_names[i] for i in np.argsort(-rise)[:3]]
    assert focus.tensors == expected


def test_norm_charts_show_norms_before_and_after_the_clip(faulty):
    focus = choose_focus(faulty)
    losses, norms = norm_charts(faulty, focus)
    assert [len(chart.lines) for chart in losses + norms] == [1, 1, 2, 3]
    for (run,), chart in zip(faulty.runs.values(), norms, strict=True):
        shown = slice(focus.start, focus.stop), run.tensor_names.index(HIT)
        before, after, *_ = (line.values for line in chart.lines)
        np.testing.assert_array_equal(before, run.tensors["norm"][shown])
        np.testing.assert_array_equal(after, run.tensors["clipped_norm"][shown])
        assert chart.log
        assert chart.range == norms[0].range
    svg = charts_svg("1 < 2", [losses, norms])
    root = ElementTree.fromstring(svg)
    assert len(root.findall("{*}path")) == 7
    assert len(root.findall("{*}rect")) == 1 + 4  # the paper, and the fault
    assert svg.count("optimizer step") == 2


def test_threshold_is_what_the_clip_left(make_run):
    run = make_run()
    threshold = clip_threshold(run)
    norm, clipped = run.tensors["norm"], run.tensors["clipped_norm"]
    steps, tensors = np.nonzero(run.h < 1)
    late = steps >= 20
    steps, tensors = steps[late], tensors[late]
    assert len(steps) > 100
    np.testing.assert_allclose(
        threshold[steps, tensors], clipped[steps, tensors], rtol=1e-5
    )
    assert (norm[steps, tensors] > threshold[steps, tensors]).all()
    assert np.isnan(threshold[:20]).all()
    assert clip_threshold(make_run(method="GlobalGC")) is None


def test_threshold_of_a_tensor_with_its_own_lambda_rel(make_run):
    run = make_run()
    run.run["config"]["clip"]["overrides"] = {"^norm": {"lambda_rel": 2.0}}
    gamma, threshold = run.tensors["gamma"][-2], clip_threshold(run)[-1]
    own = np.array([name.startswith("norm") for name in run.tensor_names])
    np.testing.assert_allclose(threshold / gamma, np.where(own, 2, 1.04), 1e-5)


def test_faults_are_shaded_each(make_run):
    fault = {"kind": "random_tokens", "tensors": []}
    faults = dict.fromkeys((100, 105, 106, 110), fault)
    bursts = [(100, 100), (105, 106), (110, 110)]
    assert fault_bursts(make_run(faults=faults)) == bursts


def test_charts_of_a_tensor_overlay_the_methods(faulty):
    focus = choose_focus(faulty)
    colors = method_colors(faulty.runs)
    place = focus.seed_index, focus.start, focus.stop
    charts = tensor_charts(faulty, focus.tensors, QUANTITIES, *place)
    for chart, quantity in zip(charts, QUANTITIES, strict=True):
        assert [line.color for line in chart.lines] == list(colors.values())
        assert chart.start == focus.start
        for (run,), line in zip(faulty.runs.values(), chart.lines, strict=True):
            index = run.tensor_names.index(HIT)
            shown = run.tensors[quantity][focus.start : focus.stop, index]
            np.testing.assert_allclose(line.values, shown)


def test_heat_map_has_one_row_for_globalgc_and_all_for_adagc(faulty):
    globalgc, adagc = heat_maps(faulty).values()
    assert len(globalgc["groups"]) == 1
    names = faulty.runs["AdaGC"][0].tensor_names
    rows = [row for group in adagc["groups"] for row in group["tensors"]]
    assert sorted(name for name, _ in rows) == sorted(names)
    assert "9" in dict(rows)[HIT]


def test_a_tensor_without_gradient_does_not_hide_a_common_scale(make_run):
    run = make_run(method="GlobalGC", outliers=(300,))
    assert (run.h < 0.9).any()
    for quantity in ("norm", "clipped_norm"):
        run.tensors[quantity].setflags(write=True)
        run.tensors[quantity][295:305, 3] = 0.0
    (row,) = heat_maps(make_experiment({"GlobalGC": [run]}))["GlobalGC"][
        "groups"
    ]
    lowest = max(run.h.min(), 0.01)
    assert max(row["levels"]) == str(round(-4.5 * np.log10(lowest)))


def test_labels_of_tensors():
    assert tensor_label("lm_head.weight") == "lm_head"
    for inside, label in (
        ("self_attn.q_proj", "attention.q_proj"),
        ("mlp.experts.0.up_proj", "expert 0 · up_proj"),
    ):
        name = f"model.layers.2.{inside}.weight"
        assert tensor_label(name) == f"layer 2 · {label}"
