# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the library's tests under several Pythons and releases of Paddle.

    python tools/check_versions.py
    python tools/check_versions.py --python 3.11 --paddle 3.1.1 3.3.1
    python tools/check_versions.py --table

Makes an environment for every pair, from PyPI, runs the tests of the library
that need no trainer, and appends a line to results/versions.jsonl. --table
runs nothing and prints the table of docs/versions.md. All 28 environments are
made one after the other and take about 1.5 GB and several minutes each. A
python3.N has to be on the path. The exit status is 1 if a pair failed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adagc_lab.committed import as_json
from adagc_lab.markdown import markdown_table
from command import ROOT, add_options, make_parser

RECORD = ROOT / "results" / "versions.jsonl"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PADDLES = ("3.1.0", "3.1.1", "3.2.0", "3.2.1", "3.2.2", "3.3.0", "3.3.1")
LIBRARY = (
    "tests/core",
    "--ignore=tests/core/integrations",
    "--ignore=tests/core/parallel",
    "--ignore=tests/core/clips/test_registry.py",
    "--ignore=tests/core/optimizers/test_layouts.py",
    "--ignore=tests/core/optimizers/test_tensor_parts.py",
)
"""The library's tests without those that start fleet or need PaddleNLP."""

_OPTIONS = """
--python VERSION  default: all
--paddle VERSION  default: all
--table           print the table, run nothing
"""

PACKAGES = (
    "numpy<2.4",
    "safetensors>=0.4",
    "setuptools",
    "pytest>=8",
    "hypothesis>=6",
    "ml-dtypes>=0.4",
    "scipy>=1.11",
)
"""Beside Paddle: what the library and its tests import."""


def main() -> int:
    """Run the command."""
    parser = make_parser("check_versions", __doc__)
    python, paddle = ({"nargs": "+", "default": v} for v in (PYTHONS, PADDLES))
    add_options(parser, _OPTIONS, python=python, paddle=paddle)
    options = parser.parse_args()
    if options.table:
        print(table(read_records()), end="")
        return 0
    pairs = itertools.product(options.python, options.paddle)
    passed = [is_passed(run_pair(*pair)) for pair in pairs]
    return 0 if all(passed) else 1


def run_pair(python: str, paddle: str) -> dict[str, Any]:
    """Test a pair in a new environment, and record it."""
    begin = time.monotonic()
    record: dict[str, Any] = {"python": python, "paddle": paddle}
    record["tests"] = " ".join(LIBRARY)
    with tempfile.TemporaryDirectory() as folder:
        record |= tested(Path(folder), python, paddle)
    record["seconds"] = round(time.monotonic() - begin)
    line = as_json(record)
    print(line, end="", flush=True)
    with RECORD.open("a", encoding="utf-8") as file:
        file.write(line)
    return record


def tested(folder: Path, python: str, paddle: str) -> dict[str, Any]:
    """Make an environment; count its tests by outcome, or say what failed."""
    interpreter = shutil.which(f"python{python}")
    if interpreter is None:
        return {"problem": f"no python{python} here"}
    call(interpreter, "-m", "venv", folder)
    own = folder / "bin/python"
    packages = (f"paddlepaddle=={paddle}", *PACKAGES)
    done = call(own, "-m", "pip", "install", "--quiet", *packages)
    if done.returncode:
        errors = re.findall(r"(?m)^ERROR.*", done.stderr)
        return {"problem": (errors or ["pip failed"])[-1]}
    options = ["-c", str(ROOT / "pyproject.toml"), "-m", "not slow", "--tb=no"]
    options += ["-rfE", "-p", "no:cacheprovider"]
    addopts = "addopts=--import-mode=importlib --strict-markers"
    done = call(own, "-m", "pytest", *options, "-o", addopts, *LIBRARY)
    lines = done.stdout.splitlines() or [done.stderr[-300:]]
    found = re.findall(r"(\d+) (passed|failed|error|skipped)", lines[-1])
    if not found:
        return {"problem": lines[-1]}
    counts = {outcome: int(number) for number, outcome in found}
    failures = [x for x in lines if x.startswith(("FAILED", "ERROR"))]
    return {**counts, **({"failures": failures[:10]} if failures else {})}


def call(*command: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout with the checkout's package."""
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*map(str, command)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def num_bad(record: dict[str, Any]) -> int:
    """Tests that failed."""
    return record.get("failed", 0) + record.get("error", 0)


def is_passed(record: dict[str, Any]) -> bool:
    """Tell whether all tests of a pair passed."""
    return record.get("passed", 0) > 0 and not num_bad(record)


def read_records() -> list[dict[str, Any]]:
    """Read all records; the newest one of a pair stands last."""
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def table(records: Iterable[dict[str, Any]]) -> str:
    """Return the table of the pages: the newest record of every pair."""
    newest = {(r["python"], r["paddle"]): r for r in records}
    head = ["Python", *(f"Paddle {paddle}" for paddle in PADDLES)]
    rows = [
        [python, *(_cell(newest.get((python, paddle))) for paddle in PADDLES)]
        for python in PYTHONS
    ]
    return markdown_table(head, rows, left=len(head))


def _cell(record: dict[str, Any] | None) -> str:
    if record is None:
        return "not run"
    if "problem" in record:
        return str(record["problem"])
    bad = num_bad(record)
    return f"{record.get('passed', 0)} passed" + (
        f", {bad} failed" if bad else ""
    )


if __name__ == "__main__":
    sys.exit(main())
