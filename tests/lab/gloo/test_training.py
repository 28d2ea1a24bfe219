# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fleet trains on CPU like one process with the whole model and batch."""

import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from paddle import nn

_STEPS = 4
_BATCH = 8
_SIZES = ((6, 16), (16, 10), (10, 12), (12, 6))
_CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def _weights():
    """Structured name to array: four linear layers, a norm in the middle."""
    draw = np.random.default_rng(3).standard_normal
    arrays = {}
    for index, (rows, columns) in enumerate(_SIZES):
        arrays[f"{index}.weight"] = 0.3 * draw((rows, columns))
        arrays[f"{index}.bias"] = 0.1 * draw(columns)
    return {name: array.astype("float32") for name, array in arrays.items()}


def _batches():
    draw = np.random.default_rng(5).standard_normal
    for _ in range(_STEPS):
        yield (
            draw((_BATCH, _SIZES[0][0])).astype("float32"),
            draw((_BATCH, _SIZES[-1][1])).astype("float32"),
        )


class _Block(nn.Linear):
    """A linear layer with a nonlinearity."""

    def forward(self, x):
        return paddle.tanh(super().forward(x))


def _loss(y, target):
    return ((y - target) ** 2).mean()


def _adamw(parameters):
    return paddle.optimizer.AdamW(
        0.01, parameters=parameters, weight_decay=0.1, epsilon=1e-6
    )


def _single_process():
    """The weights after training the whole model on whole batches."""
    model = nn.Sequential(*[_Block(*size) for size in _SIZES])
    model.set_state_dict(_weights())
    optimizer = _adamw(model.parameters())
    for x, target in _batches():
        _loss(model(paddle.to_tensor(x)), paddle.to_tensor(target)).backward()
        optimizer.step()
        optimizer.clear_grad()
    return _state(model)


def _state(model):
    return {name: w.numpy() for name, w in model.state_dict().items()}


def _train(degrees, sharding_configs, main_grad):
    """Train with the batch split over data-parallel and sharding ranks."""
    from paddle.distributed import fleet
    from paddle.distributed.fleet.utils import mix_precision_utils as mixed

    start_fleet(**degrees, configs={"sharding_configs": sharding_configs or {}})
    whole = nn.Sequential(*[_Block(*size) for size in _SIZES])
    whole.set_state_dict(_weights())
    optimizer = _adamw(whole.parameters())
    model = whole
    if main_grad:
        model = mixed.MixPrecisionLayer(model, dtype="bfloat16")
        optimizer = mixed.MixPrecisionOptimizer(optimizer)
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(optimizer)
    rank, world = fleet.worker_index(), fleet.worker_num()
    for x, target in _batches():
        x, target = np.split(x, world)[rank], np.split(target, world)[rank]
        _loss(model(paddle.to_tensor(x)), paddle.to_tensor(target)).backward()
        optimizer.step()
        optimizer.clear_grad()
    return _state(whole)


def _train_pipeline(num_stages, segments="uniform"):
    """1F1B with four micro-batches."""
    from paddle.distributed import fleet
    from paddle.distributed.fleet import meta_parallel as mp

    start_fleet(
        pp=num_stages, num_micro_batches=4, micro_batch_size=_BATCH // 4
    )
    whole = mp.PipelineLayer(
        [mp.LayerDesc(_Block, *size) for size in _SIZES],
        num_stages=num_stages,
        loss_fn=_loss,
        seg_method=segments,
    )
    return _fit_pipeline(fleet, whole, _weights())


def _fit_pipeline(fleet, whole, weights):
    own = whole.state_dict()
    whole.set_state_dict({name: weights[name] for name in own})
    optimizer = _adamw(whole.parameters())
    model = fleet.distributed_model(whole)
    optimizer = fleet.distributed_optimizer(optimizer)
    for x, target in _batches():
        model.train_batch(
            [paddle.to_tensor(x), paddle.to_tensor(target)], optimizer
        )
    return _state(whole)


class _Column(nn.Layer):
    """The first half of a tensor-parallel pair."""

    def __init__(self, rows, columns):
        super().__init__()
        from paddle.distributed.fleet import meta_parallel as mp

        inner = mp.ColumnParallelLinear(
            rows, columns, has_bias=True, gather_output=False
        )
        self.weight, self.bias, self._inner = inner.weight, inner.bias, [inner]

    def forward(self, x):
        return paddle.tanh(self._inner[0](x))


