# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the library's tests under several Pythons and releases of Paddle.

    python tools/check_versions.py
    python tools/check_versions.py --python 3.11 --paddle 3.1.1 3.3.1
    python tools/check_versions.py --table

Makes an environment for every pair, from PyPI, runs the tests of the library
that need no trainer, and appends a line to results/versions.jsonl. --table
runs nothing and prints the table of docs/versions.md. All 28 environments are
made one after the other and take about 1.5 GB and several minutes each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
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
    "--ignore=tests/core/stability/test_excess.py",
)
"""The library's tests without those that start fleet or need PaddleNLP."""

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0: every pair passed; 1: one did not, or a Python is missing here.
    """
    parser = argparse.ArgumentParser(
        prog="python tools/check_versions.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--python",
        nargs="+",
        default=PYTHONS,
        metavar="X.Y",
        help="default: all",
    )
    add(
        "--paddle",
        nargs="+",
        default=PADDLES,
        metavar="X.Y.Z",
        help="default: all",
    )
    add(
        "--tests",
        nargs="+",
        default=LIBRARY,
        metavar="PATH",
        help="for pytest (default: the library's)",
    )
    add(
        "--folder",
        type=Path,
        help="keep the environments here, and use those that are there",
    )
    add("--table", action="store_true", help="print the table, run nothing")
    options = parser.parse_args(arguments)
    if options.table:
        print(table(read_records()))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        passed = [
            _run_pair(python, paddle, options, Path(scratch))
            for python in options.python
            for paddle in options.paddle
        ]
    return 0 if all(passed) else 1


def _run_pair(
    python: str, paddle: str, options: argparse.Namespace, scratch: Path
) -> bool:
    """Test a pair and record it; True if all tests passed."""
    folder = (options.folder or scratch) / f"python{python}-paddle{paddle}"
    begin = time.monotonic()
    record: dict[str, Any] = {
        "python": python,
        "paddle": paddle,
        "tests": " ".join(options.tests),
    }
    problem = _make_environment(folder, python, paddle)
    if problem is None:
        record |= _run_tests(folder / "bin" / "python", options.tests)
    else:
        record["problem"] = problem
    record["seconds"] = round(time.monotonic() - begin)
    print(json.dumps(record), flush=True)
    with RECORD.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    if options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return _is_passed(record)


def _make_environment(folder: Path, python: str, paddle: str) -> str | None:
    """Make the environment unless it is there; gives what is in the way."""
    if (folder / "bin" / "python").exists():
        return None
    interpreter = _find_python(python)
    if interpreter is None:
        return f"no python{python} here"
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    done = subprocess.run(
        [
            folder / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            f"paddlepaddle=={paddle}",
            *PACKAGES,
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return None
    shutil.rmtree(folder)
    errors = [x for x in done.stderr.splitlines() if x.startswith("ERROR")]
    return (errors or ["pip failed"])[-1]


def _find_python(version: str) -> str | None:
    """Return a Python of this version: on the path, or pyenv's newest."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = sorted(
        pyenv.glob(f"versions/{version}.*/bin/python"),
        key=lambda path: int(re.findall(r"\d+", path.parts[-3])[2]),
    )
    return str(found[-1]) if found else shutil.which(f"python{version}")


def _run_tests(python: Path, tests: Sequence[str]) -> dict[str, Any]:
    """Run the tests; counts by outcome, and what failed."""
    done = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "-c",
            ROOT / "pyproject.toml",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            "--tb=no",
            "--durations=0",
            "-rfE",
            "--override-ini=addopts=--import-mode=importlib --strict-markers",
            *tests,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines() or [done.stderr[-300:]]
    counts = {
        outcome: int(number)
        for number, outcome in re.findall(
            r"(\d+) (passed|failed|error|skipped)", lines[-1]
        )
    }
    if not counts:
        return {"problem": lines[-1]}
    failures = [x for x in lines if x.startswith(("FAILED", "ERROR"))]
    return {**counts, **({"failures": failures[:10]} if failures else {})}


def _is_passed(record: dict[str, Any]) -> bool:
    bad = record.get("failed", 0) + record.get("error", 0)
    return record.get("passed", 0) > 0 and not bad


def read_records() -> list[dict[str, Any]]:
    """Read all records; the newest one of a pair stands last."""
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def table(records: Iterable[dict[str, Any]]) -> str:
    """Return the table of the pages: the newest record of every pair."""
    newest = {(r["python"], r["paddle"]): r for r in records}
    lines = [
        "| Python | " + " | ".join(f"Paddle {p}" for p in PADDLES) + " |",
        "|---|" + "---|" * len(PADDLES),
    ]
    for python in PYTHONS:
        cells = [_cell(newest.get((python, paddle))) for paddle in PADDLES]
        lines.append(f"| {python} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(record: dict[str, Any] | None) -> str:
    if record is None:
        return "not run"
    if "problem" in record:
        return record["problem"]
    bad = record.get("failed", 0) + record.get("error", 0)
    return f"{record['passed']} passed" + (f", {bad} failed" if bad else "")


if __name__ == "__main__":
    sys.exit(main())
