# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The file of a record: ``record.sqlite``, written by one thread.

NumPy and sqlite3 alone; :mod:`.reading` reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

FILE = "record.sqlite"
VERSION = 2
QUANTITIES = ("norm", "gamma", "h")
"""Of each tensor, in this order in a row's ``content``."""

FRESH_SECONDS = 15.0
"""A process that has said something so lately is taken to be alive."""

MAX_BYTES = 160 * 10**6
"""Default bound of the tensors' numbers."""

_TABLES = """
CREATE TABLE info (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tensors (id INTEGER PRIMARY KEY, key TEXT UNIQUE);
CREATE TABLE sessions (number INTEGER PRIMARY KEY, start INTEGER, facts TEXT,
    ending TEXT, heard REAL);
CREATE TABLE steps (session INTEGER, step INTEGER, numbers TEXT,
    PRIMARY KEY (session, step)) WITHOUT ROWID;
CREATE TABLE rows (session INTEGER, step INTEGER, content BLOB,
    PRIMARY KEY (session, step));
CREATE TABLE alarms (session INTEGER, step INTEGER, kind TEXT, series TEXT,
    facts TEXT, PRIMARY KEY (session, step, kind, series)) WITHOUT ROWID;
"""
"""``content`` is float32 ``[num_quantities, num_tensors]``."""

_SETTINGS = """
PRAGMA journal_mode = PERSIST;
PRAGMA journal_size_limit = 65536;
PRAGMA synchronous = NORMAL;
PRAGMA trusted_schema = OFF;
"""
_LOCK_SECONDS = 30.0  # a reader's copy takes less
_NUM_LATEST = 512
"""Last rows that are not thinned."""

_NEAR = 64
"""Steps before and after an alarm that are thinned last."""

_IS_NEAR = (
    "EXISTS (SELECT 1 FROM alarms WHERE alarms.session = rows.session "
    "AND alarms.step >= ? "
    f"AND rows.step BETWEEN alarms.step - {_NEAR} AND alarms.step + {_NEAR})"
)


class Replaced(RuntimeError):
    """A newer session has begun to write to the record."""


