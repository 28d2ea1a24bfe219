# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numbers of an optimizer step, for logs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from paddle import Tensor

from paddle_adagc.clips.numerics import unchecked

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
    kept = {name: vector.numpy() for name, vector in per_tensor.items()}
    return Rows([*keys], {"norm": norm, **kept, "h": h}), has_gradient


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


def _norm(values: np.ndarray) -> float:
    return float(np.sqrt(np.sum(values.astype(np.float64) ** 2)))
