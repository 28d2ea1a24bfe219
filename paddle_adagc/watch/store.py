# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The file of a record: ``record.sqlite``, written by one thread.

NumPy and sqlite3 alone; :mod:`.reading` reads it.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.watch.reading import (
    FILE,
    FRESH_SECONDS,
    QUANTITIES,
    VERSION,
    RecordedRun,
    Session,
    check_tables,
    read_record,
)

__all__ = ["RecordedRun", "Replaced", "Session", "Store", "read_record"]

MAX_BYTES = 160 * 10**6
"""Default bound of the tensors' numbers."""

STEP_BYTES = 400
"""Bound of a step's own numbers, about."""

_TABLES = """
CREATE TABLE info (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tensors (id INTEGER PRIMARY KEY, key TEXT UNIQUE);
CREATE TABLE sessions (number INTEGER PRIMARY KEY, start INTEGER, facts TEXT,
    ending TEXT, heard REAL);
CREATE TABLE steps (session INTEGER, step INTEGER, numbers TEXT,
    PRIMARY KEY (session, step)) WITHOUT ROWID;
CREATE TABLE rows (session INTEGER, step INTEGER, is_whole INTEGER,
    content BLOB, PRIMARY KEY (session, step));
CREATE TABLE kept (session INTEGER, first INTEGER, last INTEGER,
    PRIMARY KEY (session, first)) WITHOUT ROWID;
CREATE TABLE alarms (session INTEGER, step INTEGER, kind TEXT, series TEXT,
    facts TEXT, PRIMARY KEY (session, step, kind, series)) WITHOUT ROWID;
"""
_NUM_LATEST = 512
"""Last rows that are not thinned."""

_CHUNK = 256  # rows thinned in one transaction
_IS_CALM = (
    "NOT EXISTS (SELECT 1 FROM kept WHERE kept.session = rows.session "
    "AND rows.step BETWEEN kept.first AND kept.last)"
)


class Replaced(RuntimeError):
    """A newer session has begun to write to the record."""


