# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the tree for PaddleFleet's ``Research/AdaGC``.

It holds the library without its laboratory, the tests that need no more, two
configs, and a README whose numbers come from the results. ``ruff``, where it is
installed, puts the Python files under PaddleFleet's rules; PaddleFleet uses
0.14.4.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.reproduce.verify.tables import read_tables

ROOT = Path(__file__).resolve().parents[1]
PARTS = Path(__file__).with_suffix("")
FOREIGN = re.compile(r"paddle_adagc\.lab|paddlenlp|paddleformers|tools/|torch")
"""A test that names one of these needs more than the tree."""

RATE = "Events per 1,000 judged steps"
AREA = "Excess area (nat × steps)"
LOSS = "Validation loss (nat)"
METHODS = ("GlobalGC", "AdaGC")
PROXIES = (
    ("Llama proxy, low gradient noise, beta2 raised to 0.999", RATE),
    ("Qwen3 proxy, low gradient noise, beta2 raised to 0.999", RATE),
    (
        "ERNIE proxy, low gradient noise, epsilon 1e-15, beta2 raised to 0.999",
        RATE,
    ),
    ("Mixtral proxy, low gradient noise, beta2 0.999", RATE),
    ("ERNIE proxy with faults, lambda_abs 1, beta2 raised to 0.999", AREA),
    ("ERNIE proxy on real text, beta2 raised to 0.999", LOSS),
    ("Qwen3's recipe at CPU size", LOSS),
    ("Llama-2 7B's recipe at CPU size", LOSS),
    ("Mixtral's recipe at CPU size, beta2 0.999", LOSS),
    ("Lion, CLIP at CPU size", LOSS),
)
"""Rows of the README's table: a table of the results pages, a column."""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="a new or an empty folder")
    try:
        write_tree(parser.parse_args().out)
    except ValueError as error:
        parser.error(str(error))


def write_tree(out: Path) -> None:
    """Write the tree.

    Args:
        out: A folder that is empty or does not exist.

    Raises:
        ValueError: ``out`` holds something, or a line of the tree has the word
            that PaddleFleet's approval hook stops.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} holds something: give a new or empty folder")
    ignored = shutil.ignore_patterns("__pycache__", "lab")
    shutil.copytree(PARTS / "tree", out, dirs_exist_ok=True)
    shutil.copytree(ROOT / "paddle_adagc", out / "paddle_adagc", ignore=ignored)
    for path in test_files():
        copy = out / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".py":
            copy.write_text(importorskip(path.read_text("utf-8")), "utf-8")
        else:
            shutil.copy(path, copy)
    write_recipe(out / "configs/ernie_10b_a1.4b_fp8")
    (out / "assets").mkdir()
    shutil.copy(ROOT / "docs/images/llama-low-noise-loss.png", out / "assets")
    (out / "README.md").write_text(readme(), "utf-8")
    format_python(out)
    check_words(out)


def test_files() -> set[Path]:
    """Tests that need neither laboratory nor Trainers, and what they read."""
    tests = ROOT / "tests"
    chosen = {tests / "core/conftest.py"}
    for path in (tests / "core").rglob("test_*.py"):
        reached = {path}
        queue = [path]
        while queue:
            new = {*local_imports(queue.pop(), tests)} - reached
            reached |= new
            queue += new
        if not any(FOREIGN.search(p.read_text("utf-8")) for p in reached):
            chosen |= reached
    chosen.add(tests / "backends.py")  # the fixture of conftest.py
    for folder in ("kernels/emulator", "optimizers/golden"):
        chosen |= {*(tests / "core" / folder).iterdir()}
    return chosen


def local_imports(path: Path, tests: Path) -> Iterator[Path]:
    """Files below ``tests`` that a file imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            file = tests / f"{name.replace('.', '/')}.py"
            if file.is_file():
                yield file


def importorskip(text: str) -> str:
    """Skip a test file without hypothesis, which PaddleFleet does not have."""
    first = re.compile(r"^(?=from hypothesis import)", re.M)
    return first.sub('pytest.importorskip("hypothesis")\n', text, count=1)


