# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tree for PaddleFleet's ``Research/AdaGC``."""

import json
import re
import subprocess

import pytest
import tomllib
import yaml
from helpers import run_python
from pages import ROOT, blocks, load_tool

pytest.importorskip("jinja2")
tool = load_tool("research_module")
FEW = (
    "tests/core/test_rule.py",
    "tests/core/clips/test_adagc.py",
    "tests/core/parallel/test_simulated_ranks.py",
    "tests/core/clips/test_contract.py",
    "tests/core/optimizers/test_contract.py",
    "tests/core/optimizers/test_twins.py",
)

HYPOTHESIS = ("tests/core/test_rule.py", "tests/core/test_files.py")
"""The first needs it."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    out = tmp_path_factory.mktemp("Research") / "AdaGC"
    tool.write_tree(out)
    return out


def run(tree, *command):
    """Run Python with the tree alone, in it."""
    alone = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return run_python(tree, *command, **alone)


def test_it_imports_itself_and_its_tests_are_complete(tree):
    code = "import paddle_adagc; print(paddle_adagc.__file__)"
    home = run(tree, "-c", code).stdout.strip()
    assert home == str(tree / "paddle_adagc/__init__.py")
    ended = run(tree, "-m", "pytest", "-p", "no:cacheprovider", "--co")
    assert ended.returncode == 0, ended.stdout
    assert int(re.search(r"(\d+) tests collected", ended.stdout)[1]) > 1000


@pytest.mark.slow
def test_its_own_tests_pass(tree):
    arguments = ("-p", "no:cacheprovider", "-k", "not cuda", *FEW)
    ended = run(tree, "-m", "pytest", *arguments)
    assert ended.returncode == 0, ended.stdout
    assert int(re.search(r"(\d+) passed", ended.stdout)[1]) > 100


def test_tests_without_hypothesis_are_skipped(tree, tmp_path):
    missing = "raise ModuleNotFoundError('none', name='hypothesis')"
    (tmp_path / "hypothesis.py").write_text(missing)
    code = (
        f"import sys, pytest; sys.path.insert(0, {str(tmp_path)!r}); "
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    plugins = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    ended = run(tree, "-c", code, *plugins, "-rs", *HYPOTHESIS)
    assert ended.returncode == 0, ended.stdout
    assert "could not import 'hypothesis'" in ended.stdout


def test_ruff_is_clean(tree):
    ruff = tool.find_ruff()
    if ruff is None:
        pytest.skip("no ruff here: pip install ruff==0.14.4")
    config = f"--config={tool.PARTS / 'ruff.toml'}"
    for command in (["check"], ["format", "--check"]):
        ended = subprocess.run(
            [ruff, *command, "--no-cache", config, tree],
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stdout


def test_the_approval_hook_s_word_is_refused(tree, tmp_path):
    tool.check_words(tree)
    (tmp_path / "a.py").write_text("x = 'torchrun'\n")
    with pytest.raises(ValueError, match=r"a\.py has the word torch"):
        tool.check_words(tmp_path)


def test_the_tree_is_whole_and_alone(tree):
    for path in (tree / "tests").rglob("*.py"):
        assert "adagc_lab" not in path.read_text("utf-8"), path
    assert not (tree / "tools/adagc_lab").exists()
    assert (tree / "tests/core/clips/test_base.py").exists()
    sources = [
        path
        for path in tree.rglob("*")
        if path.suffix in (".py", ".sh", ".cpp", ".cu", ".h")
    ]
    assert len(sources) > 80
    for path in sources:
        head = path.read_text("utf-8").splitlines()[:4]
        assert re.search(r"Copyright \(c\) \d{4}", "\n".join(head)), path
    readme = (tree / "README.md").read_text("utf-8")
    for link in re.findall(r'(?:\]\(|src=")(\./[^)"]+)', readme):
        assert (tree / link).exists()
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    for part in ("dependencies", "optional-dependencies"):
        assert "paddle" not in str(project[part])


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    ended = run(ROOT, tool.__file__, str(tmp_path))
    assert ended.returncode == 2
    assert f"{tmp_path} holds something" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_readme_s_example_runs(tree, tmp_path):
    example = blocks(tree / "README.md", "python")[0]
    (tmp_path / "example.py").write_text(
        f"import os; os.chdir({str(tmp_path)!r})\n{example}"
    )
    ended = run(tree, str(tmp_path / "example.py"))
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "checkpoint-3").exists()


@pytest.mark.parametrize(
    "config", ["adagc_run.yaml", "ernie_10b_a1.4b_fp8/adagc.yaml"]
)
def test_adagc_run_reads_the_configs(tree, config):
    module = "paddle_adagc.integrations.run"
    command = ("paddlefleet-cli", "train", f"configs/{config}")
    ended = run(tree, "-m", module, "--check", *command)
    assert ended.returncode == 0, ended.stderr
    assert "found the section clip in" in ended.stdout
    assert "t_start=100" in ended.stdout


def test_the_recipe_is_ours(tree):
    folder = "configs/ernie_10b_a1.4b_fp8"
    theirs = yaml.safe_load((tree / folder / "adagc.yaml").read_text())
    ours = yaml.safe_load((ROOT / folder / "base.yaml").read_text())
    ours |= yaml.safe_load((ROOT / folder / "adagc.yaml").read_text())
    del ours["base"]
    text = json.dumps(ours.pop("units"))
    model = json.loads((ROOT / folder / "config.json").read_text())
    for key in ("num_attention_heads", "num_key_value_heads"):
        text = text.replace(f'"{key}"', str(model[key]))
    ours["clip"]["units"] = json.loads(text)
    assert theirs == ours | {"model_name_or_path": folder}
    assert (tree / folder / "config.json").exists()
