# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Expert parallelism on CPU: its groups, and experts that train."""

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from paddle import nn

_STEPS, _WIDTH, _NUM_EXPERTS, _TOKENS = 4, 6, 2, 16
_TO_FIRST = np.arange(_TOKENS) % 4 != 3  # three quarters: uneven shares


class _Exchange(paddle.autograd.PyLayer):
    """Rows to other ranks, their gradients back."""

    @staticmethod
    def forward(ctx, x, sends, gets, group):
        ctx.route = gets, sends, group
        return _exchange(x, sends, gets, group)

    @staticmethod
    def backward(ctx, grad):
        return _exchange(grad, *ctx.route)


def _exchange(x, sends, gets, group):
    out = paddle.empty([sum(gets), x.shape[1]], x.dtype)
    dist.stream.alltoall_single(
        out, x, gets, sends, group=group, use_calc_stream=True
    )
    return out


class _MoE(nn.Layer):
    """A dense layer, then each token to the expert that the test chose."""

    def __init__(self, experts, group=None):
        super().__init__()
        self.dense = nn.Linear(_WIDTH, _WIDTH)
        self.experts = nn.LayerDict(
            {str(i): nn.Linear(_WIDTH, _WIDTH) for i in experts}
        )
        self._group = group

    def forward(self, x, to_first):
        x = paddle.tanh(self.dense(x))
        order = np.argsort(~to_first, kind="stable")
        shares = [int(to_first.sum()), int((~to_first).sum())]
        x = paddle.gather(x, paddle.to_tensor(order))
        if self._group is None:
            rows = paddle.split(x, shares)
            x = paddle.concat(
                [self.experts[str(i)](r) for i, r in enumerate(rows)]
            )
        else:
            ranks = self._group.nranks
            gets = [shares[self._group.rank]] * ranks
            x = _Exchange.apply(x, shares, gets, self._group)
            (expert,) = self.experts.values()
            x = _Exchange.apply(expert(x), gets, shares, self._group)
        return paddle.gather(x, paddle.to_tensor(np.argsort(order)))


def _weights():
    draw = np.random.default_rng(11).standard_normal
    names = ("dense", "experts.0", "experts.1")
    return {
        f"{name}.{kind}": draw(shape).astype("float32") / 3
        for name in names
        for kind, shape in (("weight", (_WIDTH, _WIDTH)), ("bias", _WIDTH))
    }


def _fit(model, optimizer, rows):
    draw = np.random.default_rng(13).standard_normal
    for _ in range(_STEPS):
        x, y = draw((2, _TOKENS, _WIDTH)).astype("float32")[:, rows]
        out = model(paddle.to_tensor(x), _TO_FIRST[rows])
        ((out - paddle.to_tensor(y)) ** 2).mean().backward()
        optimizer.step()
        optimizer.clear_grad()


def _adamw(model):
    return paddle.optimizer.AdamW(0.01, parameters=model.parameters())


def _state(model):
    return {name: w.numpy() for name, w in model.state_dict().items()}


def _groups(degrees):
    hcg = start_fleet(**degrees)
    return {
        "class": type(hcg).__name__,
        "sharding": hcg.get_sharding_parallel_group().ranks,
        "expert": hcg.get_expert_parallel_group().ranks,
        "moe_sharding": hcg.get_moe_sharding_parallel_group().ranks,
        "model": hcg.get_model_parallel_group().ranks,
    }


def _train(sharding):
    """EP2 x sharding V2, as PaddleNLP marks experts."""
    from paddle.distributed import fleet

    hcg = start_fleet(
        ep=2,
        sharding=sharding,
        moe_sharding=sharding // 2,
        configs={"sharding_configs": {"split_param": True}},
    )
    group = hcg.get_expert_parallel_group()
    whole = _MoE([group.rank], group)
    weights = _weights()
    whole.set_state_dict({name: weights[name] for name in whole.state_dict()})
    for parameter in whole.experts.parameters():
        parameter.no_sync = parameter.expert = True
        parameter.color = {
            "color": "moe_expert",
            "group": hcg.get_moe_sharding_parallel_group(),
        }
        # The expert's gradient sums the expert group's mean losses.
        parameter.register_hook(lambda grad: grad / 2)
    model = fleet.distributed_model(whole)
    optimizer = fleet.distributed_optimizer(_adamw(whole))
    share = _TOKENS // sharding
    start = hcg.get_sharding_parallel_rank() * share
    _fit(model, optimizer, slice(start, start + share))
    return _state(whole)


@pytest.fixture(scope="module")
def expected():
    model = _MoE(range(_NUM_EXPERTS))
    model.set_state_dict(_weights())
    _fit(model, _adamw(model), slice(None))
    return _state(model)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", [2, 4])
def test_experts_train_like_in_one_process(expected, sharding):
    results = run_on_ranks(_train, sharding, sharding=sharding)
    assert set().union(*results) == set(expected)
    for got in results:
        assert len(got) == 4
        for name, array in got.items():
            np.testing.assert_allclose(
                array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name
            )


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