class Store:
    """Append a run's steps to ``directory/record.sqlite``.

    Each call is a transaction, and begins with a look at the owner's token: a
    newer writer ends an older one. There is one thread that makes and uses it.

    Args:
        directory: Made if it is missing.
        max_bytes: Bound of the tensors' numbers. When it is reached, those of
            one step in 2, 4, 8, ... are left, until a quarter is free; but the
            last 512 steps, and those near the newest alarms, keep theirs.

    Raises:
        OSError, sqlite3.Error: The disk refuses.
        ValueError: The file is no record.
    """

    def __init__(
        self, directory: str | os.PathLike[str], max_bytes: int = MAX_BYTES
    ) -> None:
        self._max_bytes = max_bytes
        self._token, self._session = secrets.token_hex(8), 0
        path = Path(directory) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(
            path, timeout=_LOCK_SECONDS, isolation_level=None
        )
        try:
            self._open(path)
        except sqlite3.DatabaseError as error:
            self._file.close()
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise ValueError(f"{path} is damaged ({error!r})") from error
        except BaseException:
            self._file.close()
            raise
        ids = self._file.execute("SELECT key FROM tensors ORDER BY id")
        self._keys: list[str] = [key for (key,) in ids]
        self._size = self._num_bytes()

    def _open(self, path: Path) -> None:
        """Make the tables of a new file, and become its writer."""
        self._file.executescript(_SETTINGS)
        with self._transaction(is_owner=True):
            if not self._file.execute("SELECT * FROM sqlite_master").fetchone():
                for statement in _TABLES.split(";")[:-1]:
                    self._file.execute(statement)
                self._set("version", VERSION)
            check_tables(self._file, path)
            self._set("writer", self._token)

    def _set(self, name: str, value: Any) -> None:
        query = "INSERT OR REPLACE INTO info VALUES (?, ?)"
        self._file.execute(query, [name, value])

    @contextlib.contextmanager
    def _transaction(self, is_owner: bool = False) -> Iterator[None]:
        """All or nothing; only of the writer whose token the file holds."""
        self._file.execute("BEGIN IMMEDIATE")
        try:
            query = "SELECT value FROM info WHERE name = 'writer'"
            if not is_owner and self._file.execute(query).fetchone() != (
                self._token,
            ):
                raise Replaced("a newer run writes to the record")
            yield
            self._file.execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise

    def begin(self, start: int, facts: Mapping[str, Any]) -> int:
        """Begin a session whose first step is ``start``; return its number.

        It supersedes what earlier ones have recorded from there on. One that
        still runs is told that it is replaced.
        """
        now = time.time()
        ending = to_json({"kind": "replaced", "time": now})
        with self._transaction():
            self._file.execute(
                "UPDATE sessions SET ending = ? WHERE ending IS NULL AND "
                "(number = ? OR heard > ?)",
                [ending, self._session, now - FRESH_SECONDS],
            )
            cursor = self._file.execute(
                "INSERT INTO sessions (start, facts, heard) VALUES (?, ?, ?)",
                [start, to_json(facts), now],
            )
        self._session = cursor.lastrowid or 0
        return self._session

    def append(
        self,
        rows: Sequence[Mapping[str, Any]],
        keys: Sequence[str] = (),
        tensors: Mapping[str, np.ndarray] | None = None,
        alarms: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Append steps.

        Args:
            rows: JSON values and floats, ``step`` among them.
            keys: Names of the tensors.
            tensors: Norm, gamma and h, float32 ``[num_steps, num_keys]``. A
                step whose h is NaN everywhere has no row.
            alarms: Values with ``step``, ``kind`` and ``series``.
        """
        all_keys = [*dict.fromkeys([*self._keys, *keys])]
        known: dict[int, bytes] = {}
        if tensors is not None:
            known = _contents(all_keys, keys, tensors)
        contents = [(rows[i]["step"], content) for i, content in known.items()]
        with self._transaction():
            self._file.executemany(
                "INSERT OR IGNORE INTO tensors (id, key) VALUES (?, ?)",
                enumerate(all_keys),
            )
            self._insert("steps", [(r["step"], to_json(r)) for r in rows])
            self._insert("rows", contents)
            self._insert(
                "alarms",
                [
                    (a["step"], a["kind"], a["series"], to_json(a))
                    for a in alarms
                ],
            )
            self._change(heard=time.time())
        self._keys = all_keys  # it was not rolled back
        self._size += sum(map(len, known.values()))
        if self._size > self._max_bytes:
            self._thin(rows[-1]["step"])

    def _insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert the rows that this session does not have yet."""
        for row in rows:
            marks = ", ?" * len(row)
            query = f"INSERT OR IGNORE INTO {table} VALUES (?{marks})"
            self._file.execute(query, [self._session, *row])

    def _change(self, **values: Any) -> None:
        """Change columns of the session."""
        names = ", ".join(f"{name} = ?" for name in values)
        query = f"UPDATE sessions SET {names} WHERE number = ?"
        self._file.execute(query, [*values.values(), self._session])

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Change the facts of the session."""
        with self._transaction():
            self._change(facts=to_json(facts))

    def beat(self) -> None:
        """Say that the process is alive."""
        with self._transaction():
            self._change(heard=time.time())

    def end(self, ending: Mapping[str, Any] | None) -> None:
        """Say how the session ended; None: it goes on after all."""
        text = None if ending is None else to_json(ending)
        with self._transaction():
            self._change(heard=time.time(), ending=text)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _thin(self, last: int) -> None:
        """Forget tensors' numbers until a quarter of the bound is free."""
        row_bytes = 4 * len(QUANTITIES) * max(len(self._keys), 1)
        latest = last - min(_NUM_LATEST, self._max_bytes // 8 // row_bytes)
        num_alarms = self._max_bytes // 3 // (2 * _NEAR * row_bytes)
        query = (
            "SELECT DISTINCT step FROM alarms "
            "ORDER BY step DESC LIMIT 1 OFFSET ?"
        )
        oldest = self._file.execute(query, [num_alarms]).fetchone() or (0,)
        every = 1
        while self._size > self._max_bytes * 3 // 4 and every <= 2 * last:
            every *= 2
            with self._transaction():
                self._file.execute(
                    "DELETE FROM rows WHERE NOT (session = ? AND step > ?) "
                    f"AND step % ? AND NOT {_IS_NEAR}",
                    [self._session, latest, every, *oldest],
                )
            self._size = self._num_bytes()

    def _num_bytes(self) -> int:
        query = "SELECT SUM(LENGTH(content)) FROM rows"
        return int(self._file.execute(query).fetchone()[0] or 0)


def _contents(
    all_keys: Sequence[str],
    keys: Sequence[str],
    tensors: Mapping[str, np.ndarray],
) -> dict[int, bytes]:
    """Return the numbers of all tensors by the place of their step.

    A step whose h is NaN everywhere has none.
    """
    place = {key: i for i, key in enumerate(all_keys)}
    is_known = ~np.isnan(tensors["h"]).all(1)
    shape = len(is_known), len(QUANTITIES), len(all_keys)
    table = np.full(shape, np.nan, "<f4")
    for i, name in enumerate(QUANTITIES):
        table[:, i, [place[key] for key in keys]] = tensors[name]
    return {i: table[i].tobytes() for i in np.flatnonzero(is_known).tolist()}


def check_tables(file: sqlite3.Connection, path: Path) -> None:
    """Refuse a file that has other tables, or views and triggers.

    Raises:
        ValueError: It is no record, or of another version.
    """
    query = "SELECT type, name, sql FROM sqlite_master"
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(_TABLES)
        expected = {*empty.execute(query)}
    if {*file.execute(query)} != expected:
        raise ValueError(f"{path} is no record: it has other tables")
    query = "SELECT value FROM info WHERE name = 'version'"
    version = file.execute(query).fetchone()
    if version != (VERSION,):
        raise ValueError(f"{path} has version {version!r:.40}, not {VERSION}")


def to_json(value: Any) -> str:
    """Return JSON with Python's names of NaN and Infinity."""
    return json.dumps(value, separators=(",", ":"))
