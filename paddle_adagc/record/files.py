# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The files of a record: appended to, and read as arrays. NumPy alone.

A record is a folder:

- ``record.json``: names of the tensors, and a list of sessions, one for each
  process that has written: first step, clip, shadow, versions;
- ``steps.jsonl``: a JSON object per optimizer step;
- ``alarms.jsonl``: a JSON object per alarm; a later line of the same series and
  start replaces an earlier one;
- ``tensors.npy``: arrays as ``numpy.save`` writes them, one after the other.
  Each has a row per step: ``step``, ``session``, ``is_kept``, and norm, gamma
  and h of every tensor. A norm of 0 is that of no gradient, Inf of one with Inf
  or NaN; all three are NaN where nothing was measured. Whole rows are float32,
  others the upper 16 bits of it;
- ``rankR.sessionN.npz``: what rank R > 0 had measured since the last gather
  when it stopped: ``steps``, ``keys`` and the tensors' numbers.

A process that is killed leaves at most one incomplete line or array at an end,
which readers ignore and the next session cuts off. A session that starts at a
step supersedes what earlier ones have written from that step on.
"""

from __future__ import annotations

import dataclasses
import fcntl
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.files import (
    atomic_write,
    atomic_write_json,
    make_directory,
    temporary_path,
)

RECORD, STEPS, ALARMS = "record.json", "steps.jsonl", "alarms.jsonl"
TENSORS = "tensors.npy"
QUANTITIES = ("norm", "gamma", "h")

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
            then on only one row in so many steps is written.

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
        self._lock = _lock(self.directory)
        self._info = _read_info(self.directory)
        self.keys: list[str] = self._info["tensors"]
        self.session = len(self._info["sessions"])
        self.every: int = self._info["every"]
        """One row of tensors in so many steps is written."""
        self._max_bytes = max_bytes
        for name in (STEPS, ALARMS):
            _cut_last_line(self.directory / name)
        _cut_last_array(self.directory / TENSORS)
        self._info["sessions"].append({**(facts or {}), "start": start})
        self._write_info()
        mark = {"session": self.session, "start": start}
        self._append(STEPS, _line(mark))

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
        self._append(STEPS, b"".join(map(_line, rows)))

    def append_alarms(self, alarms: Iterable[Mapping[str, Any]]) -> None:
        """Append alarms, or what has become of them."""
        lines = [_line({**a, "session": self.session}) for a in alarms]
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

        With ``keep`` they are float32 in the file and never thinned.
        """
        if not len(steps):
            return
        is_whole = keep or self.every == 1
        rows = np.zeros(len(steps), _row_type(len(self.keys), is_whole))
        rows["step"], rows["session"] = steps, self.session
        rows["is_kept"] = keep
        for name in QUANTITIES:
            rows[name] = _encoded(tensors[name], is_whole)
        self._append(TENSORS, _array_bytes(rows))
        if (self.directory / TENSORS).stat().st_size > self._max_bytes:
            self._thin()

    def _thin(self) -> None:
        """Rewrite the tensors with about half of the rows, or fewer."""
        path = self.directory / TENSORS
        blocks = [*_arrays(path)]
        steps = np.sort(np.concatenate([block["step"] for block in blocks]))
        row_bytes = _row_type(len(self.keys), True).itemsize
        fitting = max(1, self._max_bytes // 4 // row_bytes)
        latest = steps[-min(_NUM_LATEST, fitting, len(steps))]
        size = math.inf
        while size > self._max_bytes * 3 // 4:
            if self.every > steps[-1]:  # the kept rows alone are too many
                _keep_fewer(blocks)
            self.every *= 2
            parts = [_thinned(block, self.every, latest) for block in blocks]
            size = sum(map(len, parts))
        with temporary_path(path) as temporary:
            temporary.write_bytes(b"".join(parts))
        self._write_info()

    def close(self) -> None:
        """Let other processes write to the record."""
        os.close(self._lock)


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """A record, as arrays; the steps ascend and each is there once."""

    name: str
    """Name of the folder."""

    directory: Path
    """The folder."""

    keys: list[str]
    """Names of the tensors, in the order of the columns."""

    sessions: list[dict[str, Any]]
    """Facts about each process that has written: first step, clip, versions."""

    every: int
    """Away from events one row of tensors in so many steps is left."""

    columns: dict[str, np.ndarray]
    """Every number of a step, float64 ``[num_steps]``, NaN if it has none;
    ``step`` is int64."""

    rows: list[dict[str, Any]]
    """The steps as they were written."""

    alarms: list[dict[str, Any]]
    """Events with the fields of an :class:`~paddle_adagc.stability.Alarm`, and
    the tensors that began them."""

    tensor_steps: np.ndarray
    """Steps of the rows of tensors, int64 ``[num_rows]``."""

    _places: list[tuple[np.ndarray, np.ndarray]]
    _parts: list[Mapping[str, np.ndarray]]

    @property
    def step(self) -> np.ndarray:
        """Index of each step, int64 ``[num_steps]``."""
        return self.columns["step"]

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
            quantity: ``"norm"``, ``"gamma"`` or ``"h"``.
            places: Which of :attr:`tensor_steps`; default: all.

        Returns:
            float32 ``[num_rows, num_tensors]``; NaN for a tensor that was not
            known yet.
        """
        chosen = np.arange(len(self.tensor_steps))[places]
        table = np.full((len(chosen), len(self.keys)), np.nan, np.float32)
        for block, mine in self._places:
            position = np.flatnonzero(np.isin(chosen, mine))
            inside = np.searchsorted(mine, chosen[position])
            if len(position):
                order = block[inside][quantity]
                table[position, : order.shape[1]] = _decoded(order)
        for part in self._parts:
            self._fill(table, part, quantity, chosen)
        return table

    def _fill(
        self,
        table: np.ndarray,
        part: Mapping[str, np.ndarray],
        quantity: str,
        chosen: np.ndarray,
    ) -> None:
        """Add what another rank saved of its tensors when it stopped."""
        column = {key: i for i, key in enumerate(self.keys)}
        place = {int(s): i for i, s in enumerate(part["steps"])}
        keys = part["keys"].tolist()
        theirs = [i for i, key in enumerate(keys) if key in column]
        mine = [column[keys[i]] for i in theirs]
        for row, step in enumerate(self.tensor_steps[chosen].tolist()):
            if step in place and mine:
                new = part[quantity][place[step]][theirs]
                old = table[row, mine]
                table[row, mine] = np.where(np.isnan(old), new, old)


def read_record(directory: str | os.PathLike[str]) -> RecordedRun:
    """Read a record, finished or still written.

    Args:
        directory: The folder that :class:`~paddle_adagc.Record` or
            ``adagc-run --watch`` wrote.

    Returns:
        Its steps, alarms and tensors.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged; the message names the file.

    Example:
        >>> import paddle
        >>> from paddle_adagc import Record
        >>> from paddle_adagc.record import read_record
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
    if not (folder / RECORD).is_file():
        raise FileNotFoundError(
            f"{folder} holds no {RECORD}: give the folder of a record, as "
            'Record("runs/a", ...) or adagc-run writes it'
        )
    info = _read_info(folder)
    rows: dict[int, dict[str, Any]] = {}
    for line in _lines(folder / STEPS):
        if "session" in line and "start" in line:
            rows = {s: row for s, row in rows.items() if s < line["start"]}
        elif type(line.get("step")) is not int:
            raise ValueError(f"{folder / STEPS}: a line without a step: {line}")
        else:
            rows[line["step"]] = line
    ordered = [rows[step] for step in sorted(rows)]
    places, tensor_steps = _ordered_rows(folder / TENSORS, info)
    parts = [*_parts_of(folder, info)]
    for part in parts:
        info["tensors"] += [
            key for key in part["keys"].tolist() if key not in info["tensors"]
        ]
    return RecordedRun(
        name=folder.name,
        directory=folder,
        keys=info["tensors"],
        sessions=info["sessions"],
        every=info["every"],
        columns=_columns(ordered),
        rows=ordered,
        alarms=_alarms(folder / ALARMS, info),
        tensor_steps=tensor_steps,
        _places=places,
        _parts=parts,
    )


def write_part(
    directory: Path, rank: int, session: int, arrays: Mapping[str, np.ndarray]
) -> None:
    """Leave a rank's own steps behind: ``steps``, ``keys``, tensors."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    name = f"rank{rank}.session{session}.npz"
    atomic_write(make_directory(directory) / name, content.getvalue())


def _parts_of(
    folder: Path, info: Mapping[str, Any]
) -> Iterator[Mapping[str, np.ndarray]]:
    is_valid = _validity(info)
    for path in sorted(folder.glob("rank*.session*.npz")):
        session = int(path.stem.rpartition("session")[2])
        try:
            with np.load(path, allow_pickle=False) as found:
                part = {name: found[name] for name in found.files}
            steps, keys = part["steps"].tolist(), part["keys"]
            shape = (len(steps), len(keys))
            if any(part[name].shape != shape for name in QUANTITIES):
                raise ValueError("its tables have other shapes")
        except Exception as error:  # wrong bytes raise anything
            raise ValueError(f"{path} is damaged: {error}") from error
        if all(is_valid(session, step) for step in steps):
            yield part


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(k for k, x in row.items() if _is_number(x))
    found = {
        name: np.array(
            [
                row[name] if _is_number(row.get(name)) else math.nan
                for row in rows
            ],
            np.float64,
        )
        for name in names
    }
    return {**found, "step": np.array([r["step"] for r in rows], np.int64)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _alarms(path: Path, info: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for alarm in _lines(path):
        found[alarm["series"], alarm["start"]] = alarm
    is_valid = _validity(info)
    kept = [a for a in found.values() if is_valid(a["session"], a["start"])]
    return sorted(kept, key=lambda alarm: alarm["start"])


def _validity(info: Mapping[str, Any]) -> Any:
    """Return whether a session's word about a step still counts."""
    starts = [session["start"] for session in info["sessions"]]
    ends = [min(starts[i + 1 :], default=math.inf) for i in range(len(starts))]

    def is_valid(session: int, step: int) -> bool:
        return session < len(ends) and step < ends[session]

    return is_valid


def _ordered_rows(
    path: Path, info: Mapping[str, Any]
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Return arrays with the place of each row by step, and all steps.

    Of rows of the same step the last counts, but a whole one before others.
    """
    blocks = [*_arrays(path)]
    is_valid = _validity(info)
    best: dict[int, tuple[tuple[int, int], int, int]] = {}
    for number, block in enumerate(blocks):
        is_whole = block.dtype[QUANTITIES[0]].base.itemsize == 4
        numbers = block[["session", "step"]].tolist()
        for i, (session, step) in enumerate(numbers):
            rank = (session, int(is_whole))
            if is_valid(session, step) and (
                step not in best or rank >= best[step][0]
            ):
                best[step] = (rank, number, i)
    steps = sorted(best)
    rows: dict[int, list[tuple[int, int]]] = {}
    for place, step in enumerate(steps):
        _, number, i = best[step]
        rows.setdefault(number, []).append((i, place))
    places = []
    for number, pairs_of_block in rows.items():
        index = np.array(pairs_of_block, np.int64)
        places.append((blocks[number][index[:, 0]], index[:, 1]))
    return places, np.array(steps, np.int64)


# ---- bytes ------------------------------------------------------------------


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file's complete lines."""
    if not path.exists():
        return
    data = path.read_bytes()
    data = data[: data.rfind(b"\n") + 1]
    try:
        yield from json.loads(b"[" + b",".join(data.splitlines()) + b"]")
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error})") from error


