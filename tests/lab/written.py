# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Folders of runs that nobody trained, as a training writes them."""

import numpy as np
from adagc_lab.record.files import RECORD, update_run_json

from paddle_adagc.watch.store import Store


def write_steps(directory, rows, names=(), tensors=None, start=0):
    """Write a session of a run's steps, and a ``run.json`` with the names.

    ``rows`` have all numbers but ``step``; ``tensors`` are norm, gamma and h,
    ``[num_steps, num_tensors]`` each.
    """
    if tensors is None and names:
        ones = np.ones((len(rows), len(names)), np.float32)
        tensors = dict.fromkeys(("norm", "gamma", "h"), ones)
    store = Store(directory / RECORD)
    store.begin(start + 1, {})
    numbered = [{**row, "step": i} for i, row in enumerate(rows, start + 1)]
    store.append(numbered, [*names], tensors)
    store.close()
    update_run_json(directory, tensors=[*names])
