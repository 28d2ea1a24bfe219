# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip does to routers and experts, beside all tensors together."""

from __future__ import annotations

import numpy as np

from paddle_adagc.lab.record.files import RunRecord

_MARKS = {"router": ".mlp.gate.", "experts": ".mlp.experts."}
"""Group -> what the names of its tensors hold."""

_QUANTITIES = ("gamma", "moment1", "moment2")
_BALANCE = ("expert_max_violation", "idle_experts")


def group_measures(run: RunRecord, skip_steps: int) -> dict[str, float]:
    """Numbers of a run by group of tensors, and the balance of its experts.

    Args:
        run: The run.
        skip_steps: First steps that are not judged.

    Returns:
        ``h_median``, over all judged steps and tensors; the same of
        ``router_`` and ``experts_`` (routed ones) with the medians of their
        gamma and of the norms of AdamW's moments; the means of
        ``expert_max_violation`` and ``idle_experts``. What was not recorded is
        left out.
    """
    judged = {"h": run.h, **{q: run.tensors[q] for q in _QUANTITIES}}
    judged = {name: values[skip_steps:] for name, values in judged.items()}
    found = {"h_median": _median(judged["h"])}
    for group, mark in _MARKS.items():
        chosen = [mark in name for name in run.tensor_names]
        found[f"{group}_h_median"] = _median(judged["h"][:, chosen])
        for quantity in _QUANTITIES:
            found[f"{group}_{quantity}"] = _median(judged[quantity][:, chosen])
    for name in _BALANCE:
        if name in run.metrics:
            found[name] = float(np.nanmean(run.metrics[name][skip_steps:]))
    return {name: value for name, value in found.items() if value is not None}


def _median(values: np.ndarray) -> float | None:
    """Of the finite ones, None without any."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else None
