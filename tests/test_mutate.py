# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The trials of a run, few of each; the page is made of the results."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_adagc.lab.cli import pretrain, soak
from paddle_adagc.lab.soak import damage
from paddle_adagc.lab.soak.damage import damage_trials
from paddle_adagc.lab.soak.kills import LAYOUTS
from paddle_adagc.lab.soak.power import power_trials
from paddle_adagc.lab.soak.results import page, read_trials, write_trials
from paddle_adagc.lab.soak.runs import LOST, Trial
from paddle_adagc.lab.soak.storage import storage_trials

ROOT = Path(__file__).parents[3]
CAN_MOUNT = (
    os.geteuid() == 0
    and not subprocess.run(
        "dir=$(mktemp -d) && mount -t tmpfs tmpfs $dir && umount $dir",
        shell=True,
        capture_output=True,
    ).returncode
)


def test_the_page_is_made_of_the_results():
    text = (ROOT / "docs/soak.md").read_text("utf-8")
    assert page(text, read_trials(ROOT / "results/soak.jsonl")) == text


def test_the_table_of_mutants_is_made_of_the_results():
    mutate = runpy.run_path(str(ROOT / "tools/mutate.py"))
    text = (ROOT / "docs/soak.md").read_text("utf-8")
    record = (ROOT / "results/mutation.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in record.splitlines()]
    assert mutate["page"](text, lines) == text


def test_mutated_modules_and_their_tests_exist():
    mutate = runpy.run_path(str(ROOT / "tools/mutate.py"))
    for module, kinds in mutate["modules"]().items():
        assert (ROOT / "paddle_adagc" / module).is_file(), module
        for test in (*kinds["fast"], *kinds.get("on_ranks", ())):
            assert (ROOT / "tests" / test.split("::")[0]).is_file(), test


def test_mutants_change_what_is_executed(tmp_path):
    mutate = runpy.run_path(str(ROOT / "tools/mutate.py"))
    path = tmp_path / "module.py"
    path.write_text(
        '"""Doc 1."""\n'
        "def f(a: int = 2, *, b=True):\n"
        "    if a < 3 and not b:\n"
        "        raise ValueError(f'{a + 1}')\n"
        "    return min(a, g(b=b))\n"
    )
    assert [mutant.name for mutant in mutate["mutants"](path)] == [
        "f: True -> False",
        "f: 2 -> 3",
        "f: if a < 3 and (not b) -> if not",
        "f: a < 3 and (not b) -> a < 3 or not b",
        "f: a < 3 -> a <= 3",
        "f: a < 3 -> a > 3",
        "f: 3 -> 4",
        "f: not b -> +bool(b)",
        "f: min -> max",
        "f: g without b=b",
    ]


def test_results_of_one_kind_are_replaced(tmp_path):
    path = tmp_path / "soak.jsonl"
    write_trials(path, "kills", [Trial("kills", "a", "resumed")])
    write_trials(path, "damage", [Trial("damage", "b", "silent", count=3)])
    write_trials(path, "kills", [Trial("kills", "c", "fell back")])
    assert [trial.case for trial in read_trials(path)] == ["b", "c"]
    marks = "<!-- soak --><!-- end --><!-- soak cells --><!-- end -->"
    text = page(marks, read_trials(path))
    assert "| One file of a run or of its data damaged | 3 |" in text
    with pytest.raises(SystemExit):
        soak.main(["floods"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "kind", "outcome"),
    [
        ("run/checkpoint-8/optimizer.pdopt", "flipped bit", "fell back"),
        ("run/checkpoint-8/model_state.pdparams", "other shape", "fell back"),
        ("run/run.json", "truncated", "fell back"),
        ("run/checkpoint-4/rng_state.pth", "empty", "resumed"),
        ("corpus.bin", "zeroed block", "refused"),
        ("run/metrics.jsonl", "removed", "refused"),
    ],
)
def test_damage(file, kind, outcome, tmp_path, monkeypatch):
    monkeypatch.setattr(damage, "cases", lambda folder: [(file, kind)])
    (trial,) = damage_trials(tmp_path, pretrain.main, 1, seed=0)
    assert trial.outcome == outcome, trial.message
    assert Path(file).name in trial.message or outcome == "resumed"


@pytest.mark.slow
@pytest.mark.skipif(not CAN_MOUNT, reason="needs the right to mount")
@pytest.mark.parametrize("trials", [storage_trials, power_trials])
def test_disks(trials, tmp_path):
    found = [*trials(tmp_path, pretrain.main, 2, seed=0)]
    assert len(found) >= 2
    assert not [trial for trial in found if trial.outcome in LOST]


@pytest.mark.slow
@pytest.mark.long
def test_kills_of_every_layout(tmp_path):
    output = tmp_path / "soak.jsonl"
    options = ["kills", "--count", "5", "--output", str(output)]
    subprocess.run(
        [sys.executable, str(ROOT / "tools/soak.py"), *options],
        check=True,
        timeout=600,
    )
    trials = read_trials(output)
    assert {trial.case.split(",")[0] for trial in trials} == {*LAYOUTS}
    assert {trial.outcome for trial in trials} <= {"resumed", "fell back"}
