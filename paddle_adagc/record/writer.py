# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Append to the files of a record."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.files import (
    FolderLock,
    atomic_write_json,
    is_locked_here,
    make_directory,
    temporary_path,
)
from paddle_adagc.record.blocks import (
    QUANTITIES,
    array_bytes,
    arrays,
    arrays_and_ends,
    encoded,
    line_of,
    row_type,
    thinned,
)
from paddle_adagc.record.files import ALARMS, RECORD, STEPS, TENSORS, read_info

MAX_BYTES = 160 * 10**6
"""Default bound of ``tensors.npy``."""

STEP_BYTES = 400
"""Bound of a step's line, about."""

_NUM_LATEST = 512
"""Last rows that stay as they are when a file is thinned."""


class RecordWriter:
    """Append to the record in ``directory``; one process may.

    Args:
        directory: Made if it is missing.
        start: Step that the next row has at least. Rows of earlier sessions
            from there on no longer count.
        facts: JSON values about this session.
        max_bytes: Bound of ``tensors.npy``. When it is reached, every second
            row goes that is neither kept nor among the last 512, and from
            then on only one row in so many steps is written. Kept rows take
            at most half of it: the older ones are then thinned, too.

    Raises:
        FileExistsError: Another process is writing to this record.
        ValueError: The folder holds something else.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        start: int = 0,
        facts: Mapping[str, Any] | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.directory = make_directory(directory)
        self._lock = _locked(self.directory)
        self._info = read_info(self.directory)
        self.keys: list[str] = self._info["tensors"]
        self.every: int = self._info["every"]
        """One row of tensors in so many steps is written."""
        self._max_bytes = max_bytes
        for name in (STEPS, ALARMS):
            _cut_last_line(self.directory / name)
        _cut_last_array(self.directory / TENSORS)
        self.begin(start, facts or {})

    def begin(self, start: int, facts: Mapping[str, Any]) -> None:
        """Begin a session, at a step."""
        self.session = len(self._info["sessions"])
        self._info["sessions"].append({**facts, "start": start})
        self._write_info()
        mark = {"session": self.session, "start": start}
        self._append(STEPS, line_of(mark))

    def _write_info(self) -> None:
        info = {**self._info, "every": self.every}
        atomic_write_json(self.directory / RECORD, info, indent=None)

    def _append(self, name: str, data: bytes) -> None:
        with (self.directory / name).open("ab") as file:
            file.write(data)

    def index(self, keys: Sequence[str]) -> np.ndarray:
        """Return the columns of tensors in the record; new ones are added."""
        known = {key: i for i, key in enumerate(self.keys)}
        new = [key for key in keys if key not in known]
        if new:
            known |= {key: len(known) + i for i, key in enumerate(new)}
            self.keys += new
            self._write_info()
        return np.array([known[key] for key in keys], np.int64)

    def append_steps(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append steps: JSON values, ``step`` among them."""
        self._append(STEPS, b"".join(map(line_of, rows)))

    def append_alarms(self, alarms: Iterable[Mapping[str, Any]]) -> None:
        """Append alarms, or what has become of them."""
        lines = [line_of({**a, "session": self.session}) for a in alarms]
        if lines:
            self._append(ALARMS, b"".join(lines))

    def append_tensors(
        self,
        steps: Sequence[int],
        tensors: Mapping[str, np.ndarray],
        *,
        keep: bool = False,
    ) -> None:
        """Append rows: float32 ``[num_steps, num_keys]`` of each quantity.

        With ``keep`` they are float32 in the file and thinned last.
        """
        if not len(steps):
            return
        is_whole = keep or self.every == 1
        rows = np.zeros(len(steps), row_type(len(self.keys), is_whole))
        rows["step"], rows["session"] = steps, self.session
        rows["is_kept"] = keep
        for name in QUANTITIES:
            rows[name] = encoded(tensors[name], is_whole)
        self._append(TENSORS, array_bytes(rows))
        if (self.directory / TENSORS).stat().st_size > self._max_bytes:
            self._thin()

    def _thin(self) -> None:
        """Rewrite the tensors with about half of the rows, or fewer."""
        path = self.directory / TENSORS
        blocks = [block.copy() for block in arrays(path)]
        steps = np.sort(np.concatenate([block["step"] for block in blocks]))
        row_bytes = row_type(len(self.keys), True).itemsize
        fitting = max(1, self._max_bytes // 4 // row_bytes)
        latest = steps[-min(_NUM_LATEST, fitting, len(steps))]
        size, can_shrink = math.inf, True
        while size > self._max_bytes * 3 // 4 and can_shrink:
            num_kept = sum(int(block["is_kept"].sum()) for block in blocks)
            is_full = num_kept * row_bytes > self._max_bytes // 2
            if is_full or self.every > steps[-1]:
                _keep_fewer(blocks)
                can_shrink = num_kept > 0
            else:
                self.every *= 2
            parts = [thinned(block, self.every, latest) for block in blocks]
            size = sum(map(len, parts))
        with temporary_path(path) as temporary:
            temporary.write_bytes(b"".join(parts))
        self._write_info()

    def close(self) -> None:
        """Let other processes write to the record."""
        self._lock.release()


def _keep_fewer(blocks: Sequence[np.ndarray]) -> None:
    """Let the older half of the kept rows be thinned like others."""
    steps = np.concatenate([b["step"][b["is_kept"]] for b in blocks])
    middle = np.median(steps) if len(steps) else math.inf
    for block in blocks:
        block["is_kept"] &= block["step"] > middle


def _locked(directory: Path) -> FolderLock:
    try:
        return FolderLock(directory)
    except BlockingIOError:
        raise FileExistsError(
            f"the record {directory} is open in this process: call its "
            "close() first"
            if is_locked_here(directory)
            else f"another process is writing to the record {directory}: "
            "wait for it, stop it, or choose another folder"
        ) from None


def _cut_last_line(path: Path) -> None:
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def _cut_last_array(path: Path) -> None:
    ends = [end for _, end in arrays_and_ends(path)]
    if path.exists():
        os.truncate(path, ends[-1] if ends else 0)
