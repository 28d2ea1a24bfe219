# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``tools/mutate.py``: its mutants, its modules, its table."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def mutate():
    """Names of the tool."""
    return runpy.run_path(str(ROOT / "tools/mutate.py"))


def test_the_table_of_mutants_is_made_of_the_results(mutate):
    text = (ROOT / "docs/soak.md").read_text("utf-8")
    record = (ROOT / "results/mutation.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in record.splitlines()]
    assert mutate["page"](text, lines) == text


def test_mutated_modules_and_their_tests_exist(mutate):
    for module, kinds in mutate["modules"]().items():
        assert (ROOT / "paddle_adagc" / module).is_file(), module
        for test in (*kinds["fast"], *kinds.get("on_ranks", ())):
            assert (ROOT / "tests" / test.split("::")[0]).is_file(), test


def test_mutants_change_what_is_executed(mutate, tmp_path):
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
        "f: min(a, g(b=b)) -> min(g(b=b), a)",
        "f: min -> max",
        "f: g without b=b",
    ]


def test_arguments_are_swapped_and_updates_lose_what_was_there(
    mutate, tmp_path
):
    path = tmp_path / "module.py"
    path.write_text(
        "def f(a, b):\n"
        "    a |= b\n"
        "    a.update(b)\n"
        "    return g(a, b, b), {**a, **b}\n"
    )
    assert [mutant.name for mutant in mutate["mutants"](path)] == [
        "f: a |= b -> a &= b",
        "f: a |= b -> a |= a.clear() or b",
        "f: without a.update(b)",
        "f: a.update(b) -> a.clear() or a.update(b)",
        "f: g(a, b, b) -> g(b, a, b)",
        "f: {**a, **b} -> {**b}",
    ]
    for mutant in mutate["mutants"](path):
        compile(mutant.tree, str(path), "exec")
