# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pages, tables, collected results, and the command line."""

import pytest
from pages import load_tool

from paddle_adagc.lab.reproduce.claims import (
    Claim,
    Condition,
    load_claims,
    load_curves,
    load_figures,
)
from paddle_adagc.lab.reproduce.pages import (
    Pages,
    collect_results,
    load_all_results,
    table_markdown,
)
from paddle_adagc.lab.reproduce.pool import Catalogue
from paddle_adagc.lab.reproduce.results import (
    ExperimentResult,
    RunResult,
    TargetResult,
    read_results,
    write_results,
)

command = load_tool("reproduce")


def result(target="t", events=(0, 0, 0)):
    cells = [
        RunResult(
            method=method,
            seed=seed,
            key=f"{method}{seed}",
            commit="abc",
            versions={"paddlepaddle": "3.3.1"},
            timings={"elapsed_seconds": 3600.0},
            measures={
                "spikes_1000": 5 * counts[seed],
                "events_1000": counts[seed],
                "judged_1000": 1300,
                "final_loss": loss + seed,
                "steps": 2500,
                "step_ms": 20.0,
            },
        )
        for seed in range(3)
        for method, counts, loss in (
            ("GlobalGC", (1, 1, 2), 1.5),
            ("AdaGC", events, 1.25),
        )
    ]
    experiment = ExperimentResult(
        name="e", title="Low noise", description="Text.", all_runs=cells
    )
    return TargetResult(target=target, title="Spikes", experiments=[experiment])


def test_pages_are_what_the_committed_results_give():
    pages = Pages(
        load_claims(command.CLAIMS),
        Catalogue({p.stem: p for p in sorted(command.GRIDS.glob("*.yaml"))}),
        load_all_results(command.RESULTS),
        load_figures(command.CLAIMS),
        load_curves(command.CLAIMS),
    )
    made = pages.made_files(command.DOCS, command.RESULTS)
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_table_has_a_line_per_method_rates_and_paired_differences():
    lines = table_markdown(result().experiments[0]).splitlines()
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


def test_claims_and_labels_are_escaped_and_counted(write_grid, tmp_path):
    path = write_grid("t.yaml", {"seeds": [3]})
    claim = Claim(
        id="c",
        where="Table 3",
        claim="AdaGC has no spikes.",
        paper="0 | none",
        target="t",
        experiment="tiny",
        reproduced_if=[
            Condition(
                measure="spike_events",
                methods=["AdaGC"],
                expect="zero",
                to=["GlobalGC"],
            )
        ],
    )
    pages = Pages([claim], Catalogue({"t": path}), {})
    page = pages.made_files(tmp_path, tmp_path)[tmp_path / "results.md"]
    line = r"[AdaGC has no spikes.](results/claims.md#c) | 0 \| none | – |"
    assert f"{line} **not run** |" in page
    assert "Of 1 claims of the paper: 1 not run." in page


def test_collecting_adds_to_what_is_committed(tmp_path):
    write_results(tmp_path / "out/t/results.jsonl", result())
    results = tmp_path / "results"
    assert collect_results(tmp_path / "out", results, ["t", "u"]) == [
        results / "t.jsonl"
    ]
    assert read_results(results / "t.jsonl") == result()
    with pytest.raises(FileNotFoundError, match="run one first"):
        collect_results(tmp_path, results, ["t"])
    more = result()
    for i, cell in enumerate(more.experiments[0].all_runs):
        cell.measures["final_loss"] = 9.0
        object.__setattr__(cell, "key", f"new{i}")
    write_results(tmp_path / "out/t/results.jsonl", more)
    collect_results(tmp_path / "out", results, ["t"])
    (experiment,) = read_results(results / "t.jsonl").experiments
    assert len(experiment.all_runs) == 12


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