class Store:
    """Append a run's steps to ``directory/record.sqlite``.

    Each call is a transaction, and begins with a look at the owner's token: a
    newer writer ends an older one. There is one thread that makes and uses it.

    Args:
        directory: Made if it is missing.
        max_bytes: Bound of the tensors' numbers. When it is reached, every
            second row goes that is neither kept nor among the last 512; the
            others shrink to 16 bits a number. Kept rows take about a third.

    Raises:
        OSError, sqlite3.Error: The disk refuses.
        ValueError: The file is no record.
    """

    def __init__(
        self, directory: str | os.PathLike[str], max_bytes: int = MAX_BYTES
    ) -> None:
        self.directory, self._max_bytes = Path(directory), max_bytes
        self.directory.mkdir(parents=True, exist_ok=True)
        self._token, self.session = secrets.token_hex(8), 0
        path = self.directory / FILE
        self._file = sqlite3.connect(path, timeout=5, isolation_level=None)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self._file.close()
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise ValueError(f"{path} is damaged ({error!r})") from error
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> None:
        for pragma in (
            "journal_mode = PERSIST",
            "journal_size_limit = 65536",
            "synchronous = NORMAL",
            "trusted_schema = OFF",
        ):
            self._file.execute(f"PRAGMA {pragma}")
        with self._transaction(is_owner=True):
            if not self._file.execute("SELECT * FROM sqlite_master").fetchone():
                for statement in _TABLES.split(";")[:-1]:
                    self._file.execute(statement)
                self._set("version", VERSION)
                self._set("every", 1)
            check_tables(self._file, self.directory / FILE)
            self._set("writer", self._token)
        self.every = int(self._get("every"))
        """Away from alarms one row of tensors in so many steps is left."""
        ids = self._file.execute("SELECT key FROM tensors ORDER BY id")
        self.keys: list[str] = [key for (key,) in ids]
        self._size = self._measure()
        self._thinned = 0

    def _transaction(self, is_owner: bool = False) -> _Transaction:
        return _Transaction(self._file, None if is_owner else self._token)

    def _get(self, name: str) -> Any:
        found = self._file.execute(
            "SELECT value FROM info WHERE name = ?", [name]
        ).fetchone()
        return found and found[0]

    def _set(self, name: str, value: Any) -> None:
        self._file.execute(
            "INSERT OR REPLACE INTO info VALUES (?, ?)", [name, value]
        )

    def _measure(self) -> int:
        size = "SELECT SUM(LENGTH(content)) FROM rows"
        return int(self._file.execute(size).fetchone()[0] or 0)

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
                [ending, self.session, now - FRESH_SECONDS],
            )
            cursor = self._file.execute(
                "INSERT INTO sessions (start, facts, heard) VALUES (?, ?, ?)",
                [start, to_json(facts), now],
            )
        self.session = cursor.lastrowid or 0
        self._thinned = start
        return self.session

    def append(
        self,
        rows: Sequence[Mapping[str, Any]],
        keys: Sequence[str] = (),
        tensors: Mapping[str, np.ndarray] | None = None,
        alarms: Iterable[Mapping[str, Any]] = (),
        kept: Iterable[tuple[int, int]] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Append steps.

        Args:
            rows: JSON values and floats, ``step`` among them.
            keys: Names of the tensors.
            tensors: Norm, gamma and h, float32 ``[num_steps, num_keys]``. A
                step whose h is NaN everywhere has no row.
            alarms: Values with ``step``, ``kind`` and ``series``.
            kept: First and last steps whose tensors are thinned last.
            facts: Those of the session, if they have changed.
        """
        with self._transaction():
            self._file.executemany(
                "INSERT OR REPLACE INTO steps VALUES (?, ?, ?)",
                [(self.session, r["step"], to_json(r)) for r in rows],
            )
            if tensors is not None:
                self._append_tensors(rows, keys, tensors)
            self._file.executemany(
                "INSERT OR REPLACE INTO alarms VALUES (?, ?, ?, ?, ?)",
                [
                    (
                        self.session,
                        a["step"],
                        a["kind"],
                        a["series"],
                        to_json(a),
                    )
                    for a in alarms
                ],
            )
            self._file.executemany(
                "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)",
                [(self.session, *span) for span in kept],
            )
            if facts is not None:
                self._file.execute(
                    "UPDATE sessions SET facts = ? WHERE number = ?",
                    [to_json(facts), self.session],
                )
            self._beat()
        if self._size > self._max_bytes:
            self._thin()
        elif self.every > 1:
            self._thin_until(self._latest())

    def _append_tensors(
        self,
        rows: Sequence[Mapping[str, Any]],
        keys: Sequence[str],
        tensors: Mapping[str, np.ndarray],
    ) -> None:
        known = {key: i for i, key in enumerate(self.keys)}
        new = [key for key in keys if key not in known]
        known |= {key: len(known) + i for i, key in enumerate(new)}
        self._file.executemany(
            "INSERT INTO tensors (id, key) VALUES (?, ?)",
            [(known[key], key) for key in new],
        )
        shape = len(rows), len(QUANTITIES), len(known)
        table = np.full(shape, np.nan, "<f4")
        places = [known[key] for key in keys]
        for i, name in enumerate(QUANTITIES):
            table[:, i, places] = tensors[name]
        seen = np.flatnonzero(~np.isnan(tensors["h"]).all(1))
        self._file.executemany(
            "INSERT OR REPLACE INTO rows VALUES (?, ?, 1, ?)",
            [
                (self.session, rows[i]["step"], table[i].tobytes())
                for i in seen.tolist()
            ],
        )
        self.keys += new
        self._size += len(seen) * table[:1].nbytes

    def _beat(self) -> None:
        self._file.execute(
            "UPDATE sessions SET heard = ? WHERE number = ?",
            [time.time(), self.session],
        )

    def beat(self) -> None:
        """Say that the process is alive."""
        with self._transaction():
            self._beat()

    def end(self, ending: Mapping[str, Any] | None) -> None:
        """Say how the session ended; None: it goes on after all."""
        with self._transaction():
            self._beat()
            self._file.execute(
                "UPDATE sessions SET ending = ? WHERE number = ?",
                [None if ending is None else to_json(ending), self.session],
            )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    # ---- thinning -----------------------------------------------------------

    def _latest(self) -> int:
        """Return the first of the session's last rows."""
        row_bytes = 4 * len(QUANTITIES) * max(len(self.keys), 1)
        fitting = max(1, self._max_bytes // 8 // row_bytes)
        found = self._file.execute(
            "SELECT step FROM rows WHERE session = ? ORDER BY step DESC "
            "LIMIT 1 OFFSET ?",
            [self.session, min(_NUM_LATEST, fitting) - 1],
        ).fetchone()
        return found[0] if found else 0

    def _thin(self) -> None:
        """Leave out every second row that is not kept, until it fits."""
        latest = self._latest()
        (last,) = self._file.execute("SELECT MAX(step) FROM rows").fetchone()
        while self._size > self._max_bytes * 3 // 4:
            if self.every <= last and not self._is_full_of_kept():
                self.every *= 2
                with self._transaction():
                    self._set("every", self.every)
            elif not self._keep_fewer():
                break
            self._thinned = 0
            self._thin_until(latest)
            self._size = self._measure()

    def _thin_until(self, latest: int) -> None:
        """Thin the rows before ``latest``, of all sessions if none were."""
        where = f"step >= ? AND step < ? AND {_IS_CALM}"
        if self._thinned:
            where += f" AND session = {int(self.session)}"
        span = [self._thinned, latest]
        gone = f"SELECT rowid FROM rows WHERE {where} AND step % ? != 0"
        found = self._file.execute(gone, [*span, self.every]).fetchall()
        for i in range(0, len(found), _CHUNK):
            with self._transaction():
                self._file.executemany(
                    "DELETE FROM rows WHERE rowid = ?", found[i : i + _CHUNK]
                )
        whole = f"SELECT rowid FROM rows WHERE {where} AND is_whole"
        found = self._file.execute(whole, span).fetchall()
        for i in range(0, len(found), _CHUNK):
            with self._transaction():
                for row in found[i : i + _CHUNK]:
                    self._shrink(row)
        self._size = self._measure() if found else self._size
        self._thinned = max(self._thinned, latest)

    def _shrink(self, row: tuple[int]) -> None:
        """Round a row's float32 to their upper 16 bits."""
        query = "SELECT content FROM rows WHERE rowid = ?"
        (content,) = self._file.execute(query, row).fetchone()
        values = np.frombuffer(content, "<f4")
        bits = values.view("<u4")
        rounded = (bits.astype(np.uint64) + 0x8000) >> 16
        # Inf and NaN stay as they are.
        small = np.where(np.isfinite(values), rounded, bits >> 16)
        self._file.execute(
            "UPDATE rows SET content = ?, is_whole = 0 WHERE rowid = ?",
            [small.astype("<u2").tobytes(), *row],
        )

    def _is_full_of_kept(self) -> bool:
        kept = (
            "SELECT SUM(LENGTH(content)) FROM rows "
            f"WHERE is_whole AND NOT ({_IS_CALM})"
        )
        size = self._file.execute(kept).fetchone()[0] or 0
        return bool(size > self._max_bytes // 3)

    def _keep_fewer(self) -> bool:
        """Keep the newer half of what is kept; return whether there was any."""
        query = "SELECT session, first FROM kept ORDER BY session, first"
        spans = self._file.execute(query).fetchall()
        with self._transaction():
            self._file.executemany(
                "DELETE FROM kept WHERE session = ? AND first = ?",
                spans[: (len(spans) + 1) // 2],
            )
        return bool(spans)


class _Transaction:
    """All or nothing; only of the writer whose token the file holds."""

    def __init__(self, file: sqlite3.Connection, token: str | None) -> None:
        self._file, self._token = file, token

    def __enter__(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")
        if self._token is None:
            return
        query = "SELECT value FROM info WHERE name = 'writer'"
        if self._file.execute(query).fetchone() != (self._token,):
            self._file.execute("ROLLBACK")
            raise Replaced("a newer run writes to the record")

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            try:
                self._file.execute("COMMIT")
                return
            except sqlite3.Error:
                self._roll_back()
                raise
        self._roll_back()

    def _roll_back(self) -> None:
        if self._file.in_transaction:
            self._file.execute("ROLLBACK")


def to_json(value: Any) -> str:
    """Return strict JSON: NaN and Infinity become their names, as text."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        plain = _named(value)
        return json.dumps(plain, separators=(",", ":"), allow_nan=False)


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _named(x) for name, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [*map(_named, value)]
    return value
