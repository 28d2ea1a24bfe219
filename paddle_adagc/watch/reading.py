# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read a record: NumPy and sqlite3 alone.

What a stranger wrote is data: its types are checked, nothing of it is run.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.watch.store import (
    FILE,
    FRESH_SECONDS,
    QUANTITIES,
    check_tables,
)

_OLD_FLOATS = ("NaN", "Infinity", "-Infinity")  # they once were texts
_KINDS = (
    *("finished", "exception", "signal", "disk", "rank", "replaced", "unknown"),
)
_LOCK_SECONDS = 10.0
_LARGEST = sys.float_info.max
_HAS_STEP = (
    "EXISTS (SELECT 1 FROM steps AS its WHERE its.session = later.number)"
)
_NEWEST = (
    "NOT EXISTS (SELECT 1 FROM sessions AS later "
    f"WHERE later.number > session AND later.start <= step AND {_HAS_STEP})"
)
"""Of a row: no later session supersedes its step."""


@dataclasses.dataclass(frozen=True)
class Session:
    """One process' part of a record; another begins when another clip acts."""

    number: int
    """Counts from 1."""

    facts: dict[str, Any]
    """Clip, shadow, optimizer, model."""

    start: int
    """Its first step."""

    steps: np.ndarray
    """All of its steps, int64, ascending."""

    superseded_from: int | None
    """The first step that a later session supersedes, if one does."""

    end: dict[str, Any]
    """How it ended: ``kind`` is ``"finished"``, ``"exception"``, ``"signal"``,
    ``"disk"``, ``"rank"``, ``"replaced"``, ``"running"`` or ``"unknown"``;
    ``step`` is its last update, or None; ``text`` the exception, the signal or
    the cause; ``time``; ``last_loss``: what was differentiated last, or None;
    ``dropped``: steps that the disk was too slow for; ``seconds_since`` its
    last word, where nothing else is known."""


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """A record, as arrays: the newest of each step, ascending."""

    directory: Path
    """The folder."""

    name: str
    """Name of the folder."""

    keys: list[str]
    """Names of the tensors, in the order of the columns."""

    sessions: list[Session]
    """In the order in which they began."""

    step: np.ndarray
    """Number of each step, int64 ``[num_steps]``: a Trainer's ``global_step``
    after it, 1 for the first of a loop. Numbers may be missing."""

    rows: list[dict[str, Any]]
    """All numbers of each step."""

    tensor_steps: np.ndarray
    """Steps of the rows of tensors, int64 ``[num_rows]``."""

    alarms: list[dict[str, Any]]
    """Events of the steps that count, as they were found."""

    columns: dict[str, np.ndarray]
    """Every number of a step, float64 ``[num_steps]``, NaN if it has none."""

    _contents: list[bytes]

    @property
    def end(self) -> dict[str, Any]:
        """How the newest session ended: see :attr:`Session.end`."""
        return self.sessions[-1].end if self.sessions else {"kind": "unknown"}

    def facts(self, step: float = math.inf) -> dict[str, Any]:
        """Return what is known of the session that made a step.

        Args:
            step: Default: the last one.
        """
        found = [
            s.facts
            for s in self.sessions
            if s.start <= step and (s.steps.size or step == math.inf)
        ]
        return found[-1] if found else {}

    def column(self, name: str) -> np.ndarray:
        """Return a series of numbers, one a step.

        Args:
            name: ``"loss"``, ``"learning_rate"``, ``"global_grad_norm"``, or
                another number that a step may have.

        Returns:
            float64 ``[num_steps]``; NaN where unknown.
        """
        unknown = np.full(len(self.step), math.nan)
        return self.columns.get(name, unknown)

    def tensors(
        self, quantity: str, places: slice | np.ndarray = slice(None)
    ) -> np.ndarray:
        """Return rows of one quantity.

        Args:
            quantity: ``"norm"`` (0: no gradient; Inf: one with Inf or NaN),
                ``"gamma"`` or ``"h"``.
            places: Which of :attr:`tensor_steps`; default: all.

        Returns:
            float32 ``[num_rows, num_tensors]``; NaN where unknown.
        """
        chosen = np.arange(len(self.tensor_steps))[places]
        table = np.full((len(chosen), len(self.keys)), np.nan, np.float32)
        index = QUANTITIES.index(quantity)
        for row, place in enumerate(chosen.tolist()):
            values = np.frombuffer(self._contents[place], "<f4")
            values = values.reshape(len(QUANTITIES), -1)[index]
            table[row, : len(values)] = values
        return table


def read_record(directory: str | os.PathLike[str]) -> RecordedRun:
    """Read a record, finished or still written; the training never waits.

    Args:
        directory: The folder that a :class:`.Record` or ``adagc-run`` wrote.

    Returns:
        Its steps, alarms and tensors.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged; the message names the file.

    Example:
        >>> import paddle
        >>> from paddle_adagc.watch import Record, read_record
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
        >>> record = Record("runs/b", optimizer, model)
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
        >>> record.step(loss=2.5)
        >>> record.close()
        >>> run = read_record("runs/b")
        >>> run.column("loss").tolist(), run.tensors("norm").shape
        ([2.5], (1, 2))
    """
    folder = Path(directory)
    path = folder / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no {FILE}: give the folder of a record, as "
            'Record("runs/a", ...) or adagc-run writes it'
        )
    if not path.stat().st_size and not (folder / f"{FILE}-journal").exists():
        raise ValueError(f"{path} is empty: no step has been written yet")
    with tempfile.TemporaryDirectory() as copies, _damage(path):
        copy = copy_record(folder, Path(copies))
        with closing(sqlite3.connect(copy)) as file:
            file.execute("PRAGMA trusted_schema = OFF")
            check_tables(file, path)
            return _read(file, folder)


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Name the file of an error: wrong bytes raise anything."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path} is damaged ({error!r})") from error