def write_recipe(folder: Path) -> None:
    """Write ERNIE's recipe as one file; ours are a base and what differs."""
    source = ROOT / "configs/ernie_10b_a1.4b_fp8"
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    text = (source / "base.yaml").read_text("utf-8")
    model = json.loads((source / "config.json").read_text("utf-8"))
    note = "# `clip` is read by adagc-run, all else by the command. Not run.\n"
    own = r"\1 configs/ernie_10b_a1.4b_fp8"
    for old, new in (
        (r"# `base`, `clip` and `units` are read by (?:.*\n){2}", note),
        (r"(?m)^# Relative to this file: the", "# The"),
        (r"; shares are numbers or keys of config.json", ""),
        (r"(?m)^(model_name_or_path:) \.$", own),
        (r"(?m)^(output_dir: .*)$", r"\1/adagc"),
        (r"(?m)^units:\n(?:  .*\n)+", lambda m: _in_clip(m.group(), model)),
    ):
        text, count = re.subn(old, new, text)
        if count != 1:
            raise ValueError(f"{source / 'base.yaml'}: {count} lines fit {old}")
    (folder / "adagc.yaml").write_text(text, "utf-8")


def _in_clip(units: str, model: dict[str, Any]) -> str:
    """Move ``units`` to where adagc-run looks for it, with numbers."""
    shares = re.sub(r"num_\w+", lambda key: str(model[key.group()]), units)
    return textwrap.indent(shares, "  ")


def readme() -> str:
    """Fill the README's template."""
    page = (ROOT / "docs/results.md").read_text("utf-8")
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    verdicts = json.loads((ROOT / "results/report.json").read_text())[
        "verdicts"
    ]
    parameters = inspect.signature(ClipGradByAdaGC).parameters
    claims = [
        [v["where"], v["claim"], f"**{v['verdict']}**"]
        for v in verdicts
        if v["primary"]
    ]
    environment = Environment(undefined=StrictUndefined, autoescape=False)
    template = (PARTS / "README.md.j2").read_text("utf-8")
    text = environment.from_string(template).render(
        runs=found(r"\d+ runs, [\d.]+ core-hours", page)[0],
        size=found(r"proxies of ([\d.]+ to [\d.]+ million)", page)[1],
        counts=found(r"Of \d+ claims of the paper: [^.]+\.", page)[0],
        claims=markdown_table(["Paper", "Claim", "Verdict"], claims, left=3),
        proxies=markdown_table(
            ["Proxy", "Measure", *METHODS], proxy_rows(), left=2
        ),
        paddles=found(r'"paddlepaddle>=([\d.]+),<=([\d.]+)"', project)[1:],
        defaults={n: p.default for n, p in parameters.items()},
        bibtex=found(
            r"(?s)```bibtex\n(.*?)\n```", (ROOT / "README.md").read_text()
        )[1],
    )
    return text + "\n"


def found(pattern: str, text: str) -> list[str]:
    """Return what a pattern finds, and its groups."""
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"nothing fits {pattern!r}: is the page another one?")
    return [match[0], *match.groups()]


def proxy_rows() -> Iterator[list[str]]:
    """Cells of the results pages; losses as differences to GlobalGC."""
    shown: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for page in ("results/runs.md", "results/ernie.md"):
        shown |= read_tables((ROOT / "docs" / page).read_text("utf-8"))
    for title, measure in PROXIES:
        cells = []
        for method in METHODS:
            row = shown[title].get(method, [])
            labels = [label for label, _ in row]
            if measure not in labels:
                cells.append("–")
                continue
            is_difference = measure == LOSS and method != METHODS[0]
            cells.append(row[labels.index(measure) + is_difference][1])
        yield [title, measure, *cells]


def find_ruff() -> str | None:
    """Path of ruff, this environment's first."""
    here = Path(sys.executable).parent
    return shutil.which("ruff", path=f"{here}{os.pathsep}{os.environ['PATH']}")


def format_python(out: Path) -> None:
    """Sort and format by PaddleFleet's rules, if ruff is installed."""
    ruff = find_ruff()
    if ruff is None:
        print(
            "research_module: no ruff here, so imports are not sorted by "
            "PaddleFleet's rules; pip install ruff==0.14.4",
            file=sys.stderr,
        )
        return
    config = f"--config={PARTS / 'ruff.toml'}"
    fix = ["check", "--fix", "--unsafe-fixes"]
    for command in (fix, ["format"]):
        subprocess.run(
            [ruff, *command, "--quiet", "--no-cache", config, out], check=True
        )


def check_words(out: Path) -> None:
    """Refuse a tree that PaddleFleet's approval hook would stop."""
    for path in sorted(out.rglob("*")):
        if path.is_file() and b"torch" in path.read_bytes():
            raise ValueError(f"{path.relative_to(out)} has the word torch")


if __name__ == "__main__":
    main()