def _cut_last_line(path: Path) -> None:
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def _array_bytes(rows: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, rows, allow_pickle=False)
    return content.getvalue()


def _arrays(path: Path) -> Iterator[np.ndarray]:
    """Yield a file's complete arrays."""
    for array, _ in _arrays_and_ends(path):
        yield array


def _arrays_and_ends(path: Path) -> Iterator[tuple[np.ndarray, int]]:
    if not path.exists():
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        while file.tell() < size:
            try:
                array = np.lib.format.read_array(file, allow_pickle=False)
            except (EOFError, ValueError) as error:
                if file.read(1):
                    raise ValueError(f"{path} is damaged ({error})") from error
                return
            if not {"step", "session", *QUANTITIES} <= {
                *(array.dtype.names or ())
            }:
                raise ValueError(f"{path} is damaged (it holds {array.dtype})")
            yield array, file.tell()


def _cut_last_array(path: Path) -> None:
    ends = [end for _, end in _arrays_and_ends(path)]
    if path.exists():
        os.truncate(path, ends[-1] if ends else 0)


def _row_type(num_tensors: int, is_whole: bool) -> np.dtype:
    kind = "<f4" if is_whole else "<u2"
    columns = [(name, kind, (num_tensors,)) for name in QUANTITIES]
    first = [("step", "<i8"), ("session", "<i4"), ("is_kept", "?")]
    return np.dtype([*first, *columns])


