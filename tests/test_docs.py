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
from pages import PAGES, ROOT, blocks, load_tool, page_name, prose

from paddle_adagc import run
from paddle_adagc.watch import command as report

PROXY = ROOT / "configs/proxy/llama_low_noise.yaml"
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_HEADING = re.compile(r"^(#+) +(.+)$", re.MULTILINE)
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


@pytest.fixture
def parsed(monkeypatch):
    """Parse arguments by a command's own parser; the command does nothing."""
    found = []
    for name in ("parse_args", "parse_intermixed_args"):
        original = getattr(argparse.ArgumentParser, name)

        def stop(self, *args, _original=original, **kwargs):
            found.append(_original(self, *args, **kwargs))
            sys.exit()

        monkeypatch.setattr(argparse.ArgumentParser, name, stop)

    def parsed(main, *words):
        monkeypatch.setattr(sys, "argv", [*words])
        with pytest.raises(SystemExit):
            main()
        assert found, f"not taken: {words}"
        return found.pop()

    return parsed


PROGRAMS = (
    *("mkdir", "cp", "cd", "rm", "git", "!", "source"),
    *("mkdocs", "ruff", "mypy", "pre-commit", ".ci/run"),
)
"""Programs that nothing here looks at."""


@every_page
def test_commands_parse(page, parsed):
    text = (ROOT / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for words in commands(page):
        if words[0].startswith("PYTHONPATH="):
            del words[0]
        if words[:3] == ["python", "-m", "paddle.distributed.launch"]:
            script = [word for word in words if word.startswith("tools/")]
            words = (
                ["python", *words[words.index(script[0]) :]] if script else []
            )
        match words:
            case ["python", tool, *_] if tool.startswith("tools/"):
                options = parsed(load_tool(Path(tool).stem).main, *words[1:])
                if tool == "tools/pretrain.py":
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        path = ROOT / options.config
                        read_run_config(path, options.overrides)
            case ["pip", "install", *arguments]:
                for names in re.findall(r"\[(.+)\]", " ".join(arguments)):
                    assert {*names.split(",")} <= {*extras}
            case ["adagc-run", *arguments]:
                # The clip's own arguments; the command is the user's.
                assert run.main(["--check", *arguments]) == 0
            case ["adagc-report", *_]:
                assert parsed(report.main, *words).runs
            case ["pytest", *arguments]:
                paths = [path for path in arguments if path.startswith("tests")]
                assert all((ROOT / path).exists() for path in paths)
            case [] | ["python", "-m" | "-c", *_]:
                pass
            case _:
                assert words[0] in PROGRAMS, f"nothing checks {words}"


@every_page
def test_configs_load(page, tmp_path):
    file = tmp_path / "block.yaml"
    for block in blocks(page, "yaml"):
        if "experiments" in yaml.safe_load(block):
            file.write_text(block)
            configs = {one.config for one in load_target(file).experiments}
            folder = ROOT / "configs/experiments"
            assert all((folder / config).exists() for config in configs)
        else:
            file.write_text(f"base: {PROXY}\n{block}")
            load_config(file)
