# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fleet trains on CPU like one process with the whole model and batch.

``core/parallel/test_layouts.py`` has the other layouts, with a decoder.
"""

import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from paddle import nn

_STEPS = 4
_BATCH = 8
_SIZES = ((6, 16), (16, 10), (10, 12), (12, 6))
_CLOSE = {"rtol": 1e-5, "atol": 1e-6}


class _Block(nn.Linear):
    """A linear layer with a nonlinearity."""

    def forward(self, x):
        return paddle.tanh(super().forward(x))


def _make_model():
    """Four linear layers with the same weights in every process."""
    draw = np.random.default_rng(3).standard_normal
    model = nn.Sequential(*[_Block(*size) for size in _SIZES])
    for layer, (rows, columns) in zip(model, _SIZES, strict=True):
        layer.weight.set_value(0.3 * draw((rows, columns)).astype("float32"))
        layer.bias.set_value(0.1 * draw(columns).astype("float32"))
    return model


def _adamw(model):
    return paddle.optimizer.AdamW(
        0.01, parameters=model.parameters(), weight_decay=0.1, epsilon=1e-6
    )


def _fit(model, optimizer, rank=0, world=1):
    """Train on this rank's part of every batch."""
    draw = np.random.default_rng(5).standard_normal
    for _ in range(_STEPS):
        x, target = (
            paddle.to_tensor(np.split(array.astype("float32"), world)[rank])
            for array in (
                draw((_BATCH, _SIZES[0][0])),
                draw((_BATCH, _SIZES[-1][1])),
            )
        )
        ((model(x) - target) ** 2).mean().backward()
        optimizer.step()
        optimizer.clear_grad()


def _state(model):
    return {name: w.numpy() for name, w in model.state_dict().items()}


def _train(degrees, sharding_configs, main_grad):
    """Train with the batch split over data-parallel and sharding ranks."""
    from paddle.distributed import fleet
    from paddle.distributed.fleet.utils import mix_precision_utils as mixed

    start_fleet(**degrees, configs={"sharding_configs": sharding_configs})
    whole = _make_model()
    model, optimizer = whole, _adamw(whole)
    if main_grad:
        model = mixed.MixPrecisionLayer(model, dtype="bfloat16")
        optimizer = mixed.MixPrecisionOptimizer(optimizer)
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(optimizer)
    _fit(model, optimizer, fleet.worker_index(), fleet.worker_num())
    return _state(whole)


_V1: dict = {}
_V2 = {"split_param": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("degrees", "sharding", "main_grad"),
    [
        pytest.param({"sharding": 2}, _V1, True, id="V1-main_grad"),
        pytest.param({"sharding": 2}, _V2, False, id="V2"),
        pytest.param(
            {"sharding": 2},
            _V2 | {"comm_overlap": True},
            False,
            id="V2-overlap",
        ),
        pytest.param({"dp": 2, "sharding": 2}, _V1, False, id="DP x V1"),
    ],
)
def test_data_parallel_and_sharding(degrees, sharding, main_grad):
    alone = _make_model()
    _fit(alone, _adamw(alone))
    results = run_on_ranks(
        _train,
        np.prod([*degrees.values()]).item(),
        degrees=degrees,
        sharding_configs=sharding,
        main_grad=main_grad,
    )
    for got in results:
        assert got.keys() == _state(alone).keys()
        for name, array in _state(alone).items():
            np.testing.assert_allclose(got[name], array, err_msg=name, **_CLOSE)


def _groups(degrees):
    hcg = start_fleet(**degrees)
    return {
        "class": type(hcg).__name__,
        "sharding": hcg.get_sharding_parallel_group().ranks,
        "expert": hcg.get_expert_parallel_group().ranks,
        "moe_sharding": hcg.get_moe_sharding_parallel_group().ranks,
        "model": hcg.get_model_parallel_group().ranks,
    }


@pytest.mark.slow
def test_groups_of_experts_beside_tensor_parallelism():
    degrees = {"ep": 2, "mp": 2, "sharding": 2, "moe_sharding": 2}
    for rank, got in enumerate(run_on_ranks(_groups, 4, degrees=degrees)):
        pair, column = rank // 2 * 2, rank % 2
        assert got == {
            "class": "EPHybridCommunicateGroup",
            "sharding": [column, column + 2],
            "expert": [pair, pair + 1],
            "moe_sharding": [column, column + 2],
            "model": [pair, pair + 1],
        }
