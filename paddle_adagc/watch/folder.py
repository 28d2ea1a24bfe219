# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which folder a run's record goes to."""

from __future__ import annotations

import glob
import logging
import os
from pathlib import Path

from paddle_adagc.watch.reading import RecordedRun, read_record
from paddle_adagc.watch.store import FILE

logger = logging.getLogger(__name__)


def folders_beside(directory: str | os.PathLike[str]) -> list[Path]:
    """Return ``directory`` and its like, ``directory-2``, that hold records.

    In the order in which they were begun.
    """
    first = Path(directory)
    found = [(1, first)] if (first / FILE).is_file() else []
    for path in first.parent.glob(f"{glob.escape(first.name)}-*"):
        number = path.name[len(first.name) + 1 :]
        is_number = number.isascii() and number.isdigit() and len(number) < 9
        if is_number and (path / FILE).is_file():
            found.append((int(number), path))
    return [path for _, path in sorted(found)]


def open_folder(
    directory: Path, start: int | None
) -> tuple[Path, RecordedRun | None]:
    """Choose a new folder, or the one in which a resumed run goes on.

    ``start`` is the steps that a resumed run has made; None: it is new. The
    second value is what was recorded there before.

    Raises:
        OSError: No folder can be made.
        ValueError: What is there is damaged.
    """
    before = folders_beside(directory)
    if start is None or not before:
        made = _claim(directory)
        if made != directory:
            logger.warning(
                "%s holds the record of an earlier run: this one goes to %s",
                directory,
                made,
            )
        return made, None
    newest = before[-1]
    if len(before) > 1:
        logger.warning("the resumed run goes on in the newest, %s", newest)
    is_empty = not (newest / FILE).stat().st_size
    return newest, None if is_empty else read_record(newest)


def _claim(directory: Path) -> Path:
    """Make the first folder that holds no record; no two runs get the same."""
    number, folder = 1, directory
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            (folder / FILE).touch(0o644, exist_ok=False)
            return folder
        except FileExistsError:
            number += 1
            folder = directory.with_name(f"{directory.name}-{number}")
