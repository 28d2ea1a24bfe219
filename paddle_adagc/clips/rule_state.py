# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a rule carries from step to step, and the numbers of the last step."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor

from paddle_adagc.clips.tensor_table import TensorTable
from paddle_adagc.guards import unchecked
from paddle_adagc.state import ClipState, Quantity

State = dict[str, Tensor]
"""Name of a quantity -> float32 ``[num_tensors]``; ``[1]`` of a global one."""


class RuleState:
    """The declared quantities of a rule, on the device.

    Args:
        quantities: What the rule carries from step to step.
        optional: Names of quantities that a loaded state may lack, or have
            without use.
    """

    def __init__(
        self,
        quantities: Sequence[Quantity] = (),
        optional: Collection[str] = (),
    ) -> None:
        self.quantities = tuple(quantities)
        self._optional = optional
        self.vectors: State
        self.restart()

    def current(self, num_tensors: int) -> State:
        """Return the vectors, with start values for tensors that are new."""
        vectors = dict(self.vectors)
        for quantity in self.quantities:
            if quantity.is_global or quantity.name not in vectors:
                continue
            vector = vectors[quantity.name]
            num_new = num_tensors - vector.shape[0]
            if num_new > 0:
                new = paddle.full([num_new], quantity.start, "float32")
                vectors[quantity.name] = paddle.concat([vector, new])
        return vectors

    def update(self, state: State) -> None:
        """Take over the rule's next values; what they lack is dropped."""
        self.vectors = state

    @unchecked()
    def restart(self) -> None:
        """Set everything to its start."""
        self.vectors = {
            q.name: paddle.full([int(q.is_global)], q.start, "float32")
            for q in self.quantities
        }

    @unchecked()
    def reorder(self, old: Sequence[int]) -> None:
        """Follow a table that was bound: ``old`` holds the former slots."""
        index = paddle.to_tensor(old, "int64")
        for name in self._per_tensor:
            self.vectors[name] = paddle.gather(self.vectors[name], index)

    def state(
        self, step: int, config: dict[str, Any], keys: Sequence[str]
    ) -> ClipState:
        """Return the state; it shares the device's vectors."""
        vectors = self.current(len(keys))
        values = {name: vectors.pop(name) for name in self._per_tensor}
        known = tuple(keys) if values else ()
        return ClipState(step, config, known, values, vectors)

    @unchecked()
    def load(
        self,
        state: ClipState,
        arguments: Collection[str],
        owner: str,
        table: TensorTable,
    ) -> None:
        """Take over a state; a refused one changes nothing.

        Args:
            state: Numbers of all tensors, in any order.
            arguments: Names of the clip's arguments.
            owner: The clip's class, for messages.
            table: The clip's; an unbound one adopts the state's tensors.

        Raises:
            ValueError: It is another clip's, or another model's.
        """
        state = self._with_optional(state)
        state.check(self.quantities, arguments, owner)
        if state.values:
            table.check_state(state.keys)
            table.adopt(state.keys)
            state = state.restrict(table.keys)
        self.vectors = {
            name: paddle.to_tensor(vector, "float32")
            for name, vector in {**state.values, **state.scalars}.items()
        }

    @property
    def _per_tensor(self) -> list[str]:
        return [
            q.name
            for q in self.quantities
            if not q.is_global and q.name in self.vectors
        ]

    def _with_optional(self, state: ClipState) -> ClipState:
        """Add optional quantities at their start, leave out unused ones."""
        names = [q.name for q in self.quantities]
        values = {
            name: vector
            for name, vector in state.values.items()
            if name in names or name not in self._optional
        }
        for q in self.quantities:
            if q.name in self._optional and q.name not in values:
                value = q.start if q.absent is None else q.absent
                values[q.name] = np.full(len(state.keys), value, np.float32)
        return dataclasses.replace(state, values=values)


_STUCK_H, _STUCK_STEPS = 0.01, 200
_NUM_LOWEST = 5
_SAME = 1e-5  # relative; what rounding makes of one h for all tensors
_QUANTILES = {"h_min": 0.0, "h_p10": 0.1, "h_median": 0.5}


@dataclasses.dataclass(frozen=True)
class Call:
    """Norms and factors of one call of a clip, still on the device."""

    slots: list[int]
    """Entries of the vectors whose tensors had a gradient."""

    norm: Tensor  # [num_tensors], float32, before the clip
    h: Tensor  # [num_tensors], float32


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """An optimizer step of this rank, still on the device."""

    calls: Sequence[Call]
    keys: Sequence[str]
    per_tensor: Mapping[str, Tensor]
    """Further quantities by name, float32 or int32 ``[num_tensors]``."""

    @unchecked()
    def rows(self) -> tuple[Rows, np.ndarray]:
        """See :func:`step_rows`; waits for the device."""
        return step_rows(self.calls, self.keys, self.per_tensor)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Tensors of a step on the host: a row per tensor."""

    keys: list[str]
    columns: dict[str, np.ndarray]
    """``norm`` (before the clip), ``h``, what the rule keeps, and
    ``nonfinite_total``, each ``[num_rows]``."""

    def choose(self, chosen: np.ndarray) -> Rows:
        """Return the rows where ``chosen``, bool ``[num_rows]``, is true."""
        return Rows(
            [key for key, c in zip(self.keys, chosen, strict=True) if c],
            {name: column[chosen] for name, column in self.columns.items()},
        )

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of all parts."""
        return cls(
            [key for part in parts for key in part.keys],
            {
                name: np.concatenate([part.columns[name] for part in parts])
                for name in parts[0].columns
            },
        )