def copy_record(folder: Path, place: Path) -> Path:
    """Copy the file, as it is between two writes, to another folder.

    The lock of SQLite keeps its writer's thread off meanwhile. If there is
    none to be had, a killed writer has left a journal: both files are copied,
    and the journal takes effect there.
    """
    source = f"{(folder / FILE).absolute().as_uri()}?mode=ro"
    try:
        with (
            closing(
                sqlite3.connect(source, uri=True, timeout=_LOCK_SECONDS)
            ) as file,
            closing(sqlite3.connect(place / FILE)) as copy,
        ):
            file.backup(copy, sleep=0.01)
    except sqlite3.OperationalError:
        for name in (FILE, f"{FILE}-journal"):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, place / name)
    return place / FILE


def _read(file: sqlite3.Connection, folder: Path) -> RecordedRun:
    query = "SELECT key FROM tensors ORDER BY id"
    keys = [_checked(key, str) for (key,) in file.execute(query)]
    query = (
        "SELECT step, numbers, content FROM steps LEFT JOIN rows "
        f"USING (session, step) WHERE {_NEWEST} ORDER BY step"
    )
    rows: list[dict[str, Any]] = []
    tensor_steps, contents = [], []
    for step, numbers, content in file.execute(query):
        if rows and step == rows[-1]["step"]:
            raise ValueError(f"step {step} twice")
        rows.append({**_object(numbers), "step": _step(step)})
        if content is not None:
            width = 4 * len(QUANTITIES)
            number, rest = divmod(len(_checked(content, bytes)), width)
            if rest or number > len(keys):
                raise ValueError(f"a row of {len(content)} bytes")
            tensor_steps.append(step)
            contents.append(content)
    query = (
        f"SELECT step, kind, series, facts FROM alarms WHERE {_NEWEST} "
        "ORDER BY step, session"
    )
    alarms = []
    for step, kind, series, facts in file.execute(query):
        texts = {"kind": _checked(kind, str), "series": _checked(series, str)}
        alarms.append({**_object(facts), **texts, "step": _step(step)})
    return RecordedRun(
        directory=folder,
        name=folder.resolve().name,
        keys=keys,
        sessions=_sessions(file),
        step=np.array([row["step"] for row in rows], np.int64),
        rows=rows,
        tensor_steps=np.array(tensor_steps, np.int64),
        alarms=alarms,
        columns=_columns(rows),
        _contents=contents,
    )


def _sessions(file: sqlite3.Connection) -> list[Session]:
    query = (
        "SELECT number, start, facts, ending, heard, (SELECT MIN(start) FROM "
        "sessions AS later WHERE later.number > sessions.number AND "
        f"{_HAS_STEP}) "
        "FROM sessions ORDER BY number"
    )
    sessions = []
    for number, start, facts, ending, heard, later in file.execute(query):
        query = "SELECT step FROM steps WHERE session = ? ORDER BY step"
        steps = [_step(step) for (step,) in file.execute(query, [number])]
        is_superseded = later is not None and bool(steps and steps[-1] >= later)
        sessions.append(
            Session(
                number=number,
                facts=_object(facts),
                start=_step(start),
                steps=np.array(steps, np.int64),
                superseded_from=later if is_superseded else None,
                end=_ending(ending, heard, steps),
            )
        )
    return sessions


def _ending(
    text: str | None, heard: Any, steps: Sequence[int]
) -> dict[str, Any]:
    """Return how a session ended, or how long ago it said something."""
    last = steps[-1] if steps else None
    found: dict[str, Any] = {"step": last, "text": "", "last_loss": None}
    found["dropped"] = 0
    since = max(0.0, time.time() - float(_checked(heard, (int, float))))
    if text is not None:
        found |= _object(text)
        if found.get("kind") not in _KINDS:
            raise ValueError(f"an end {found.get('kind')!r:.40}")
    else:
        is_fresh = since < FRESH_SECONDS
        found["kind"] = "running" if is_fresh else "unknown"
        found |= {"time": heard, "seconds_since": since}
    return found


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for i, row in enumerate(rows):
        for name, value in row.items():
            is_huge = isinstance(value, int) and abs(value) > _LARGEST
            if isinstance(value, (int, float)) and not is_huge:
                if name not in found:
                    found[name] = np.full(len(rows), math.nan)
                found[name][i] = value
    return found


def _object(text: Any) -> dict[str, Any]:
    found = _checked(json.loads(_checked(text, str)), dict)
    return {n: float(x) if x in _OLD_FLOATS else x for n, x in found.items()}


def _step(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 2**62:
        raise ValueError(f"a step {value!r:.40}")
    return value


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a value {value!r:.40}")
    return value
