# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables, figures and pages of made-up runs whose numbers are known."""

import base64
import dataclasses
import re

import numpy as np
import pytest
from adagc_lab.record.files import MOMENTS, RunRecord
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.focus import choose_focus
from adagc_lab.report.judged import model_loss
from adagc_lab.report.page import write_picture, write_report
from adagc_lab.report.table import (
    difference_table,
    measure_experiment,
    measure_table,
    seed_gains,
)

NAMES = ["embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "norm"]
CLIPS = {
    "GlobalGC": {"name": "global_norm", "lambda_abs": 1.0},
    "AdaGC": {"name": "adagc", "lambda_abs": 1.0, "beta": 0.9},
}


def make_experiment(runs, **fields):
    """An experiment of short runs."""
    defaults = {"title": "Test", "description": "A test."}
    return Experiment(runs=runs, **({"skip_steps": 60} | defaults | fields))


def make_losses(seed=1, steps=400, floor=1.0, spikes=None, nan_from=None):
    """Fall to ``floor``; ``spikes``: step -> height that fades in 30 steps."""
    rng = np.random.default_rng(seed)
    number = np.arange(steps)
    loss = floor + 4.5 * np.exp(-14 * number / steps)
    loss += 0.01 * rng.standard_normal(steps)
    for step, height in (spikes or {}).items():
        after = np.maximum(number - step, 0)
        loss += np.where(number >= step, height * np.exp(-after / 8.0), 0.0)
    if nan_from is not None:
        loss[nan_from:] = np.nan
        loss = loss[: nan_from + 5]
    return loss


def make_tensors(seed, num_steps, surge):
    """Norm, moments, gamma and h, ``[num_steps, num_tensors]`` each."""
    rng = np.random.default_rng(seed)
    shape = 4, num_steps, len(NAMES)
    tables = np.exp(0.1 * rng.standard_normal(shape)).astype(np.float32)
    found = dict(zip(("norm", "gamma", *MOMENTS), tables, strict=True))
    if surge is not None:
        found["norm"][surge : surge + 3, :2] *= 10, 100
    return found | {"h": 1 / np.maximum(found["norm"], 1)}


def make_run(
    *,
    method="AdaGC",
    seed=1,
    tensors=True,
    faults=None,
    surge=None,
    status="finished",
    **losses,
):
    """A run, calm but for these."""
    names = NAMES if tensors else []
    loss = make_losses(seed, **losses)
    tables = make_tensors(seed, len(loss), surge)
    tables["clipped_norm"] = tables["norm"] * tables["h"]
    evaluated = np.full(len(loss), np.nan)
    evaluated[-1] = 1.1
    return RunRecord(
        name="run",
        run={"config": {"clip": CLIPS[method]}, "seed": seed, "status": status},
        metrics={
            "loss": loss,
            "eval_loss": evaluated,
            "clip_seconds": np.full(len(loss), 0.0012),
        },
        faults={
            step: [{"kind": kind, "tensors": []}]
            for step, kind in (faults or {}).items()
        },
        tensor_names=names,
        tensors={key: x[:, : len(names)] for key, x in tables.items()},
    )


BURST = {250 + k: "repeated_token" for k in range(3)}


def table_of(runs, **fields):
    return measure_table(measure_experiment(make_experiment(runs, **fields)))


def test_a_corrupted_batch_s_own_loss_says_nothing():
    run = make_run(steps=8, tensors=False)
    kinds = {3: ["random_tokens"], 4: ["gradient_nan"]}
    kinds[6] = ["gradient_scale", "constant_labels"]
    faults = {s: [{"kind": k} for k in found] for s, found in kinds.items()}
    loss = model_loss(dataclasses.replace(run, faults=faults))
    assert np.flatnonzero(np.isnan(loss)).tolist() == [3, 6]


def test_numbers_of_one_seed():
    runs = {
        "GlobalGC": [make_run(method="GlobalGC", spikes={250: 2.0})],
        "AdaGC": [make_run()],
        "lost": [make_run(nan_from=300, status="diverged")],
        "hit": [make_run(spikes={250: 9.0}, faults=BURST)],
        "long": [make_run(steps=1300, tensors=False, spikes={1250: 2.0})],
    }
    runs["AdaGC"][0].run["config"]["data"] = {"kind": "fixed_sequences"}
    loss = runs["GlobalGC"][0].loss
    table = table_of(runs, clean_runs={"hit": [make_run()]})
    assert list(table.columns) == [*runs]
    rise = loss[250] - np.median(loss[200:250])
    # Step 253 is the first whose batch is clean.
    worst = 9.0 * np.exp(-3 / 8)
    for label, cells in {
        "Worst rise (nat)": [f"{rise:.3f}", "0.000", "∞"],
        "Peaks above 0.5 nat": ["1", "0", "1"],
        "Spike score (%)": ["– (too short)"] * 2,
        "Loss at the end (nat)": [f"{loss[-80:].mean():.4f}", ..., "∞"],
        "Validation loss (nat)": ["1.1000", "–"],  # of memorised data
        "Clip time per step (ms)": ["1.20"],
        "Steps": ["400", "400", "305"],
        "Status": ["finished", "finished", "diverged"],
        "Fault peaks above 0.5 nat": ["–", "–", "–", "1"],
    }.items():
        for cell_, wanted in zip(table.loc[label], cells, strict=False):
            assert wanted in (..., cell_), label
    assert float(table.loc["Spike score (%)", "long"]) > 0
    found = table.loc["Worst rise over the clean run (nat)", "hit"]
    assert float(found) == pytest.approx(worst, abs=0.001)


def test_seeds_are_paired():
    floors = (0.9, 1.01, 0.9)
    runs = {
        "GlobalGC": [make_run(method="GlobalGC", seed=s) for s in (3, 4, 5)],
        "AdaGC": [
            make_run(seed=s, floor=floor)
            for s, floor in zip((3, 4, 5), floors, strict=True)
        ],
    }
    measured = measure_experiment(make_experiment(runs))
    differences = difference_table(measured)
    assert list(differences.columns) == ["AdaGC"]
    assert differences.loc["Loss at the end (nat)", "AdaGC"] == "-0.0633"
    gains = seed_gains(measured, "last_loss")["AdaGC"].round(2).to_dict()
    assert gains == {3: -0.1, 4: 0.01, 5: -0.1}
    ends = [run.loss[-80:].mean() for run in runs["AdaGC"]]
    spread = f"{np.mean(ends):.4f} ± {np.std(ends, ddof=1):.4f}"
    table = measure_table(measured)
    assert table.loc["Loss at the end (nat)", "AdaGC"] == spread


def figures_of(text):
    """The SVG texts of a page."""
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text)
    return [base64.b64decode(data).decode() for data in found]


