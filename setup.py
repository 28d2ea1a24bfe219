# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Console scripts; all other metadata stands in pyproject.toml.

A wheel holds the library alone. The commands need the laboratory, so only an
editable install, which is a checkout, gets their console scripts.
"""

import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
tools = {path.stem for path in (ROOT / "tools").glob("*.py")}
names = {path.stem for path in (ROOT / "paddle_adagc/lab/cli").glob("*.py")}
scripts = [
    f"adagc-{name.replace('_', '-')} = paddle_adagc.lab.cli.{name}:"
    # Training ends together with the run's other processes.
    f"{'run' if name == 'pretrain' else 'main'}"
    for name in sorted(tools & names)
]
is_editable = "editable_wheel" in sys.argv
setup(entry_points={"console_scripts": scripts if is_editable else []})