class _Row(nn.Layer):
    """The second half of a tensor-parallel pair."""

    def __init__(self, rows, columns):
        super().__init__()
        from paddle.distributed.fleet import meta_parallel as mp

        inner = mp.RowParallelLinear(
            rows, columns, has_bias=True, input_is_parallel=True
        )
        self.weight, self.bias, self._inner = inner.weight, inner.bias, [inner]

    def forward(self, x):
        return paddle.tanh(self._inner[0](x))


def _train_tensor_pipeline():
    """TP2 x PP2, which sends activations in parts, one a TP rank."""
    from paddle.distributed import fleet
    from paddle.distributed.fleet import meta_parallel as mp

    hcg = start_fleet(
        mp=2, pp=2, num_micro_batches=2, micro_batch_size=_BATCH // 2
    )
    rank = hcg.get_model_parallel_rank()
    whole = mp.PipelineLayer(
        [
            mp.LayerDesc((_Column, _Row)[index % 2], *size)
            for index, size in enumerate(_SIZES)
        ],
        num_stages=2,
        topology=hcg.topology(),
        loss_fn=_loss,
    )
    weights = {
        name: _part_of(name, array, rank) for name, array in _weights().items()
    }
    return rank, _fit_pipeline(fleet, whole, weights)


def _part_of(name, array, rank):
    """Even layers are split by columns, odd ones by rows."""
    index, kind = name.split(".")
    if int(index) % 2 == 0:
        return np.split(array, 2, axis=-1)[rank]
    return np.split(array, 2, axis=0)[rank] if kind == "weight" else array


@pytest.fixture(scope="module")
def expected():
    return _single_process()


def _assert_equal_weights(got, expected):
    for name, array in got.items():
        np.testing.assert_allclose(
            array, expected[name], err_msg=name, **_CLOSE
        )


_V1: dict = {}
_V2 = {"split_param": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("degrees", "sharding", "main_grad"),
    [
        pytest.param({"dp": 2}, None, False, id="DP"),
        pytest.param({"sharding": 2}, _V1, False, id="V1"),
        pytest.param({"sharding": 2}, _V1, True, id="V1-main_grad"),
        pytest.param(
            {"sharding": 2}, {"tensor_fusion": True}, False, id="V1-fusion"
        ),
        pytest.param({"sharding": 2}, _V2, False, id="V2"),
        pytest.param({"sharding": 2}, _V2, True, id="V2-main_grad"),
        pytest.param(
            {"sharding": 2},
            _V2 | {"comm_overlap": True},
            False,
            id="V2-overlap",
        ),
    ],
)
def test_data_parallel_and_sharding(expected, degrees, sharding, main_grad):
    results = run_on_ranks(
        _train,
        2,
        degrees=degrees,
        sharding_configs=sharding,
        main_grad=main_grad,
    )
    for got in results:
        assert got.keys() == expected.keys()
        _assert_equal_weights(got, expected)


@pytest.mark.slow
def test_data_parallel_times_sharding(expected):
    for got in run_on_ranks(
        _train,
        4,
        degrees={"dp": 2, "sharding": 2},
        sharding_configs=_V1,
        main_grad=False,
    ):
        _assert_equal_weights(got, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "first_layers"),
    [
        pytest.param({}, {"0", "1"}, id="even"),
        pytest.param({"segments": [0, 1, 4]}, {"0"}, id="uneven"),
    ],
)
def test_pipeline(expected, options, first_layers):
    first, last = run_on_ranks(_train_pipeline, 2, num_stages=2, **options)
    assert {name[0] for name in first} == first_layers
    assert first.keys() | last.keys() == expected.keys()
    for got in (first, last):
        _assert_equal_weights(got, expected)


@pytest.mark.slow
def test_pipeline_of_four_stages(expected):
    results = run_on_ranks(_train_pipeline, 4, num_stages=4)
    for stage, got in enumerate(results):
        assert {name[0] for name in got} == {str(stage)}
        _assert_equal_weights(got, expected)


@pytest.mark.slow
def test_tensor_parallel_times_pipeline(expected):
    for rank, got in run_on_ranks(_train_tensor_pipeline, 4):
        _assert_equal_weights(
            got,
            {
                name: _part_of(name, array, rank)
                for name, array in expected.items()
            },
        )