def test_a_page_has_tables_figures_and_settings(tmp_path):
    runs = {
        "GlobalGC": [
            make_run(method="GlobalGC", seed=s, spikes={250: 2.0}, surge=248)
            for s in (1, 2)
        ],
        "AdaGC": [make_run(seed=s) for s in (1, 2)],
    }
    title = "1 < <b>A&B</b>"
    experiment = make_experiment(runs, title=title, dynamics_tensor=NAMES[0])
    page = write_report(tmp_path / "out/r.html", "T", [experiment])
    text = page.read_text("utf-8")
    assert "1 &lt; &lt;b&gt;A&amp;B&lt;/b&gt;" in text
    assert "2 seeds (1, 2), 400 steps a run" in text
    assert "Differences from GlobalGC" in text
    assert len(figures_of(text)) == 3
    assert "GlobalGC&#x27;s loss, at step 250" in text
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert str(tmp_path) not in text


def test_the_event_is_the_worst_rise_and_the_fault_before_it():
    calm = [make_run(seed=1, spikes={200: 1.0})]
    hit = [make_run(seed=2, spikes={301: 3.0}, surge=300, faults={300: "g"})]
    runs = {"GlobalGC": calm + hit}
    focus = choose_focus(make_experiment(runs))
    assert (focus.seed_index, focus.start) == (1, 260)
    assert focus.tensors[:2] == [NAMES[1], NAMES[0]]
    assert focus.reason.endswith("after the fault at step 300 (g)")


def test_a_run_that_diverged_is_shown_where_it_did():
    run = make_run(nan_from=300, status="diverged")
    focus = choose_focus(make_experiment({"AdaGC": [run]}))
    assert (focus.start, focus.stop) == (260, 305)


def test_without_tensors_there_is_no_picture(tmp_path):
    path = tmp_path / "p.svg"
    experiment = make_experiment({"AdaGC": [make_run(tensors=False)]})
    assert write_picture(path, experiment) is None
    page = write_report(tmp_path / "r.html", "T", [experiment])
    assert len(figures_of(page.read_text("utf-8"))) == 1
    lost = make_run(tensors=False, nan_from=0, status="diverged")
    page = write_report(page, "T", [make_experiment({"AdaGC": [lost]})])
    assert "∞" in page.read_text("utf-8")
