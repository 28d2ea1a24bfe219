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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

FILE = "record.sqlite"
VERSION = 1
QUANTITIES = ("norm", "gamma", "h")
FRESH_SECONDS = 15.0
"""A process that has said something so lately is taken to be alive."""

_JOURNAL = f"{FILE}-journal"
_FLOATS = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}
_COLUMNS = {
    "info": "name value",
    "tensors": "id key",
    "sessions": "number start facts ending heard",
    "steps": "session step numbers",
    "rows": "session step is_whole content",
    "kept": "session first last",
    "alarms": "session step kind series facts",
}
_KINDS = (
    *("finished", "exception", "signal", "disk", "rank", "replaced"),
    *("running", "unknown"),
)
_TRIES, _PAUSE = 10, 0.05


@dataclasses.dataclass(frozen=True)
class Session:
    """One process' part of a record; another begins when another clip acts."""

    number: int
    """Counts from 1."""

    facts: dict[str, Any]
    """Time, clip, shadow, optimizer, model, versions."""

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

    _content: list[tuple[bytes, bool]]

    @property
    def end(self) -> dict[str, Any]:
        """How the newest session ended: see :attr:`Session.end`."""
        return self.sessions[-1].end if self.sessions else {"kind": "unknown"}

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
            content, is_whole = self._content[place]
            values = np.frombuffer(content, "<f4" if is_whole else "<u2")
            values = values.reshape(len(QUANTITIES), -1)[index]
            if not is_whole:
                values = (values.astype("<u4") << 16).view("<f4")
            table[row, : len(values)] = values
        return table


def read_record(directory: str | os.PathLike[str]) -> RecordedRun:
    """Read a record, finished or still written; its writer never waits.

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
        raise FileNotFoundError(_what_is_missing(folder))
    with tempfile.TemporaryDirectory() as copies, _damage(path):
        copy = _copy(folder, Path(copies))
        with closing(sqlite3.connect(copy)) as file:
            file.execute("PRAGMA trusted_schema = OFF")
            check_tables(file, path)
            return _read(file, folder)


def folders_beside(directory: str | os.PathLike[str]) -> list[Path]:
    """Return ``directory`` and its like, ``directory-2``, that hold records.

    In the order in which they were begun.
    """
    first = Path(directory)
    found = [(1, first)] if (first / FILE).is_file() else []
    for path in first.parent.glob(f"{glob_escaped(first.name)}-*"):
        number = path.name[len(first.name) + 1 :]
        is_number = number.isascii() and number.isdigit() and len(number) < 9
        if is_number and (path / FILE).is_file():
            found.append((int(number), path))
    return [path for _, path in sorted(found)]


def glob_escaped(name: str) -> str:
    """Return a name in which a glob's letters stand for themselves."""
    return "".join(f"[{x}]" if x in "*?[" else x for x in name)


def _what_is_missing(folder: Path) -> str:
    found = sorted(
        {*folder.glob(f"*/{FILE}"), *folder.glob(f"*/record/{FILE}")}
    )
    names = ", ".join(str(path.parent) for path in found[:5])
    return (
        f"{folder} holds no {FILE}: give the folder of a record, as "
        'Record("runs/a", ...) or adagc-run writes it'
        + (f"; there are {names}" if names else "")
    )


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


def _copy(folder: Path, place: Path) -> Path:
    """Copy the file and its journal as they are between two writes.

    A writer that never rests is made to: it waits for SQLite's lock.
    """
    for _ in range(_TRIES):
        before = _state(folder)
        for name in (FILE, _JOURNAL):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, place / name)
        if _state(folder) == before:
            return place / FILE
        time.sleep(_PAUSE)
    whole = place / f"whole-{FILE}"
    source = f"{(folder / FILE).absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(source, uri=True)) as file,
        closing(sqlite3.connect(whole)) as copy,
    ):
        file.backup(copy)
    return whole


def _state(folder: Path) -> list[Any]:
    """Return what a write would change; the header counts them."""
    found: list[Any] = []
    for name, length in ((FILE, 100), (_JOURNAL, 28)):
        try:
            with (folder / name).open("rb") as file:
                status = os.fstat(file.fileno())
                found += [status.st_size, status.st_mtime_ns, file.read(length)]
        except FileNotFoundError:
            found.append(None)
    return found