def step_rows(
    calls: Sequence[Call],
    keys: Sequence[str],
    per_tensor: Mapping[str, Tensor],
) -> tuple[Rows, np.ndarray]:
    """Read the step that ``calls`` make up; waits for the device.

    Args:
        calls: One call, or one per parameter group.
        keys: Key of every tensor.
        per_tensor: Further quantities by name, ``[num_tensors]``.

    Returns:
        A row for every tensor, and bool ``[num_tensors]``: it had a gradient.
    """
    norm = np.zeros(len(keys), np.float32)
    h = np.ones(len(keys), np.float32)
    has_gradient = np.zeros(len(keys), bool)
    for call in calls:
        its_norm, its_h = call.norm.numpy(), call.h.numpy()
        known = its_norm != 0
        known[call.slots] = has_gradient[call.slots] = True
        norm[: len(known)][known] = its_norm[known]
        h[: len(known)][known] = its_h[known]
    more = {name: vector.numpy() for name, vector in per_tensor.items()}
    return Rows([*keys], {"norm": norm, **more, "h": h}), has_gradient


def step_metrics(rows: Rows) -> dict[str, Any]:
    """Return the numbers of :meth:`TensorScalingClip.metrics`."""
    norm, h = rows.columns["norm"], rows.columns["h"]
    finite = np.isfinite(norm)
    return {
        "global_grad_norm": _norm(norm[finite]),
        "clipped_fraction": float(np.mean(h < 1)) if h.size else 0.0,
        "nonfinite": int(np.sum(~finite)),
        "nonfinite_total": int(rows.columns["nonfinite_total"].sum()),
        "tensors": by_tensor(rows),
    }


def by_tensor(rows: Rows) -> dict[str, dict[str, float]]:
    """Return each tensor's norm, ``h``, and what the rule keeps, by key."""
    columns = {
        name: column
        for name, column in rows.columns.items()
        if name != "nonfinite_total"
    }
    return {
        key: {name: float(column[i]) for name, column in columns.items()}
        for i, key in enumerate(rows.keys)
    }


def step_summary(rows: Rows) -> dict[str, Any]:
    """Return the numbers of :meth:`TensorScalingClip.summary`."""
    finite = np.isfinite(rows.columns["norm"])
    h, norm = rows.columns["h"][finite], rows.columns["norm"][finite]
    before, after = _norm(norm), _norm(h * norm)
    keys = [key for key, f in zip(rows.keys, finite, strict=True) if f]
    lowest = sorted((x, key) for key, x in zip(keys, h.tolist(), strict=True))
    if len(lowest) > 1 and lowest[-1][0] - lowest[0][0] < _SAME * lowest[0][0]:
        lowest = []
    return {
        "global_grad_norm": before,
        "clipped_grad_norm": after,
        "num_tensors": len(rows.keys),
        "clipped_fraction": float(np.mean(h < 1)) if h.size else 0.0,
        "clipped_norm_fraction": 1 - after / before if before else 0.0,
        **{
            name: float(np.quantile(h, q)) if h.size else 1.0
            for name, q in _QUANTILES.items()
        },
        "lowest_h": {key: x for x, key in lowest[:_NUM_LOWEST] if x < 1},
        "nonfinite": int(np.sum(~finite)),
        "nonfinite_total": int(rows.columns["nonfinite_total"].sum()),
    }


class StuckTensors:
    """Finds tensors that stay below h 0.01 for 200 steps.

    It looks at the steps that are summarised; others cost nothing.
    """

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._named: set[str] = set()

    def see(self, step: int, rows: Rows) -> list[str]:
        """Look at a step; return the stuck tensors, and warn of new ones."""
        h, norm = rows.columns["h"], rows.columns["norm"]
        is_low = (h < _STUCK_H) & np.isfinite(norm)
        self._first = {
            key: self._first.get(key, step)
            for key, low in zip(rows.keys, is_low, strict=True)
            if low
        }
        stuck = [k for k, s in self._first.items() if step - s >= _STUCK_STEPS]
        if not self._named.issuperset(stuck) and dist.get_rank() == 0:
            more = ", ..." if len(stuck) > _NUM_LOWEST else ""
            warnings.warn(
                f"{len(stuck)} tensors are clipped below h {_STUCK_H} for "
                f"{_STUCK_STEPS} steps: {', '.join(stuck[:_NUM_LOWEST])}{more}."
                " They hardly train: clip.restart_warmup() measures gamma anew",
                stacklevel=3,
            )
        self._named.update(stuck)
        return stuck


def _norm(values: np.ndarray) -> float:
    return float(np.sqrt(np.sum(values.astype(np.float64) ** 2)))
