# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which folder a run's record goes to."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

from paddle_adagc.watch.reading import FILE, folders_beside
from paddle_adagc.watch.store import RecordedRun, read_record

logger = logging.getLogger(__name__)

_NUM_HISTORY = 128
_JUDGED = ("loss", "global_grad_norm")  # by which steps are skipped


@dataclasses.dataclass(frozen=True)
class Opened:
    """Where a run's record begins."""

    directory: Path
    start: int
    """Steps that were made before."""

    history: list[dict[str, float]]
    """Loss and global norm of the last of them."""


def open_folder(
    directory: Path, start: int | None
) -> tuple[Opened, RecordedRun | None]:
    """Choose a new folder, or the one in which a resumed run goes on.

    Args:
        directory: The first of the folders.
        start: Steps that a resumed run has made; None: it is new.

    Returns:
        Where it begins, and what was recorded before.

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
        return Opened(made, start or 0, []), None
    newest = before[-1]
    if len(before) > 1:
        logger.warning("the resumed run goes on in the newest, %s", newest)
    if not (newest / FILE).stat().st_size:
        return Opened(newest, start, []), None
    past = read_record(newest)
    rows = [row for row in past.rows if row["step"] <= start]
    history = [
        {name: row[name] for name in _JUDGED if name in row}
        for row in rows[-_NUM_HISTORY:]
    ]
    return Opened(newest, start, history), past


def _claim(directory: Path) -> Path:
    """Make the first folder that holds no record; no two runs get the same."""
    number, folder = 1, directory
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            os.close(os.open(folder / FILE, flags, 0o644))
            return folder
        except FileExistsError:
            number += 1
            folder = directory.with_name(f"{directory.name}-{number}")
