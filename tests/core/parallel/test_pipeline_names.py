# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The state of a bare PipelineLayer in the same network as one Layer."""

import paddle
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer

from paddle_adagc import ClipGradByAdaGC


class Whole(paddle.nn.Layer):
    """What the pipeline computes."""

    def __init__(self):
        super().__init__()
        self.embed = paddle.nn.Linear(4, 4)
        self.layers = paddle.nn.LayerList(
            [paddle.nn.Linear(4, 4) for _ in range(2)]
        )
        self.head = paddle.nn.Linear(4, 4)


RENAME = {"0": "embed", "1": "layers.0", "2": "layers.1", "3": "head"}


def gammas_of_a_pipeline():
    """The whole pipeline's state after a step of given gradients."""
    start_fleet(pp=2)
    model = PipelineLayer(
        [LayerDesc(paddle.nn.Linear, 4, 4) for _ in range(4)],
        num_stages=2,
        topology=fleet.get_hybrid_communicate_group()._topo,
    )
    clip = ClipGradByAdaGC(t_start=1)
    clip.bind(model)
    parameters = dict(model.named_parameters())
    clip(
        [
            (parameter, paddle.full(parameter.shape, 1e-3 * (1 + int(key[0]))))
            for key, parameter in parameters.items()
        ]
    )
    state = clip.full_state_dict()
    return {k: float(v) for k, v in state["gamma"].items()}, state["config"]


@pytest.mark.slow
def test_pipeline_s_state_loads_in_one_layer():
    gamma, config = run_on_ranks(gammas_of_a_pipeline, 2)[0]
    clip = ClipGradByAdaGC(t_start=1)
    clip.bind(Whole())
    state = {"step": 1, "gamma": gamma, "config": config}
    clip.set_state_dict(state, rename=RENAME)
    loaded = clip.state_dict()["gamma"]
    for index, name in RENAME.items():
        for part in ("weight", "bias"):
            assert float(loaded[f"{name}.{part}"]) == pytest.approx(
                gamma[f"{index}.{part}"], rel=1e-6
            )
            assert gamma[f"{index}.{part}"] > 0
