# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Links, names and commands of the documentation fit the code."""

import argparse
import re
import shlex
import sys
import warnings
from pathlib import Path

import pytest
import tomllib
import yaml
from adagc_lab.paddleformers.recipe import read_run_config
from adagc_lab.reproduce.grid import load_target
from adagc_lab.train.parse import load_config
from paddle.distributed.launch.context.args_envs import parse_args
from pages import (
    PAGES,
    ROOT,
    blocks,
    load_tool,
    page_name,
    prose,
)

from paddle_adagc import run
from paddle_adagc.watch import command as report

PROXY = ROOT / "configs/proxy/llama_low_noise.yaml"
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_HEADING = re.compile(r"^(#+) +(.+)$", re.MULTILINE)
_FOLDERS = ("paddle_adagc", "configs", "tools", "tests", "docs", "results")
every_page = pytest.mark.parametrize("page", PAGES, ids=page_name)


def anchors(page):
    """Anchors of a page's headings, on GitHub and in the built site."""
    kept = [
        re.sub(r"[^\w\s-]", "", heading.lower()).strip()
        for _, heading in _HEADING.findall(prose(page))
    ]
    patterns = (r"\s", r"[-\s]+")
    return {re.sub(p, "-", heading) for heading in kept for p in patterns}


def commands(page):
    """Commands of a page: shell blocks, and whole commands in the prose."""
    bash = "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    begins = ("python tools/", "pip install", "pytest ")
    spans = [x for x in _SPAN.findall(prose(page)) if x.startswith(begins)]
    parts = (part for line in bash + spans for part in line.split("&&"))
    return [*filter(None, (shlex.split(x, comments=True) for x in parts))]


@every_page
def test_links_resolve(page):
    for link in _LINK.findall(prose(page)):
        if link.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: no {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: no {link}"


def parsed(tool, arguments, monkeypatch):
    """The options that a tool's own parser gives; the tool does nothing."""
    main, found = load_tool(Path(tool).stem).main, []
    with monkeypatch.context() as patch:
        for name in ("parse_args", "parse_intermixed_args"):
            original = getattr(argparse.ArgumentParser, name)

            def stop(self, *args, _original=original, **kwargs):
                found.append(_original(self, *args, **kwargs))
                sys.exit()

            patch.setattr(argparse.ArgumentParser, name, stop)
        patch.setattr(sys, "argv", [tool, *arguments])
        with pytest.raises(SystemExit):
            main()
    assert found, f"{tool} does not take {arguments}"
    return found[0]


def check_tool(tool, arguments, monkeypatch):
    """Parse a tool's arguments, and read the config that they name."""
    options = parsed(tool, arguments, monkeypatch)
    if tool == "tools/pretrain.py":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_run_config(ROOT / options.config, options.overrides)


@every_page
def test_commands_parse(page, monkeypatch):
    text = (ROOT / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for command in commands(page):
        if command and command[0].startswith("PYTHONPATH="):
            del command[0]
        match command:
            case ["python", "-m", "paddle.distributed.launch", *_]:
                monkeypatch.setattr(sys, "argv", command[2:])
                options, unknown = parse_args()
                monkeypatch.undo()
                assert not unknown
                if (tool := options.training_script) != "SCRIPT":
                    rest = options.training_script_args
                    check_tool(tool, rest, monkeypatch)
            case ["python", tool, *arguments] if tool.startswith("tools/"):
                check_tool(tool, arguments, monkeypatch)
            case ["pip", "install", *arguments]:
                for names in re.findall(r"\[(.+)\]", " ".join(arguments)):
                    assert {*names.split(",")} <= {*extras}
            case ["adagc-run", *arguments]:
                # The clip's own arguments; the command is the user's.
                assert run.main(["--check", *arguments]) == 0
            case ["adagc-report", *arguments]:
                assert report.make_parser().parse_args(arguments).runs
            case ["pytest", *arguments]:
                paths = [path for path in arguments if path.startswith("tests")]
                assert all((ROOT / path).exists() for path in paths)
            case [
                "mkdir" | "cp" | "cd" | "rm" | "git" | "!",
                *_,
            ]:  # run by their own test
                pass
            case ["mkdocs" | "ruff" | "mypy" | "pre-commit" | "source", *_]:
                pass
            case ["python", "-m" | "-c", *_] | [".ci/run"]:
                pass
            case _:
                pytest.fail(f"{page.name}: nothing checks {command}")


@every_page
def test_configs_load(page, tmp_path):
    for block in blocks(page, "yaml"):
        file = tmp_path / "block.yaml"
        if "experiments" in yaml.safe_load(block):
            file.write_text(block)
            for experiment in load_target(file).experiments:
                assert (
                    ROOT / "configs/experiments" / experiment.config
                ).exists()
        else:
            file.write_text(f"base: {PROXY}\n{block}")
            load_config(file)


def test_ci_runs_tests_that_exist():
    script = (ROOT / ".ci/run").read_text()
    paths = re.findall(r"tests/[\w/.]+", script)
    assert len(paths) > 3
    for path in paths:
        assert (ROOT / path).exists(), f"no {path}"
