# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The files of a record: appended to, and read as arrays. NumPy alone.

A record is a folder:

- ``record.json``: names of the tensors, and a list of sessions: first step,
  clip, shadow, versions. One begins with each process that writes, and when
  another clip acts;
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

import contextlib
import dataclasses
import io
import json
import math
import os
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.files import atomic_write, make_directory
from paddle_adagc.record.blocks import (
    QUANTITIES,
    arrays,
    decoded,
    read_lines,
)
from paddle_adagc.stability.alarms import WATCHES

RECORD, STEPS, ALARMS = "record.json", "steps.jsonl", "alarms.jsonl"
TENSORS = "tensors.npy"

OWN_FIELDS = frozenset(WATCHES).union(
    ("step", "session", "start"),
    ("learning_rate", "warm_up", "skipped", "overflow"),
    ("clipped_grad_norm", "clipped_fraction", "h_min"),
    ("shadow_clipped_grad_norm", "shadow_clipped_fraction"),
    ("shadow_h_min", "shadow_h_median"),
)
"""Fields of a step's line that the record writes itself."""


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
    """Facts: first step, clip, versions. A session begins with each process
    that writes, and when another clip acts."""

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
                table[position, : order.shape[1]] = decoded(order)
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
        inside = sorted(folder.glob(f"*/{RECORD}")) + sorted(
            folder.glob(f"*/record/{RECORD}")
        )
        names = ", ".join(str(path.parent) for path in inside[:5])
        raise FileNotFoundError(
            f"{folder} holds no {RECORD}: give the folder of a record, as "
            'Record("runs/a", ...) or adagc-run writes it'
            + (f"; there are {names}" if names else "")
        )
    info = read_info(folder)
    with _damage(folder / STEPS):
        ordered = _steps(folder / STEPS)
        columns = _columns(ordered)
    with _damage(folder / TENSORS):
        places, tensor_steps = _ordered_rows(folder / TENSORS, info)
    with _damage(folder / ALARMS):
        alarms = _alarms(folder / ALARMS, info, ordered)
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
        columns=columns,
        rows=ordered,
        alarms=alarms,
        tensor_steps=tensor_steps,
        _places=places,
        _parts=parts,
    )


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Name the file of an error: wrong bytes raise anything."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged ({error!r})") from error


def _steps(path: Path) -> list[dict[str, Any]]:
    """Read the steps that count, ascending."""
    rows: dict[int, dict[str, Any]] = {}
    for line in read_lines(path):
        if "session" in line and "start" in line:
            rows = {s: row for s, row in rows.items() if s < line["start"]}
        elif type(line["step"]) is not int or not 0 <= line["step"] < 2**62:
            raise ValueError(f"a step {line['step']!r}")
        else:
            rows[line["step"]] = line
    return [rows[step] for step in sorted(rows)]


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
        with _damage(path), np.load(path, allow_pickle=False) as found:
            part = {name: found[name] for name in found.files}
            steps, keys = part["steps"].tolist(), part["keys"]
            shape = (len(steps), len(keys))
            if any(part[name].shape != shape for name in QUANTITIES):
                raise ValueError("its tables have other shapes")
        counts = [is_valid(session, step) for step in steps]
        if any(counts):
            tables = {name: part[name][counts] for name in QUANTITIES}
            yield {**part, **tables, "steps": part["steps"][counts]}


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
    if isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return isinstance(value, float)


def _alarms(
    path: Path, info: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Read the alarms of steps that count.

    One that goes on into steps that a later session superseded, or that are
    not written yet, ends before them, with the worst of the others.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for alarm in read_lines(path):
        if {type(alarm[n]) for n in ("start", "end", "session")} != {int}:
            raise ValueError(f"an alarm {alarm}")
        found[alarm["series"], alarm["start"]] = alarm
    is_valid, steps = _validity(info), [row["step"] for row in rows]
    kept = []
    for alarm in sorted(found.values(), key=lambda alarm: alarm["start"]):
        first, end = alarm["start"], alarm["end"]
        own = rows[bisect_left(steps, first) : bisect_right(steps, end)]
        own = [row for row in own if is_valid(alarm["session"], row["step"])]
        if not own:
            continue
        alarm = {**alarm, "end": own[-1]["step"]}
        if alarm["worst_step"] > alarm["end"]:
            name = alarm["series"]
            known = [row for row in own if _is_number(row.get(name))]
            row = max(known, key=lambda row: row[name]) if known else own[0]
            alarm["worst_step"] = row["step"]
            alarm["worst"] = row.get(name, alarm["worst"])
        kept.append(alarm)
    return kept


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
    blocks = [*arrays(path)]
    num_keys = len(info["tensors"])
    if any(block["norm"].shape[1] > num_keys for block in blocks):
        raise ValueError(f"it has more tensors than {num_keys}")
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


def read_info(folder: Path) -> dict[str, Any]:
    """Read ``record.json``; that of a new record where there is none.

    Raises:
        ValueError: It is damaged, or missing beside the steps.
    """
    path = folder / RECORD
    if not path.exists():
        found = [p.name for p in (folder / n for n in (STEPS, TENSORS))]
        if any((folder / name).exists() for name in found):
            raise ValueError(
                f"{folder} has steps without a {RECORD}: choose another folder"
            )
        return {"version": 1, "tensors": [], "sessions": [], "every": 1}
    with _damage(path):
        info = json.loads(path.read_bytes())
        if info["version"] != 1:
            raise ValueError(f"version {info['version']}, not 1")
        keys, sessions = info["tensors"], info["sessions"]
        if {*map(type, keys)} - {str} or len({*keys}) < len(keys):
            raise ValueError("the tensors are no names, each once")
        if any(type(session["start"]) is not int for session in sessions):
            raise ValueError("a session has no start")
        if type(info["every"]) is not int or info["every"] < 1:
            raise ValueError(f"every is {info['every']!r}")
        if not isinstance(keys, list) or not isinstance(sessions, list):
            raise ValueError("tensors and sessions are no lists")
    return info
