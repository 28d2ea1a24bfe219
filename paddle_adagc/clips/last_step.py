# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numbers of a clip's last step: on the device, on the host, in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from paddle import Tensor

from paddle_adagc.paddle_internals import unchecked

_NUM_LOWEST = 5
_SAME = 1e-5  # relative; what rounding makes of one h for all tensors
_OF_TOTALS = ("has_gradient", "nonfinite_total")  # no numbers of a tensor
_QUANTILES = {"h_min": 0.0, "h_p10": 0.1, "h_median": 0.5}


class Call(NamedTuple):
    """One call of a clip, still on the device."""

    present: Sequence[int]  # indexes of the tensors that had a gradient
    norm: Tensor  # [num_tensors], float32, before the clip
    h: Tensor  # [num_tensors], float32


@dataclasses.dataclass(frozen=True)
class Rows:
    """Tensors of a step on the host: a row per tensor."""

    keys: list[str]
    columns: dict[str, np.ndarray]
    """``norm`` (before the clip), ``h``, what the rule carries, and what
    ``_OF_TOTALS`` names, each ``[num_rows]``."""

    def choose(self, chosen: np.ndarray) -> Rows:
        """Return the rows where ``chosen``, bool ``[num_rows]``, is True."""
        return Rows(
            [key for key, c in zip(self.keys, chosen, strict=True) if c],
            {name: column[chosen] for name, column in self.columns.items()},
        )

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of all parts, one part after the other."""
        return cls(
            [key for part in parts for key in part.keys],
            {
                name: np.concatenate([part.columns[name] for part in parts])
                for name in parts[0].columns
            },
        )

    def by_tensor(self) -> dict[str, dict[str, float]]:
        """Return norm, ``h`` and what the rule carries, of each key."""
        names = [name for name in self.columns if name not in _OF_TOTALS]
        return {
            key: {name: float(self.columns[name][i]) for name in names}
            for i, key in enumerate(self.keys)
        }

    def totals(self) -> dict[str, Any]:
        """Return the numbers that ``metrics()`` and ``summary()`` share."""
        norm, h = self.columns["norm"], self.columns["h"]
        finite = np.isfinite(norm)
        h = h[finite & (norm > 0)]
        return {
            "global_grad_norm": _norm(norm[finite]),
            "clipped_fraction": float(np.mean(h < 1)) if h.size else 0.0,
            "nonfinite": int(np.sum(~finite)),
            "nonfinite_total": int(self.columns["nonfinite_total"].sum()),
        }

    def summary(self) -> dict[str, Any]:
        """Return the numbers of :meth:`.ClipGradByAdaGC.summary`."""
        norm = self.columns["norm"]
        known = self.choose(np.isfinite(norm) & (norm > 0))
        h, norm = known.columns["h"], known.columns["norm"]
        before, after = _norm(norm), _norm(h * norm)
        lowest = sorted(zip(h.tolist(), known.keys, strict=True))
        if len(lowest) > 1 and np.ptp(h) < _SAME * h.min():
            lowest = []
        return {
            **self.totals(),
            "clipped_grad_norm": after,
            "num_tensors": int(np.sum(self.columns["norm"] != 0)),
            "clipped_norm_fraction": 1 - after / before if before else 0.0,
            **{
                name: float(np.quantile(h, q)) if h.size else 1.0
                for name, q in _QUANTILES.items()
            },
            "lowest_h": {key: x for x, key in lowest[:_NUM_LOWEST] if x < 1},
        }


@dataclasses.dataclass(frozen=True)
class LastStep:
    """An optimizer step of this rank, still on the device.

    Later steps do not change it, and only :meth:`rows` waits for the device.
    """

    calls: Sequence[Call]  # one, or one per parameter group
    keys: Sequence[str]  # of all tensors
    per_tensor: Mapping[str, Tensor]
    """Further quantities by name, float32 or int32 ``[num_tensors]``."""

    @unchecked
    def rows(self) -> Rows:
        """Return a row for every tensor; waits for the device."""
        norm = np.zeros(len(self.keys), np.float32)
        h = np.ones(len(self.keys), np.float32)
        had = np.zeros(len(self.keys), bool)
        for call in self.calls:
            its_norm, its_h = call.norm.numpy(), call.h.numpy()
            known = its_norm != 0
            known[call.present] = had[call.present] = True
            norm[: len(known)][known] = its_norm[known]
            h[: len(known)][known] = its_h[known]
        more = {name: v.numpy() for name, v in self.per_tensor.items()}
        columns = {"norm": norm, **more, "h": h, "has_gradient": had}
        return Rows([*self.keys], columns)


def _norm(values: np.ndarray) -> float:
    return float(np.sqrt(np.sum(values.astype(np.float64) ** 2)))
