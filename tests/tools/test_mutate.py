# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``tools/mutate.py``: its mutants and its modules."""

from pages import ROOT, load_tool


def test_mutated_modules_and_their_tests_exist():
    modules = load_tool("mutate").read("mutated_modules")["modules"]
    for module, kinds in modules.items():
        assert (ROOT / module).is_file(), module
        for test in (*kinds["fast"], *kinds.get("on_ranks", ())):
            assert (ROOT / "tests" / test.split("::")[0]).is_file(), test


def test_mutants_change_what_is_executed(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        '"""Doc 1."""\n'
        "def f(a: int = 2, *, b=True):\n"
        "    if a < 3 and not b:\n"
        "        raise ValueError(f'{a + 1}')\n"
        "    a |= b\n"
        "    a.update(b)\n"
        "    return min(a, g(b=b)), {**a, **b}\n"
    )
    made = load_tool("mutate").mutants(path)
    assert [*made] == [
        "f: True -> False",
        "f: 2 -> 3",
        "f: if a < 3 and (not b) -> if not",
        "f: a < 3 and (not b) -> a < 3 or not b",
        "f: a < 3 -> a <= 3",
        "f: a < 3 -> a > 3",
        "f: 3 -> 4",
        "f: not b -> +bool(b)",
        "f: a |= b -> a &= b",
        "f: a |= b -> a |= a.clear() or b",
        "f: without a.update(b)",
        "f: a.update(b) -> a.clear() or a.update(b)",
        "f: min(a, g(b=b)) -> min(g(b=b), a)",
        "f: min -> max",
        "f: g without b=b",
        "f: {**a, **b} -> {**b}",
    ]
    for tree in made.values():
        compile(tree, str(path), "exec")
