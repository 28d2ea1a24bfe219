# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commands answer help and mistakes at once, without Paddle's import."""

import importlib.util
import shlex
import sys
from importlib.metadata import packages_distributions

import numpy as np
import pytest
from adagc_lab.paddleformers.recipe import read_run_config
from adagc_lab.record.files import RunRecord
from helpers import run_python
from pages import ROOT, blocks, load_tool

needs_paddlenlp = pytest.mark.skipif(
    importlib.util.find_spec("paddlenlp") is None,
    reason="without PaddleNLP that is what is named",
)
TOOLS = ROOT / "tools"
CONFIG = str(ROOT / "configs/proxy/ernie_moe.yaml")
RECIPE = str(ROOT / "configs/ernie_10b_a1.4b_fp8/adagc.yaml")
ALONE = {"check_gpu", "command", "gpu"}
"""Tools with tests of their own."""

NAMES = sorted({path.stem for path in TOOLS.glob("*.py")} - ALONE)
COMMANDS = {
    "pretrain": [CONFIG],
    "pretrain --check": [RECIPE, "--check"],
    "prepare_data": ["c.jsonl", "--output", "c", "--tokenizer", "bytes"],
    "convert": ["run", "hf"],
    "evaluate": ["run"],
    "reproduce": ["quickstart"],
    "benchmark": ["clip"],
}
WITHOUT_PADDLENLP = {"prepare_data", "pretrain --check"}
_RUN_PATH = 'runpy.run_path(sys.argv[0], run_name="__main__")'
EARLY_ANSWER = f"""
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as for a script
try:
    {_RUN_PATH}
except SystemExit as exit:
    imported = {{name.partition(".")[0] for name in sys.modules}}
    assert not (found := imported & {{*os.environ["TOO_SLOW"].split()}}), found
    sys.exit(exit.code)
"""
QUICK = {"paddle_adagc", "numpy", "yaml", "_distutils_hack"}
TOO_SLOW = {*packages_distributions()} - QUICK


def answer(folder, name, *arguments, too_slow=("paddle",)):
    """Run a tool as people do; fail if it imported a package in too_slow."""
    command = ["-c", EARLY_ANSWER, TOOLS / f"{name}.py", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "TOO_SLOW": " ".join(too_slow)}
    return run_python(folder, *command, **environment)


def test_all_tools_are_covered():
    assert {name.split()[0] for name in COMMANDS} == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_help_and_a_wrong_flag_are_answered_before_paddle(name, tmp_path):
    done = answer(tmp_path, name, "--help", too_slow=TOO_SLOW)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: python tools/{name}.py [-h]")
    command = next(c for c in COMMANDS if c.startswith(name))
    arguments = [*COMMANDS[command], "--nope"]
    done = answer(tmp_path, name, *arguments, too_slow=TOO_SLOW)
    assert done.returncode == 2
    assert "unrecognized arguments: --nope" in done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "paddle_adagc.__main__",
        "paddle_adagc.run.command",  # adagc-run
        "paddle_adagc.watch.command",  # adagc-report
    ],
)
def test_help_of_the_library_s_commands_comes_before_paddle(module, tmp_path):
    call = f"import {module} as command\nsys.exit(command.main(['--help']))"
    code = EARLY_ANSWER.replace(_RUN_PATH, call.replace("\n", "\n    "))
    done = run_python(tmp_path, "-c", code, "", TOO_SLOW=" ".join(TOO_SLOW))
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout.lower()


@needs_paddlenlp
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        # Arguments after the config; keys of another section.
        ("pretrain", [CONFIG, "--max_steps", "5"], "have the form key=value"),
        ("pretrain", [CONFIG, "max_steps=5"], "did you mean 'train.max_steps'"),
        ("pretrain", [CONFIG, "train.max_stps=5"], "did you mean 'train.max_"),
        # The config itself.
        ("pretrain", ["no.yaml"], "there is no config file no.yaml"),
        ("pretrain", ["configs/proxy/ernie_moe.yaml"], f"mean {CONFIG}?"),
        ("pretrain", [str(ROOT / "configs/proxy")], "is a folder: name a file"),
        ("pretrain", ["pt.yaml", "--print-config"], "no 'model_name_or_pa"),
        ("benchmark", ["step", "--configs", "no.yaml"], "no config file"),
        ("benchmark", ["clp"], "did you mean 'clip'?"),
        ("prepare_data", COMMANDS["prepare_data"], "c.jsonl is not a file"),
        ("convert", COMMANDS["convert"], "there is no directory run"),
        ("evaluate", COMMANDS["evaluate"], "there is no directory run"),
    ],
)
def test_a_mistake_is_named_before_paddle(name, arguments, message, tmp_path):
    (tmp_path / "pt.yaml").write_text("stage: PT\n")
    done = answer(tmp_path, name, *arguments)
    assert done.returncode == 2
    assert f"python tools/{name}.py: " in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", sorted({*COMMANDS} - WITHOUT_PADDLENLP))
def test_command_says_that_paddlenlp_is_missing(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "paddlenlp", None)
    assert load_tool(name.split()[0]).main(COMMANDS[name]) == 2
    error = capsys.readouterr().err
    assert "paddlenlp is not installed here: pip install -e '.[nlp]'" in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("config", [CONFIG, RECIPE])
def test_a_printed_config_is_the_same_run(config, tmp_path, capsys):
    assert load_tool("pretrain").main([config, "--print-config"]) == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    assert read_run_config(printed) == read_run_config(config)


@needs_paddlenlp
def test_benchmark_prints_a_table_for_each_share(capsys, monkeypatch):
    monkeypatch.setattr(
        "adagc_lab.benchmark.clip_step.recipe_shapes",
        lambda name: [(4, 8), (8,)],
    )
    arguments = ["clip", "--lists", "llama2-7b", "--repetitions", "2"]
    assert load_tool("benchmark").main(arguments) == 0
    out = capsys.readouterr().out
    for share in ("10%", "100%"):
        assert f"llama2-7b: 2 tensors, 0M values, {share} of the" in out
    assert out.count("| AdaGC |") == 2
    arguments[2] = "llama"
    assert load_tool("benchmark").main(arguments) == 2
    assert "must be one of ernie-10b-a1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_spikes_is_forked_before_the_spike(tmp_path):
    """By the commands of docs/training.md, as they stand there."""
    for folder in ("tools", "configs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    block = next(
        b for b in blocks(ROOT / "docs/training.md", "bash") if "--fork" in b
    )
    for line in block.replace("\\\n", " ").splitlines():
        command, *arguments = shlex.split(line)
        if command == "adagc-report":
            arguments = ["-m", "paddle_adagc.watch.command", *arguments]
        done = run_python(tmp_path, *arguments, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr
    before, fork = (
        RunRecord.load(tmp_path / "outputs" / name)
        for name in ("switch", "switch_adagc")
    )
    assert fork.run["forked_from"]["step"] == 150
    np.testing.assert_array_equal(fork.loss[:151], before.loss[:151])
    good = np.r_[305:350, 355:400]  # after each burst of bad batches
    assert before.loss[good].min() > 1 > 0.5 > fork.loss[good].max()
    report = (tmp_path / "outputs/switch.html").read_text()
    assert "switch_adagc" in report
