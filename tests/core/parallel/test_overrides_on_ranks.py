# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``ClipGradByAdaGC(overrides=...)`` where ranks hold different tensors."""

import numpy as np
import pytest
from core.named_tensors import bound_clip, gradients
from core.parallel.simulated import Ranks, axis, half
from helpers import clip_arrays

from paddle_adagc.parallel.topology import Topology


def on_ranks(monkeypatch, overrides, keys_of_ranks):
    """Gradients after 12 steps on two ranks, the second tensor split."""
    ranks = Ranks(monkeypatch, 2)

    def work(rank, local):
        local.topology = Topology(model=axis(rank, 0, 1), world=(0, 1))
        keys = keys_of_ranks[rank]
        clip, parameters = bound_clip(keys, t_start=4, overrides=overrides)
        for step in range(12):
            grads = [
                g[half(rank, g.size)] if key.endswith("mlp.weight") else g
                for key, g in zip(keys, gradients(step, keys), strict=True)
            ]
            clipped = clip_arrays(clip, parameters, grads)
        return dict(zip(keys, clipped, strict=True))

    return ranks.run(work)


def test_tensor_parallel_ranks_equal_one_process(monkeypatch):
    overrides = {"mlp": {"lambda_rel": 1.5}, "embed": None}
    keys = ["embed.weight", "0.mlp.weight", "norm"]
    got = on_ranks(monkeypatch, overrides, [keys, keys])
    monkeypatch.undo()
    clip, parameters = bound_clip(keys, t_start=4, overrides=overrides)
    for step in range(12):
        expected = clip_arrays(clip, parameters, gradients(step, keys))
    whole = dict(zip(keys, expected, strict=True))
    mlp = np.hstack([part.pop("0.mlp.weight") for part in got])
    np.testing.assert_allclose(mlp, whole.pop("0.mlp.weight"), rtol=1e-5)
    for part in got:
        for key, value in part.items():
            np.testing.assert_allclose(value, whole[key], rtol=1e-5)


def test_a_pattern_may_match_other_ranks_tensors_alone(monkeypatch):
    keys = [["embed.weight", "norm"], ["norm", "0.router.weight"]]
    on_ranks(monkeypatch, {"router": {"beta": 0.5}}, keys)
    with pytest.raises(ValueError, match="'gate' matches no tensor"):
        on_ranks(monkeypatch, {"gate": None}, keys)
