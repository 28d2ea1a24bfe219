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
"""The results page, its tables, and the command line."""

import json
import math
from pathlib import Path

import pytest

from paddle_adagc.lab.cli import reproduce as command
from paddle_adagc.lab.reproduce.claims import Claim, Condition, load_claims
from paddle_adagc.lab.reproduce.markdown import experiment_markdown
from paddle_adagc.lab.reproduce.readme import (
    BEGIN,
    END,
    collect_results,
    expected_page,
    with_section,
)
from paddle_adagc.lab.reproduce.results import (
    CellResult,
    ExperimentResult,
    TargetResult,
    read_results,
    write_results,
)

CLAIM = Claim(
    id="zero",
    where="Table 3",
    claim="AdaGC has no spikes.",
    paper="0 | none",
    target="t",
    experiment="e",
    reproduced_if=[Condition(measure="spikes_1000", methods=["AdaGC"], max=0)],
)


def result(spikes=(0, 0, 0)):
    cells = [
        CellResult(
            method=method,
            seed=seed,
            key=f"{method}{seed}",
            commit="abc",
            versions={"paddlepaddle": "3.3.1"},
            timings={"elapsed_seconds": 3600.0},
            measures={
                "spikes_1000": counts[seed],
                "final_loss": loss + seed,
                "steps": 2500,
                "step_ms": 20.0,
            },
        )
        for seed in range(3)
        for method, counts, loss in (
            ("GlobalGC", (9, 8, 12), 1.5),
            ("AdaGC", spikes, 1.25),
        )
    ]
    experiment = ExperimentResult(
        name="e", title="Low noise", description="Text.", cells=cells
    )
    return TargetResult(
        target="t", title="Spikes", cuts=["Cut."], experiments=[experiment]
    )


def test_page_is_what_the_committed_results_give():
    claims = load_claims(command.CLAIMS)
    page = command.PAGE.read_text(encoding="utf-8")
    assert page == expected_page(page, claims, command.RESULTS)


def test_section_replaces_itself_alone(tmp_path):
    write_results(tmp_path / "t.jsonl", result())
    page = "# P\n\n## Results\n\nOld text.\n\n## Next\n"
    first = expected_page(page, [CLAIM], tmp_path)
    assert first.startswith(f"# P\n\n## Results\n\n{BEGIN}\n")
    assert first.endswith("\nOld text.\n\n## Next\n")
    assert expected_page(first, [CLAIM], tmp_path) == first
    assert "| **reproduced** | e: spikes_1000 of AdaGC 0 / 0 / 0 |" in first
    assert r"AdaGC has no spikes. (0 \| none)" in first
    assert "6 runs, 6.0 core-hours; paddlepaddle 3.3.1; commits abc." in first
    assert "Of 1 claims: 1 reproduced." in first
    write_results(tmp_path / "t.jsonl", result(spikes=(0, 1, 0)))
    second = expected_page(first, [CLAIM], tmp_path)
    assert "**not reproduced**" in second
    assert second.count(BEGIN) == second.count(END) == 1
    assert with_section(second, "") == with_section(first, "")


def test_page_without_results(tmp_path):
    assert expected_page("## Results\n", [CLAIM], tmp_path) == "## Results\n"
    with pytest.raises(ValueError, match="no results"):
        expected_page(f"{BEGIN}\n{END}\n", [CLAIM], tmp_path)
    with pytest.raises(ValueError, match="no heading"):
        with_section("# P\n", "text")


def test_table_has_a_line_per_method_and_paired_differences():
    lines = experiment_markdown(result().experiments[0]).splitlines()
    assert lines[0] == "#### Low noise"
    assert "3 seeds (0, 1, 2) of 2,500 steps" in lines[2]
    assert "least possible p 0.25" in lines[2]
    assert lines[4:] == [
        "|  | Spikes, window 1,000 | Training loss (nat) | Δ to GlobalGC |",
        "|---|---:|---:|---:|",
        "| GlobalGC | 9 / 8 / 12 | 2.5000 ± 1.0000 | – |",
        "| AdaGC | 0 / 0 / 0 | 2.2500 ± 1.0000 | -0.2500 ± 0.0000 (p 0.25) |",
    ]


def test_results_come_back_from_their_file(tmp_path):
    first = result()
    first.experiments[0].cells[0].measures["final_loss"] = math.inf
    path = write_results(tmp_path / "deep/t.jsonl", first)
    assert read_results(path) == first
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", "line 1"),
        ('{"kind": "cell", "method": "A"}', "line 1"),
        ('{"kind": "target", "target": "t", "titel": "T"}', "titel"),
    ],
)
def test_bad_results_are_named(tmp_path, text, message):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_results(path)


def test_collecting_results(tmp_path):
    write_results(tmp_path / "out/t/results.jsonl", result())
    results = tmp_path / "results"
    assert collect_results(tmp_path / "out", results, ["t", "u"]) == [
        results / "t.jsonl"
    ]
    assert read_results(results / "t.jsonl") == result()
    with pytest.raises(FileNotFoundError, match="run one first"):
        collect_results(tmp_path, results, ["t"])


def test_check_finds_a_stale_page(tmp_path, monkeypatch, capsys):
    page = tmp_path / "results.md"
    page.write_text("## Results\n")
    monkeypatch.setattr(command, "PAGE", page)
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    write_results(tmp_path / "results/t.jsonl", result())
    assert command.main(["report", "--check"]) == 1
    assert "tools/reproduce.py report" in capsys.readouterr().err
    assert page.read_text() == "## Results\n"
    assert command.main(["report"]) == 0
    assert command.main(["report", "--check"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quickstart", "--jobs", "0"], "num_jobs must be at least 1"),
        (["quickstart", "--minutes", "-1"], "minutes must be positive"),
        (["report", "--check", "--collect", "x"], "leave out --collect"),
        (["report", "--collect", "nowhere"], "nowhere holds no"),
    ],
)
def test_mistakes_on_the_command_line(arguments, message, capsys, tmp_path):
    output = ["--output", str(tmp_path)] if arguments[0] != "report" else []
    assert command.main([*arguments, *output]) == 2
    assert message in capsys.readouterr().err


def test_help_lists_the_targets(capsys):
    with pytest.raises(SystemExit, match="0"):
        command.main(["--help"])
    text = capsys.readouterr().out
    for path in Path(command.GRIDS).glob("*.yaml"):
        assert path.stem in "".join(text.split())
    with pytest.raises(SystemExit, match="2"):
        command.main(["table-spikes"])
