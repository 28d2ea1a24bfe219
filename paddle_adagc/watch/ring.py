# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The last steps on the device, copied to the host together.

A step adds references to vectors that the clip has made anyway. So recording
launches no kernel, and the host waits for the device once per ring.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.last_step import LastStep
from paddle_adagc.paddle_internals import unchecked
from paddle_adagc.parallel.meshes import local_value
from paddle_adagc.watch.reading import QUANTITIES

_GLANCE_SECONDS = 10.0


@dataclasses.dataclass
class Step:
    """A step of this rank; tensors are on the device."""

    step: int
    numbers: dict[str, Any]
    """What the host knows: learning rate, seconds, and more."""

    losses: list[Any] = dataclasses.field(default_factory=list)
    """What was differentiated: scalars, which add up to the loss."""

    snapshot: LastStep | None = None
    """Of the clip that is recorded."""

    acting: LastStep | None = None
    """Of the clip that acts, where a shadow is recorded beside it."""


@dataclasses.dataclass(frozen=True)
class Steps:
    """Steps on the host: of one rank, or of the whole model."""

    rows: list[dict[str, Any]]
    """Numbers by step, ``step`` and, where it is known, ``loss`` among them."""

    keys: list[str]
    tensors: dict[str, np.ndarray]
    """Norm, gamma and h, float32 ``[num_steps, num_tensors]``. In a step that
    the clip did not see they are NaN; a norm of 0 is that of no gradient,
    Inf of one with Inf or NaN.
    ``acting_h`` is that of the clip that acts, where it is another."""

    num_small: tuple[int, int] = (0, 0)
    """Elements of Adam's second moment that are small, and all, after the last
    step: see :func:`count_small`."""

    nonfinite: tuple[int, float] | None = None
    """The first step whose loss is not finite, and that loss."""


@unchecked
def to_host(
    steps: Sequence[Step],
    clip: ClipGradByAdaGC | None,
    names: Mapping[str, str],
    num_small: tuple[int, int] = (0, 0),
) -> Steps:
    """Copy the steps of this rank; waits for the device.

    Only tensors that this rank counts: together the ranks count each once.
    ``names`` are the model's, by the keys of clips that have Paddle's.
    """
    losses = _losses([step.losses for step in steps])
    rows = [
        {"step": step.step, **loss, **step.numbers}
        for step, loss in zip(steps, losses, strict=True)
    ]
    snapshots = [step.snapshot for step in steps if step.snapshot is not None]
    if not snapshots or clip is None:
        return Steps(rows, [], _empty(len(rows), 0), num_small)
    keys = _named(snapshots[-1], names)
    columns = _columns(snapshots, len(keys))
    tensors = _empty(len(rows), len(keys))
    seen = [i for i, step in enumerate(steps) if step.snapshot is not None]
    for name in QUANTITIES:
        tensors[name][seen] = columns[name]
    acting = {i: s.acting for i, s in enumerate(steps) if s.acting is not None}
    if acting:
        table = tensors["acting_h"] = np.full_like(tensors["h"], np.nan)
        table[[*acting]] = _factors_of([*acting.values()], keys, names)
    ones = paddle.ones([len(keys)], "float32")
    counts = clip._progress.reducer().counted(ones).numpy() != 0
    return Steps(
        rows,
        [key for key, counted in zip(keys, counts, strict=True) if counted],
        {name: table[:, counts] for name, table in tensors.items()},
        num_small,
    )


def _empty(num_steps: int, num_tensors: int) -> dict[str, np.ndarray]:
    shape = (num_steps, num_tensors)
    return {name: np.full(shape, np.nan, np.float32) for name in QUANTITIES}


def _losses(losses: Sequence[Sequence[Any]]) -> list[dict[str, float]]:
    """Sum each step's scalars as ``loss``, if it has any; one copy for all."""
    tensors = [x for step in losses for x in step if isinstance(x, Tensor)]
    values: list[float] = []
    if tensors:
        scalars = [x.astype("float32").reshape([]) for x in tensors]
        values = paddle.stack(scalars).numpy().tolist()
    of_tensors = iter(values)
    return [
        {
            "loss": sum(
                next(of_tensors) if isinstance(x, Tensor) else float(x)
                for x in step
            )
        }
        if step
        else {}
        for step in losses
    ]


def _named(snapshot: LastStep, names: Mapping[str, str]) -> list[str]:
    return [names.get(key, key) for key in snapshot.keys]