def check_tables(file: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that has other tables, or views and triggers.

    Raises:
        ValueError: It is no record, or of another version.
    """
    things = file.execute("SELECT type, name FROM sqlite_master").fetchall()
    tables = {name for kind, name in things if kind == "table"}
    kinds = {kind for kind, _ in things} - {"table", "index"}
    if kinds or tables != _COLUMNS.keys():
        raise ValueError(f"{path} is no record: it has other tables")
    for name, columns in _COLUMNS.items():
        found = file.execute(f"SELECT name FROM pragma_table_xinfo('{name}')")
        if " ".join(column for (column,) in found) != columns:
            raise ValueError(f"{path} is no record: {name} has other columns")
    query = "SELECT value FROM info WHERE name = 'version'"
    version = file.execute(query).fetchone()
    if version != (VERSION,):
        raise ValueError(f"{path} has version {version!r:.40}, not {VERSION}")


def _read(file: sqlite3.Connection, folder: Path) -> RecordedRun:
    keys = [
        _checked(key, str)
        for (key,) in file.execute("SELECT key FROM tensors ORDER BY id")
    ]
    sessions = _sessions(file)
    is_valid = _validity(sessions)
    steps: dict[int, dict[str, Any]] = {}
    query = "SELECT session, step, numbers FROM steps ORDER BY session"
    for session, step, text in file.execute(query):
        if is_valid(session, _number(step)):
            steps[step] = {**_object(text), "step": step}
    ordered = [steps[step] for step in sorted(steps)]
    tensors: dict[int, tuple[bytes, bool]] = {}
    query = "SELECT session, step, is_whole, content FROM rows ORDER BY session"
    for session, step, is_whole, content in file.execute(query):
        width = len(QUANTITIES) * (4 if is_whole else 2)
        number, rest = divmod(len(_checked(content, bytes)), width)
        if rest or number > len(keys):
            raise ValueError(f"a row of {len(content)} bytes")
        if is_valid(session, _number(step)):
            tensors[step] = content, bool(is_whole)
    tensor_steps = sorted(tensors)
    return RecordedRun(
        directory=folder,
        name=folder.resolve().name,
        keys=keys,
        sessions=sessions,
        step=np.array([*sorted(steps)], np.int64),
        rows=ordered,
        tensor_steps=np.array(tensor_steps, np.int64),
        alarms=_alarms(file, is_valid),
        columns=_columns(ordered),
        _content=[tensors[step] for step in tensor_steps],
    )


def _sessions(file: sqlite3.Connection) -> list[Session]:
    query = (
        "SELECT number, start, facts, ending, heard FROM sessions "
        "ORDER BY number"
    )
    found = file.execute(query).fetchall()
    starts = [_number(start) for _, start, *_ in found]
    sessions = []
    for i, (number, start, facts, ending, heard) in enumerate(found):
        query = "SELECT step FROM steps WHERE session = ? ORDER BY step"
        steps = [_number(x) for (x,) in file.execute(query, [number])]
        later = min(starts[i + 1 :], default=None)
        is_superseded = later is not None and bool(steps and steps[-1] >= later)
        sessions.append(
            Session(
                number=number,
                facts=_object(facts),
                start=start,
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
    if found.get("kind") in (None, "running"):
        is_fresh = since < FRESH_SECONDS
        found["kind"] = "running" if is_fresh else "unknown"
        found |= {"time": heard, "seconds_since": since}
    return found


def _validity(sessions: Sequence[Session]) -> Callable[[int, int], bool]:
    """Return whether a session's word about a step still counts."""
    ends: dict[int, float] = {}
    end = math.inf
    for session in reversed(sessions):
        ends[session.number] = end
        end = min(end, session.start)
    return lambda number, step: step < ends[number]


def _alarms(
    file: sqlite3.Connection, is_valid: Callable[[int, int], bool]
) -> list[dict[str, Any]]:
    query = (
        "SELECT session, step, kind, series, facts FROM alarms "
        "ORDER BY step, session"
    )
    found = []
    for session, step, kind, series, facts in file.execute(query):
        texts = {"kind": _checked(kind, str), "series": _checked(series, str)}
        if is_valid(session, _number(step)):
            found.append({**_object(facts), **texts, "step": step})
    return found


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for i, row in enumerate(rows):
        for name, value in row.items():
            if _is_number(value):
                if name not in found:
                    found[name] = np.full(len(rows), math.nan)
                found[name][i] = value
    return found


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return isinstance(value, float)


def _object(text: Any) -> dict[str, Any]:
    """Parse an object; the names of NaN and Infinity become numbers."""
    found = json.loads(_checked(text, str), parse_constant=_refuse)
    return {
        name: _FLOATS.get(value, value) if isinstance(value, str) else value
        for name, value in _checked(found, dict).items()
    }


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"a step {value!r:.40}")
    return value


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a value {value!r:.40}")
    return value
