# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Console scripts; all other metadata stands in pyproject.toml.

A wheel holds the library alone. The commands need the laboratory, so only an
editable install, which is a checkout, gets their console scripts.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).parent
COMMANDS = ROOT / "paddle_adagc" / "lab" / "cli"


def console_scripts() -> list[str]:
    """``adagc-...`` for every file in tools that wraps a command."""
    names = sorted(path.stem for path in (ROOT / "tools").glob("*.py"))
    return [
        f"adagc-{name.replace('_', '-')} = paddle_adagc.lab.cli.{name}:"
        # Training ends together with the run's other processes.
        f"{'run' if name == 'pretrain' else 'main'}"
        for name in names
        if (COMMANDS / f"{name}.py").exists()
    ]


class EditableWheel(editable_wheel):
    """``pip install -e .``, with console scripts."""

    def run(self) -> None:
        """Build it."""
        self.distribution.entry_points = {"console_scripts": console_scripts()}
        super().run()


setup(cmdclass={"editable_wheel": EditableWheel})
