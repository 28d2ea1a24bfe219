# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tree for PaddleFleet's ``Research/AdaGC``."""

import json
import os
import re
import subprocess
import textwrap

import pytest
import tomllib
import yaml
from helpers import run_python
from pages import ROOT, blocks, load_tool

from paddle_adagc import load_state

pytest.importorskip("jinja2")
tool = load_tool("research_module")
MOST_LINES = 8920
"""Of Python in the tree's library."""

LEFT_OUT = (
    *("record", "report", "stability", "optimizers", "run"),
    *("integrations/paddlenlp.py", "integrations/paddleformers.py"),
    *("clips/agc.py", "clips/compared.py", "clips/measured.py"),
    "clips/registry.py",
)
STAND_IN = ROOT / "tests/run/stand_in"

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
    assert int(re.search(r"(\d+) tests collected", ended.stdout)[1]) > 500


def test_the_library_is_small_and_lacks_nothing_that_it_imports(tree):
    files = [*(tree / "paddle_adagc").rglob("*.py")]
    lines = sum(len(file.read_text("utf-8").splitlines()) for file in files)
    assert lines <= MOST_LINES
    for name in LEFT_OUT:
        assert (ROOT / "paddle_adagc" / name).exists(), name
        assert not (tree / "paddle_adagc" / name).exists(), name
    for file in [*files, *(tree / "scripts").glob("*.py")]:
        for name in tool.imported_names(file):
            if name.startswith("paddle_adagc."):
                parent = name.rpartition(".")[0]
                homes = (tool.module_file(n, tree) for n in (name, parent))
                assert any(homes), f"{file} imports {name}"


NEEDS = {
    "paddle_adagc.make_clip": "paddle_adagc.make_clip needs",
    "Options(record='a', skip_above=2.0)": "['a', 2.0] needs",
}
"""What a user asks for, and how the error begins."""


def test_what_is_left_out_is_named(tree):
    code = f"""
        import paddle_adagc
        from paddle_adagc.integrations.clipping import Options

        assert set(paddle_adagc.__all__) == {{
            "ClipGradByAdaGC", "load_state", "save_state"
        }}
        assert Options().make_record() is None
        for wanted in {[*NEEDS]}:
            try:
                eval(wanted)
            except ImportError as error:
                print(error)
        """
    ended = run(tree, "-c", textwrap.dedent(code))
    lines = ended.stdout.splitlines()
    for line, beginning in zip(lines, NEEDS.values(), strict=True):
        assert line.startswith(beginning)
        assert "which this copy of paddle_adagc leaves out" in line


@pytest.mark.slow
def test_its_own_tests_pass(tree):
    arguments = ("-p", "no:cacheprovider", "-k", "not cuda")
    ended = run(tree, "-m", "pytest", *arguments)
    assert ended.returncode == 0, ended.stdout
    assert int(re.search(r"(\d+) passed", ended.stdout)[1]) > 300


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
    assert (tree / "tests/core/test_rule.py").exists()
    sources = [
        path
        for path in tree.rglob("*")
        if path.suffix in (".py", ".sh", ".cpp", ".cu", ".h")
    ]
    assert len(sources) > 60
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "workflow", "trainer", "num_tensors"),
    [
        ("qwen3_0.6b.yaml", "sft", "SFTTrainer", 6),  # gate and up by name
        (
            *("ernie_10b_a1.4b_fp8/adagc.yaml", "ernie_pretrain"),
            *("PretrainingTrainer", 7),  # 3 in qkv_proj, 2 in up_gate_proj
        ),
    ],
)
def test_the_script_trains_with_the_configs(
    tree, tmp_path, config, workflow, trainer, num_tensors
):
    """Their workflow calls its Trainer by a global name."""
    files = {
        "tuner.py": f"from .{workflow}.workflow import run_tuner\n",
        f"{workflow}/workflow.py": f"""
            from paddlenlp.trainer import Trainer, TrainingArguments
            import paddle

            class {trainer}(Trainer):
                pass

            def run_tuner(config):
                assert config["stage"] and "clip" not in config
                layers = dict(qkv_proj=[4, 28], up_gate_proj=[28, 2])
                model = paddle.nn.Sequential(
                    *((k, paddle.nn.Linear(*v)) for k, v in layers.items())
                )
                {trainer}(model, TrainingArguments("out")).train()
            """,
    }
    for name, text in files.items():
        file = tmp_path / "paddlefleet/cli/train" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    path = os.pathsep.join(map(str, (tree, tmp_path, STAND_IN)))
    script = (str(tree / "scripts/train.py"), str(tree / "configs" / config))
    ended = run_python(tmp_path, *script, PYTHONPATH=path)
    assert ended.returncode == 0, ended.stderr
    assert "trained with ClipGradByAdaGC t_start=100" in ended.stdout
    assert "clip_h_min" in ended.stdout
    saved = load_state(tmp_path / "out/checkpoint-6")
    assert saved["step"] == 6
    assert len(saved["gamma"]) == num_tensors


def test_the_script_says_what_a_config_lacks(tree, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("stage: DPO\n")
    ended = run(tree, "scripts/train.py", str(config))
    assert ended.returncode == 1
    assert "it has clip: None and stage: 'DPO'" in ended.stderr


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
    assert ours["clip"].pop("name") == "adagc"
    assert theirs == ours | {"model_name_or_path": folder}
    assert (tree / folder / "config.json").exists()
