# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The last steps on the device, copied to the host together, ranks joined.

A step adds references to vectors that the clip has made anyway. So recording
launches no kernel, and the host waits for the device once per ring.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.last_step import LastStep
from paddle_adagc.paddle_internals import unchecked
from paddle_adagc.parallel.agreement import of_all_ranks
from paddle_adagc.watch.measure import Steps, Unlogged
from paddle_adagc.watch.store import QUANTITIES

FIRST_COPY = 8
"""Steps until the first copy: then it is known how long one takes."""

_COPY_SECONDS, _GLANCE_SECONDS = 60.0, 10.0

_GATHERED_BYTES = 2**27
"""Most that a copy takes on each device, for the tensors of all ranks."""


@dataclasses.dataclass
class Step:
    """A step of this rank; tensors are on the device."""

    numbers: dict[str, Any]
    """What the host knows: ``step``, learning rate, seconds, and more."""

    losses: list[Any] = dataclasses.field(default_factory=list)
    """What was differentiated: scalars, which add up to the loss."""

    snapshot: LastStep | None = None
    """Of the clip that is recorded."""


class Ring:
    """Collects steps, numbers them, and says when they are to be copied.

    ``start`` steps were made before; at most ``num_steps`` lie between copies.
    """

    def __init__(self, start: int, num_steps: int) -> None:
        self.start = self.last_step = start
        self.steps: list[Step] = []
        self.num_pending = 0  # also those of a record that has failed
        self.counter: Callable[[], int] | None = None
        self.last_loss: Any = None
        """What was differentiated last."""
        self.unlogged = Unlogged()
        self.has_seen = False
        """Whether the optimizer has made a step."""
        self._most, self.num_between = num_steps, min(num_steps, FIRST_COPY)
        self.num_sent = 0
        """Most tensors whose numbers a rank has sent to all."""
        self._last_time = time.perf_counter()
        self._glance = Glance()

    def add(self, step: Step) -> list[tuple[int, float]]:
        """Add a step; return a late one whose loss is not finite, with it."""
        now = time.perf_counter()
        made = self.counter() if self.counter else 0
        number = max(self.last_step + 1, made)
        seconds, self._last_time = now - self._last_time, now
        own = {"step": number, "step_seconds": seconds}
        step.numbers = {**own, **step.numbers}
        self.last_step = number  # no signal comes before the next line
        self.steps.append(step)
        return self._glance.step(step, now)

    def drop(self) -> None:
        """Forget the steps since the last copy: the record ends before them."""
        if self.steps:
            self.last_step = self.steps[0].numbers["step"] - 1
        self.steps = []

    def gather(self, mine: Steps, is_split: bool) -> list[Steps | str]:
        """Return what all ranks send.

        Paddle makes room on every device for the largest part times the number
        of ranks: tensors that the first rank alone has stay there.
        """
        sent: Steps | str = mine if is_split else mine.without_tensors()
        parts = of_all_ranks(sent)
        found = [len(part.keys) for part in parts if isinstance(part, Steps)]
        self.num_sent = max(found, default=0)
        parts[dist.get_rank()] = mine
        return parts

    def plan(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Plan the next copy in about a minute.

        All ranks give the rows of the same rank's steps.
        """
        self._glance = Glance(self._glance.last)
        seconds = sorted(row["step_seconds"] for row in rows)
        if seconds:
            num = _COPY_SECONDS / max(seconds[len(seconds) // 2], 1e-9)
            step_bytes = self.num_sent * 4 * len(QUANTITIES)
            step_bytes *= dist.get_world_size()
            most = _GATHERED_BYTES / max(step_bytes, 1)
            self.num_between = max(1, int(min(num, self._most, most)))


@unchecked
def to_host(steps: Sequence[Step], names: Mapping[str, str]) -> Steps:
    """Copy the steps of this rank; waits for the device.

    ``names`` are the model's, by the keys of clips that have Paddle's.
    """
    rows = [{**step.numbers} for step in steps]
    scalars = iter(
        _copied(
            x.astype("float32").reshape([1])
            for step in steps
            for x in step.losses
            if isinstance(x, Tensor)
        )
    )
    for step, row in zip(steps, rows, strict=True):
        if step.losses:
            row["loss"] = sum(
                next(scalars).item() if isinstance(x, Tensor) else float(x)
                for x in step.losses
            )
    keys, tensors = _tables([step.snapshot for step in steps])
    return Steps(rows, [names.get(key, key) for key in keys], tensors)


def _tables(
    snapshots: Sequence[LastStep | None],
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return keys, and norm, gamma and h ``[num_snapshots, num_keys]``."""
    seen = [(i, s) for i, s in enumerate(snapshots) if s is not None]
    keys = [*seen[-1][1].keys] if seen else []
    shape = len(snapshots), len(keys)
    tables = {q: np.full(shape, np.nan, np.float32) for q in QUANTITIES}
    vectors = []
    for _, snapshot in seen:
        for call in snapshot.calls:  # one, or one per parameter group
            vectors += [call.norm, call.h]
        if "gamma" in snapshot.per_tensor:
            vectors.append(snapshot.per_tensor["gamma"])
    copies = iter(_copied(vectors))
    norm, gamma, h = tables.values()
    for i, snapshot in seen:
        norm[i], h[i] = 0, 1
        for _ in snapshot.calls:
            its_norm, its_h = next(copies), next(copies)
            known = np.flatnonzero(its_norm)
            norm[i, known], h[i, known] = its_norm[known], its_h[known]
        if "gamma" in snapshot.per_tensor:
            mine = next(copies)
            gamma[i, : len(mine)] = mine  # later steps may have more
        norm[i, np.isnan(norm[i])] = np.inf
    return keys, tables


def _copied(vectors: Iterable[Tensor]) -> list[np.ndarray]:
    """Copy vectors from the device, together."""
    vectors = [*vectors]
    if not vectors:
        return []
    ends = np.cumsum([vector.shape[0] for vector in vectors])
    return np.split(paddle.concat(vectors).numpy(), ends[:-1])


class Glance:
    """Looks at losses between two copies, without waiting for the device.

    Every ten seconds a small copy begins; it is looked at in a later step.
    """

    def __init__(self, last: float | None = None) -> None:
        self.last = time.perf_counter() if last is None else last
        self._steps: list[Step] = []
        self._begun: tuple[list[int], Tensor, Any] | None = None

    def step(self, step: Step, now: float) -> list[tuple[int, float]]:
        """Take a step; return one whose loss is not finite, with that."""
        found = self._look()
        if any(isinstance(loss, Tensor) for loss in step.losses):
            self._steps.append(step)
        is_due = now - self.last >= _GLANCE_SECONDS
        if is_due and self._begun is None and self._steps:
            self.last, steps, self._steps = now, self._steps, []
            self._begin(steps)
        return found

    def _begin(self, steps: Sequence[Step]) -> None:
        sums = [
            sum(
                x.astype("float32").reshape([]) if isinstance(x, Tensor) else x
                for x in step.losses
            )
            for step in steps
        ]
        values, event = paddle.stack(sums), None
        if values.place.is_gpu_place():
            values = values._copy_to(paddle.CUDAPinnedPlace(), False)
            event = paddle.device.cuda.Event()
            event.record(paddle.device.cuda.current_stream())
        self._begun = [step.numbers["step"] for step in steps], values, event

    def _look(self) -> list[tuple[int, float]]:
        if self._begun is None:
            return []
        numbers, values, event = self._begun
        if event is not None and not event.query():
            return []
        self._begun = None
        losses = zip(numbers, values.tolist(), strict=True)
        return [(i, x) for i, x in losses if not math.isfinite(x)][:1]


def is_split(clip: ClipGradByAdaGC | None) -> bool:
    """Whether other ranks may have tensors that this one has not."""
    return clip is not None and clip._progress.reducer().communicates


def own_part(mine: Steps, clip: ClipGradByAdaGC | None) -> Steps:
    """Return the tensors that this rank counts; together each is once."""
    if clip is None or not mine.keys:
        return mine
    ones = paddle.ones([len(mine.keys)], "float32")
    counts = clip._progress.reducer().counted(ones).numpy() != 0
    if dist.get_rank() and not is_split(clip):
        counts = counts & False  # the first rank has the same
    return dataclasses.replace(
        mine,
        keys=[
            k for k, is_mine in zip(mine.keys, counts, strict=True) if is_mine
        ],
        tensors={
            name: table[:, counts] for name, table in mine.tensors.items()
        },
    )


def join(parts: Sequence[Steps]) -> Steps:
    """Join the parts of all ranks.

    The loss is the mean over the ranks that know it. A tensor that several
    ranks count is that of the rank where its norm is not 0.

    Raises:
        RuntimeError: They count other steps.
    """
    if len(parts) == 1:
        return parts[0]
    numbers = [[row["step"] for row in part.rows] for part in parts]
    if any(mine != numbers[0] for mine in numbers):
        raise RuntimeError("the ranks have counted different steps")
    rows = []
    for same in zip(*(part.rows for part in parts), strict=True):
        losses = [row["loss"] for row in same if "loss" in row]
        mean = {"loss": sum(losses) / len(losses)} if losses else {}
        rows.append({**same[0], **mean})
    index: dict[str, int] = {}
    for key in (key for part in parts for key in part.keys):
        index.setdefault(key, len(index))
    shape = (len(rows), len(index))
    tensors = {name: np.full(shape, np.nan, np.float32) for name in QUANTITIES}
    for part in parts:
        places = np.array([index[key] for key in part.keys], np.int64)
        old = tensors["norm"][:, places]
        is_better = np.isnan(old) | (old == 0) & (part.tensors["norm"] != 0)
        for name, mine in part.tensors.items():
            table = tensors[name]
            table[:, places] = np.where(is_better, mine, table[:, places])
    return Steps(rows, [*index], tensors)