def _factors_of(
    snapshots: Sequence[LastStep], keys: Sequence[str], names: Mapping[str, str]
) -> np.ndarray:
    """Return h ``[num_snapshots, num_keys]``; 1 of tensors that lack a key."""
    theirs = _named(snapshots[-1], names)
    index = {key: i for i, key in enumerate(keys)}
    places = {i: index[k] for i, k in enumerate(theirs) if k in index}
    h = np.ones((len(snapshots), len(keys)), np.float32)
    found = _columns(snapshots, len(theirs))["h"]
    h[:, [*places.values()]] = found[:, [*places]]
    return h


def _columns(
    snapshots: Sequence[LastStep], num_tensors: int
) -> dict[str, np.ndarray]:
    """Return norm, gamma and h ``[num_snapshots, num_tensors]``."""
    calls = [call for snapshot in snapshots for call in snapshot.calls]
    norms = _stacked([call.norm for call in calls], num_tensors, 0.0)
    factors = _stacked([call.h for call in calls], num_tensors, 1.0)
    gammas = [s.per_tensor.get("gamma") for s in snapshots]
    found = {
        "norm": np.zeros((len(snapshots), num_tensors), np.float32),
        "h": np.ones((len(snapshots), num_tensors), np.float32),
        "gamma": _stacked(gammas, num_tensors, math.nan),
    }
    place = 0
    for i, snapshot in enumerate(snapshots):
        for _ in snapshot.calls:  # one, or one per parameter group
            known = norms[place] != 0
            found["norm"][i][known] = norms[place][known]
            found["h"][i][known] = factors[place][known]
            place += 1
    found["norm"][np.isnan(found["norm"])] = np.inf
    return found


def _stacked(
    vectors: Sequence[Tensor | None], length: int, missing: float
) -> np.ndarray:
    """Copy vectors, which new tensors may have made longer."""
    table = np.full((len(vectors), length), missing, np.float32)
    by_length: dict[int, list[int]] = {}
    for i, vector in enumerate(vectors):
        if vector is not None:
            by_length.setdefault(vector.shape[0], []).append(i)
    for size, places in by_length.items():
        same = [vectors[i] for i in places]
        table[places, :size] = paddle.stack(same).astype("float32").numpy()
    return table


def to_gather(mine: Steps, clip: ClipGradByAdaGC | None) -> Steps:
    """Return what the first rank needs of this one's steps."""
    has_tensors = is_split(clip) or dist.get_rank() == 0
    tensors = mine.tensors if has_tensors else _empty(len(mine.rows), 0)
    return dataclasses.replace(
        mine,
        keys=mine.keys if has_tensors else [],
        tensors=tensors,
        nonfinite=_first_nonfinite(mine.rows),
    )


def is_split(clip: ClipGradByAdaGC | None) -> bool:
    """Whether other ranks may have tensors that this one has not."""
    return clip is not None and clip._progress.reducer().communicates


def join(parts: Sequence[Steps]) -> Steps:
    """Join ranks, in the steps that all of them have.

    The loss is the mean over the ranks that know it. A tensor that several
    ranks count is that of the rank where its norm is not 0.
    """
    if len(parts) == 1:
        return parts[0]
    parts = _common(parts)
    rows = []
    for same in zip(*(part.rows for part in parts), strict=True):
        losses = [row["loss"] for row in same if "loss" in row]
        mean = {"loss": sum(losses) / len(losses)} if losses else {}
        rows.append({**same[0], **mean})
    index: dict[str, int] = {}
    for part in parts:
        for key in part.keys:
            index.setdefault(key, len(index))
    shape = (len(rows), len(index))
    tensors = {
        name: np.full(shape, np.nan, np.float32)
        for name in {name: None for part in parts for name in part.tensors}
    }
    for part in parts:
        places = np.array([index[key] for key in part.keys], np.int64)
        old = tensors["norm"][:, places]
        is_better = np.isnan(old) | (old == 0) & (part.tensors["norm"] != 0)
        for name, mine in part.tensors.items():
            table = tensors[name]
            table[:, places] = np.where(is_better, mine, table[:, places])
    small, every = np.sum([part.num_small for part in parts], 0).tolist()
    return Steps(rows, [*index], tensors, (small, every))


