# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pages, tables, collected results, and the command line."""

import dataclasses
import re

import numpy as np
import pytest
from adagc_lab.report.experiment import flatten
from adagc_lab.reproduce.claims import Rules
from adagc_lab.reproduce.grid import as_json
from adagc_lab.reproduce.packed import encode_losses
from adagc_lab.reproduce.pages import collect_results, made_files
from adagc_lab.reproduce.pool import Catalogue
from adagc_lab.reproduce.results import read_results, write_results
from adagc_lab.reproduce.tables import (
    predictions_markdown,
    small_moments_markdown,
    table_markdown,
)
from lab.reproduce.conftest import cell, make_claim, planned, result, rule
from pages import load_tool

command = load_tool("reproduce")


@pytest.fixture
def low_noise():
    """Three seeds of two methods, one of which has no events."""
    numbers = {"GlobalGC": ((1, 1, 2), 1.5), "AdaGC": ((0, 0, 0), 1.25)}
    cells = [
        cell(
            f"{method}{seed}",
            method,
            seed,
            spikes_1000=5.0 * counts[seed],
            events_1000=float(counts[seed]),
            judged_1000=1300.0,
            final_loss=loss + seed,
        )
        for seed in range(3)
        for method, (counts, loss) in numbers.items()
    ]
    return result(*cells, title="Low noise", description="Text.")


def test_pages_are_what_the_committed_results_give():
    assert command.main(["report", "--check"]) == 0


def test_table_has_a_line_per_method_rates_and_paired_differences(low_noise):
    lines = table_markdown(low_noise.experiments[0]).splitlines()
    assert lines[0] == "### Low noise"
    assert "3 seeds (0, 1, 2) of 2,500 steps" in lines[2]
    assert "processor: recorded before" in lines[2]
    assert lines[4:] == [
        "|  | Spikes, window 1,000 | Spike events, window 1,000 | "
        "Events per 1,000 judged steps | "
        "Training loss (nat) | Δ to GlobalGC |",
        "|---|---:|---:|---:|---:|---:|",
        "| GlobalGC | 5 / 5 / 10 | 1 / 1 / 2 | 1.03 (0.28-2.63) | "
        "2.5000 ± 1.0000 | – |",
        "| AdaGC | 0 / 0 / 0 | 0 / 0 / 0 | 0.00 (0.00-0.95) | "
        "2.2500 ± 1.0000 | -0.2500 ± 0.0000 (p 0.25) |",
    ]


def test_epsilon_s_shares_are_means_of_the_seeds():
    def run(method, share):
        series = {"small_moments": {"model.norm.weight": share}}
        made = cell(f"{method}{share}", method, config={"clip.name": "x"})
        return dataclasses.replace(made, series=series)

    runs = [run("GlobalGC r", 10.0), run("GlobalGC r", 30.0)]
    found = result(*runs, run("AdaGC r", 4.4), run("GlobalGC 10 r", 7.0))
    text = small_moments_markdown(found.experiments[0], ["GlobalGC", "AdaGC"])
    assert text.splitlines()[0] == "| tensors | r | 10 r |"
    assert text.splitlines()[2:] == ["| `norm` | 20 / 4 | 7 / – |"]


def test_predictions_have_a_line_per_experiment():
    def run(name, seed, loss, **measures):
        config = {"clip.name": name, "faults": [], "train.max_steps": 400}
        config["data.kind"] = "fixed_sequences"
        if name == "warmup_ema":
            config |= {"clip.name": "adagc", "clip.init": name}
        made = cell(
            f"{name}{seed}",
            name,
            seed,
            400,
            config,
            final_loss=loss,
            **measures,
        )
        series = {"loss": encode_losses(np.full(400, loss))}
        return dataclasses.replace(made, series=series)

    pairs = [(80.0, 1.0), (95.0, 1.0), (95.0, 3.0)]
    found = result(
        *(
            one
            for seed, (share, loss) in enumerate(pairs)
            for one in (
                run("adagc", seed, loss),
                run("warmup_ema", seed, 4.0 - loss),
                run("global_norm", seed, 2.0, replayed_percent=share),
            )
        )
    )
    lines = predictions_markdown([found.experiments[0]] * 2).splitlines()
    shares, gains = "80 / 95 / 95", "+1.0000 / +1.0000 / -1.0000"
    assert lines[2:4] == [f"| E | {shares} | {gains} | 3 | 2 | 1 |"] * 2
    guess = '"AdaGC always helps"'
    for part in (
        f'in 2 of 6 pairs ({guess}: 2, "never": 4) that are set up',
        f'in 0 of 0 pairs ({guess}: 0, "never": 0) of calm recipes',
        f'place, it is wrong in 2 of 3 pairs ({guess}: 2, "never": 1)',
    ):
        assert part in lines[-1]


