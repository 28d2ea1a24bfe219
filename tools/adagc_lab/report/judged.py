# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which losses of a run say something about its model."""

from __future__ import annotations

import numpy as np

from adagc_lab.record.files import RunRecord


def judged_steps(run: RunRecord) -> np.ndarray:
    """Return the steps whose loss says something about the model, increasing.

    Steps whose batch was corrupted are left out: their own loss is computed
    from the corruption. A fault of a gradient shows one step later.
    """
    judged = np.ones(run.num_steps, bool)
    for step, faults in run.faults.items():
        if not all(fault["kind"].startswith("gradient") for fault in faults):
            judged[step] = False
    return np.flatnonzero(judged)


def model_loss(run: RunRecord) -> np.ndarray:
    """Return the loss, ``[num_steps]``, NaN where the batch was corrupted."""
    loss = np.full(run.num_steps, np.nan)
    steps = judged_steps(run)
    loss[steps] = run.loss[steps]
    return loss


def memorises(run: RunRecord) -> bool:
    """Whether a run trains on a few sequences: validation says nothing."""
    data = run.run.get("config", {}).get("data", {})
    return data.get("kind") == "fixed_sequences"