def _common(parts: Sequence[Steps]) -> list[Steps]:
    steps = [[row["step"] for row in part.rows] for part in parts]
    common = set.intersection(*map(set, steps))
    found = []
    for part, its_steps in zip(parts, steps, strict=True):
        places = [i for i, step in enumerate(its_steps) if step in common]
        tensors = {name: t[places] for name, t in part.tensors.items()}
        rows = [part.rows[i] for i in places]
        found.append(Steps(rows, part.keys, tensors, part.num_small))
    return found


@unchecked
def count_small(optimizer: Any) -> tuple[int, int]:
    """Count elements whose second moment lets Adam's epsilon decide the step.

    Those with ``sqrt(v) < 10 epsilon``, v with its bias corrected; and all.
    An element that had no gradient so far, as that of a token that did not
    occur or of a buffer's padding, counts in neither. An optimizer without a
    second moment or epsilon has none. Waits for the device.
    """
    made = optimizer._accumulators.get("moment2", {})
    moments = [local_value(moment) for moment in made.values()]
    epsilon = getattr(optimizer, "_epsilon", None)
    if not moments or not isinstance(epsilon, float):
        return 0, 0
    powers = [*optimizer._accumulators.get("beta2_pow_acc", {}).values()]
    correction = 1 - powers[0].item() if powers else 1.0
    bound = (10 * epsilon) ** 2 * correction
    # 1e-16 == 0 in Paddle, but not <= 0.
    counts = [
        paddle.stack([(m < bound).sum(), (m <= 0).sum()]) for m in moments
    ]
    small, still = paddle.stack(counts).sum(0).tolist()
    return small - still, sum(moment.size for moment in moments) - still


class Glance:
    """Looks at losses between two copies, without waiting for the device.

    Every ten seconds a small copy begins; it is looked at in the next step.
    """

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._steps: list[Step] = []
        self._begun: tuple[list[int], Tensor, Any] | None = None

    def step(self, step: Step, now: float) -> tuple[int, float] | None:
        """Take a step; return a step and its loss, if that is not finite."""
        found = self._look()
        if any(isinstance(loss, Tensor) for loss in step.losses):
            self._steps.append(step)
        is_due = now - self._last >= _GLANCE_SECONDS
        if is_due and self._begun is None and self._steps:
            self._begin(now)
        return found

    def _begin(self, now: float) -> None:
        self._last, steps, self._steps = now, self._steps, []
        sums = [
            sum(x.astype("float32").reshape([]) for x in step.losses)
            for step in steps
        ]
        values, event = paddle.stack(sums), None
        if values.place.is_gpu_place():
            values = values._copy_to(paddle.CUDAPinnedPlace(), False)
            event = paddle.device.cuda.Event()
            event.record(paddle.device.cuda.current_stream())
        self._begun = [step.step for step in steps], values, event

    def _look(self) -> tuple[int, float] | None:
        if self._begun is None:
            return None
        numbers, values, event = self._begun
        if event is not None and not event.query():
            return None
        self._begun = None
        for number, value in zip(numbers, values.numpy().tolist(), strict=True):
            if not math.isfinite(value):
                return number, value
        return None

    def forget(self) -> None:
        """Leave out the steps so far, which were copied."""
        self._steps, self._begun = [], None


class Worst:
    """The worst of the steps copied since the last log."""

    def __init__(self) -> None:
        self.latest: dict[str, Any] = {}
        self._found: dict[str, Any] = {}
        self._num_alarms = 0

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the next rows."""
        for row in rows:
            for name, sign, label in (
                ("h_min", 1, "h_min_worst"),
                ("shadow_h_min", 1, "shadow_h_min_worst"),
                ("global_grad_norm", -1, "global_grad_norm_max"),
            ):
                value = row.get(name, math.nan)
                before = self._found.get(label, sign * math.inf)
                if sign * value < sign * before:
                    self._found |= {label: value, f"{label}_step": row["step"]}
        if rows:
            self.latest = {n: x for n, x in rows[-1].items() if x == x}

    def take(self, num_alarms: int) -> dict[str, Any]:
        """Return what was found, and how many alarms; begin anew."""
        found, self._found = self._found, {}
        new, self._num_alarms = num_alarms - self._num_alarms, num_alarms
        return {"alarms": new, **found}


def _first_nonfinite(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[int, float] | None:
    for row in rows:
        if not math.isfinite(row.get("loss", 0.0)):
            return row["step"], row["loss"]
    return None