def test_pages_of_methods_take_the_seeds_of_their_grid(write_grid, tmp_path):
    name = "extension-compared-methods"
    path = write_grid(f"{name}.yaml", {"name": "calm-mixtral"})
    clips = {run.method: run for run in planned(path)}
    runs = [
        cell(
            f"{method}{seed}",
            method,
            seed,
            config=flatten(as_json(clips[method].config)),
            steps=20,
            validation_loss=1.0 + seed,
        )
        for method in clips
        for seed in (3, 4, 5)  # 5 is not in the grid
    ]
    results = {name: result(*runs, target=name)}
    catalogue = Catalogue({name: path})
    files = made_files(Rules([]), catalogue, results, tmp_path, tmp_path)
    page = files[tmp_path / "results/methods.md"]
    assert "| AdaGC | 4.5000 ± 0.7071 | +0.0000 ± 0.0000 (p 1) |" in page
    assert page.count("Not run yet.") == 6
    assert files[tmp_path / "results/epsilon.md"].count("Not run yet.") == 2


def test_claims_and_labels_are_escaped_and_counted(write_grid, tmp_path):
    path = write_grid("t.yaml", {"seeds": [3]})
    zero = rule("zero", "spike_events", ["GlobalGC"], methods=["AdaGC"])
    claim = make_claim(zero, experiment="tiny", paper="0 | none")
    rules, catalogue = Rules([claim]), Catalogue({"t": path})
    files = made_files(rules, catalogue, {}, tmp_path, tmp_path)
    row = r"[It is so.](#c) | **not run** | – | 0 \| none |"
    assert row in files[tmp_path / "results/claims.md"]
    page = files[tmp_path / "results.md"]
    assert re.search(r"\*\*not run\*\* .* \[c\]\(results/claims.md#c\)", page)
    assert "Of 1 claims of the paper: 1 not run." in page


def test_collecting_adds_to_what_is_committed(tmp_path, low_noise):
    out, results = tmp_path / "out", tmp_path / "results"
    with pytest.raises(FileNotFoundError, match="run one first"):
        collect_results(out, results, ["t"])
    write_results(out / "t/results.jsonl", low_noise)
    committed = [results / "t.jsonl"]
    assert collect_results(out, results, ["t", "u"]) == committed
    assert read_results(*committed) == low_noise
    write_results(out / "t/results.jsonl", result(cell("new")))
    collect_results(out, results, ["t"])
    (experiment,) = read_results(*committed).experiments
    assert len(experiment.all_runs) == 7


def test_runs_that_are_judged_otherwise_are_not_collected(tmp_path):
    out, results = tmp_path / "out", tmp_path / "results"
    write_results(results / "t.jsonl", result(cell("old"), skip_steps=200))
    write_results(out / "t/results.jsonl", result(cell("new"), skip_steps=24))
    with pytest.raises(ValueError, match="first 24 steps are not judged"):
        collect_results(out, results, ["t"])


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The command on some of the results, without pages."""
    for name in ("results", "docs"):
        (tmp_path / name).mkdir()
    for path in command.RESULTS.glob("table-*.jsonl"):
        (tmp_path / "results" / path.name).write_bytes(path.read_bytes())
    for name in ("RESULTS", "DOCS"):
        monkeypatch.setattr(command, name, tmp_path / name.lower())
    return tmp_path


@pytest.mark.slow
def test_check_finds_stale_pages(elsewhere, capsys):
    assert command.main(["report", "--check"]) == 1
    assert "tools/reproduce.py report" in capsys.readouterr().err
    assert not any((elsewhere / "docs").iterdir())
    assert command.main(["report"]) == 0
    assert command.main(["report", "--check"]) == 0
    assert command.main(["verify"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quickstart", "--jobs", "0"], "num_jobs must be at least 1"),
        (["no/such.yaml"], "there is no config file no/such.yaml"),
        (["report", "--check", "--collect", "x"], "leave out --collect"),
        (["report", "--collect", "nowhere"], "nowhere holds no"),
    ],
)
def test_mistakes_on_the_command_line(arguments, message, capsys, tmp_path):
    output = ["--output", str(tmp_path)] if arguments[0] != "report" else []
    assert command.main([*arguments, *output]) == 2
    assert message in capsys.readouterr().err