def _encoded(values: np.ndarray, is_whole: bool) -> np.ndarray:
    """Round float32 to its upper 16 bits, unless it is to be whole."""
    values = np.ascontiguousarray(values, "<f4")
    if is_whole:
        return values
    bits = values.view("<u4")
    rounded = (bits.astype(np.uint64) + 0x8000) >> 16
    # Inf and NaN stay as they are.
    return np.where(np.isfinite(values), rounded, bits >> 16).astype("<u2")


def _decoded(values: np.ndarray) -> np.ndarray:
    if values.dtype.itemsize == 4:
        return values
    return (values.astype("<u4") << 16).view("<f4")


def _thinned(block: np.ndarray, every: int, latest: int) -> bytes:
    """Return an array with the rows that a thinner file still has."""
    stays = block["is_kept"] | (block["step"] >= latest)
    left = block[stays | (block["step"] % every == 0)]
    is_whole = block.dtype[QUANTITIES[0]].base.itemsize == 4
    shrinks = ~(left["is_kept"] | (left["step"] >= latest))
    parts = []
    for rows, whole in ((left[shrinks], False), (left[~shrinks], is_whole)):
        new = np.zeros(len(rows), _row_type(rows["norm"].shape[1], whole))
        for name in ("step", "session", "is_kept"):
            new[name] = rows[name]
        for name in QUANTITIES:
            new[name] = (
                rows[name] if not is_whole else _encoded(rows[name], whole)
            )
        parts.append(_array_bytes(new) if len(new) else b"")
    return b"".join(parts)


