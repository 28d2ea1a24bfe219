# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The file of a record: ``record.sqlite``, written by one thread.

NumPy and sqlite3 alone; :mod:`.reading` reads it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.watch.reading import RecordedRun, read_record
from paddle_adagc.watch.tables import (
    FILE,
    FRESH_SECONDS,
    QUANTITIES,
    TABLES,
    VERSION,
    check_tables,
)

__all__ = ["RecordedRun", "Replaced", "Store", "read_record"]

MAX_BYTES = 160 * 10**6
"""Default bound of the tensors' numbers."""


_SETTINGS = """
PRAGMA journal_mode = PERSIST;
PRAGMA journal_size_limit = 65536;
PRAGMA synchronous = NORMAL;
PRAGMA trusted_schema = OFF;
"""
_LOCK_SECONDS = 30.0  # a reader's copy takes less
_NUM_LATEST = 512
"""Last rows that are not thinned."""

_IS_KEPT = (
    "EXISTS (SELECT 1 FROM kept WHERE kept.session = rows.session "
    "AND rows.step BETWEEN kept.first AND kept.last)"
)


_LAST_STEP = """
SELECT MAX(start - 1, IFNULL(
    (SELECT MAX(step) FROM steps WHERE session = number), 0))
FROM sessions ORDER BY number DESC LIMIT 1
"""


class Replaced(RuntimeError):
    """A newer session has begun to write to the record."""


class Store:
    """Append a run's steps to ``directory/record.sqlite``.

    Each call is a transaction, and begins with a look at the owner's token: a
    newer writer ends an older one. There is one thread that makes and uses it.

    Args:
        directory: Made if it is missing.
        max_bytes: Bound of the tensors' numbers. When it is reached, rows go
            that are neither kept nor among the last 512: of the others one in
            2, 4, 8, ... steps is left, until a quarter is free. Kept rows take
            a third at most; the oldest go first.

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
                for statement in TABLES.split(";")[:-1]:
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
        kept: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Append steps.

        Args:
            rows: JSON values and floats, ``step`` among them.
            keys: Names of the tensors.
            tensors: Norm, gamma and h, float32 ``[num_steps, num_keys]``. A
                step whose h is NaN everywhere has no row.
            alarms: Values with ``step``, ``kind`` and ``series``.
            kept: First and last steps whose tensors are thinned last.
        """
        all_keys, size = self._keys, self._size
        with self._transaction():
            self._insert("steps", [(r["step"], to_json(r)) for r in rows])
            if tensors is not None:
                all_keys = self._add_keys(keys)
                size += self._append_tensors(rows, all_keys, keys, tensors)
            self._insert(
                "alarms",
                [
                    (a["step"], a["kind"], a["series"], to_json(a))
                    for a in alarms
                ],
            )
            self._insert("kept", kept)
            self._change(heard=time.time())
        self._keys, self._size = all_keys, size  # it was not rolled back
        if self._size > self._max_bytes:
            self._thin(rows[-1]["step"])

    def _insert(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert rows of this session."""
        for row in rows:
            marks = ", ?" * len(row)
            query = f"INSERT OR REPLACE INTO {table} VALUES (?{marks})"
            self._file.execute(query, [self._session, *row])

    def _add_keys(self, keys: Sequence[str]) -> list[str]:
        """Add names of new tensors; return all."""
        known = {*self._keys}
        found = [*self._keys, *(key for key in keys if key not in known)]
        self._file.executemany(
            "INSERT INTO tensors (id, key) VALUES (?, ?)",
            [(i, found[i]) for i in range(len(known), len(found))],
        )
        return found

    def _append_tensors(
        self,
        rows: Sequence[Mapping[str, Any]],
        all_keys: Sequence[str],
        keys: Sequence[str],
        tensors: Mapping[str, np.ndarray],
    ) -> int:
        """Append the tensors' numbers; return their bytes."""
        place = {key: i for i, key in enumerate(all_keys)}
        shape = len(rows), len(QUANTITIES), len(all_keys)
        table = np.full(shape, np.nan, "<f4")
        for i, name in enumerate(QUANTITIES):
            table[:, i, [place[key] for key in keys]] = tensors[name]
        seen = np.flatnonzero(~np.isnan(tensors["h"]).all(1)).tolist()
        self._insert(
            "rows", [(rows[i]["step"], 1, table[i].tobytes()) for i in seen]
        )
        return len(seen) * table[:1].nbytes

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

    # ---- thinning -----------------------------------------------------------

    def _num_bytes(self, where: str = "1") -> int:
        query = f"SELECT SUM(LENGTH(content)) FROM rows WHERE {where}"
        return int(self._file.execute(query).fetchone()[0] or 0)

    def _thin(self, last: int) -> None:
        """Delete rows until a quarter of the bound is free."""
        row_bytes = 4 * len(QUANTITIES) * max(len(self._keys), 1)
        latest = last - min(_NUM_LATEST, self._max_bytes // 8 // row_bytes)
        (longest,) = self._file.execute("SELECT MAX(step) FROM rows").fetchone()
        every = 1
        while self._size > self._max_bytes * 3 // 4 and every <= longest:
            with self._transaction():
                if self._num_bytes(_IS_KEPT) > self._max_bytes // 3:
                    self._keep_fewer()
                else:
                    every *= 2
                self._file.execute(
                    "DELETE FROM rows WHERE NOT (session = ? AND step > ?) "
                    f"AND step % ? AND NOT {_IS_KEPT}",
                    [self._session, latest, every],
                )
            self._size = self._num_bytes()

    def _keep_fewer(self) -> None:
        """Keep the newer half of what is kept."""
        query = "SELECT session, first FROM kept ORDER BY session, first"
        spans = self._file.execute(query).fetchall()
        self._file.executemany(
            "DELETE FROM kept WHERE session = ? AND first = ?",
            spans[: (len(spans) + 1) // 2],
        )


def last_step(directory: str | os.PathLike[str]) -> int:
    """Return the last step of a record that counts; 0: there is none.

    It reads that alone, and may be asked while the training writes.
    """
    path = (Path(directory) / FILE).absolute()
    try:
        source = f"{path.as_uri()}?mode=rw"
        with contextlib.closing(sqlite3.connect(source, uri=True)) as file:
            found = file.execute(_LAST_STEP).fetchone()
    except sqlite3.DatabaseError:  # none yet, or no record
        return 0
    return int(found[0]) if found else 0


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
