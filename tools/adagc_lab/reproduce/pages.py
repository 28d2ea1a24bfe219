# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the tables and figures of the pages, or say which is out of date."""

from __future__ import annotations

import itertools
from pathlib import Path

from adagc_lab.report.figures import svg
from adagc_lab.reproduce import store
from adagc_lab.reproduce.figures import figure_data, image_makers
from adagc_lab.reproduce.tables import blocks, fill, make_tables
from paddle_adagc.files import atomic_write

RECIPES = "configs/recipes.yaml"
FIGURES = "results/figures"
"""Folder of the figures' data, one ``NAME.csv`` each."""


def pages_of(root: Path) -> list[Path]:
    """Return every page that has a table."""
    found = [
        *sorted(root.glob("README*.md")),
        *sorted(root.glob("docs/**/*.md")),
    ]
    return [path for path in found if blocks(path.read_text(encoding="utf-8"))]


def _made(root: Path) -> dict[Path, str]:
    rows = store.load(root / "results")
    tables = make_tables(rows, root / RECIPES, root / "results")
    made = {
        path: fill(path.read_text(encoding="utf-8"), tables, path.name)
        for path in pages_of(root)
    }
    for name, data in figure_data(rows, root / RECIPES).items():
        text = data.to_csv(index=False, lineterminator="\n")
        made[root / FIGURES / f"{name}.csv"] = text
    return made


def differences(root: Path) -> str:
    """Name the first line that is not what the results give, or ``""``."""
    for path, text in _made(root).items():
        present = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = itertools.zip_longest(present.splitlines(), text.splitlines())
        for number, (old, new) in enumerate(lines, 1):
            if old != new:
                name = path.relative_to(root)
                return f"{name}, line {number}: is {old!r}, should be {new!r}"
    return ""


def write(root: Path) -> list[str]:
    """Write what differs; return the names.

    An image is drawn if its data differ, or if it is missing.
    """
    written = []
    for path, text in _made(root).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, text)
            written.append(path.name)
    images = root / "docs" / "images"
    for name, draw in image_makers(root / FIGURES, root / "results").items():
        image = images / f"{name}.svg"
        if not image.exists() or f"{name}.csv" in written:
            images.mkdir(parents=True, exist_ok=True)
            atomic_write(image, svg(draw()))
            written.append(image.name)
    return written