def _keep_fewer(blocks: Sequence[np.ndarray]) -> None:
    """Let the older half of the kept rows be thinned like others."""
    steps = np.concatenate([b["step"][b["is_kept"]] for b in blocks])
    middle = np.median(steps) if len(steps) else math.inf
    for block in blocks:
        block["is_kept"] &= block["step"] > middle


def _lock(directory: Path) -> int:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FileExistsError(
            f"another process is writing to the record {directory}: wait for "
            "it, stop it, or choose another folder"
        ) from None
    except OSError:  # a file system without locks
        pass
    return descriptor


def _read_info(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    if not path.exists():
        found = [p.name for p in (folder / n for n in (STEPS, TENSORS))]
        if any((folder / name).exists() for name in found):
            raise ValueError(
                f"{folder} has steps without a {RECORD}: choose another folder"
            )
        return {"version": 1, "tensors": [], "sessions": [], "every": 1}
    try:
        info = json.loads(path.read_bytes())
        if info["version"] != 1:
            raise ValueError(f"version {info['version']}, not 1")
        if not isinstance(info["tensors"], list):
            raise ValueError("tensors is no list")
        if not isinstance(info["sessions"], list) or info["every"] < 1:
            raise ValueError("sessions and every are not as written")
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error!r})") from error
    return info
