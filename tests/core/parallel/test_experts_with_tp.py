# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""TP2 x EP2 x sharding V2 on four real ranks, against one process."""

import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from paddle.distributed import fleet

from paddle_adagc import ClipGradByAdaGC

SHAPES = {
    "replicated": [8, 4],
    "split": [8, 6],
    "experts.0": [4, 6],
    "experts.1": [4, 6],
}
NUM_STEPS = 30
T_START = 5


def gradients(step):
    """Of the whole tensors, with outliers in single ones."""
    draw = np.random.default_rng(step)
    whole = {
        key: draw.normal(size=shape).astype("float32")
        for key, shape in SHAPES.items()
    }
    if step % 3 == 1:
        whole[list(SHAPES)[step % len(SHAPES)]] *= 30
    return whole


class Tensors(paddle.nn.Layer):
    """Parameters whose gradients are given."""

    def __init__(self, shapes):
        super().__init__()
        for key, shape in shapes.items():
            self.add_parameter(
                key.replace(".", "_"),
                self.create_parameter(
                    shape,
                    default_initializer=paddle.nn.initializer.Constant(0.5),
                ),
            )

    def forward(self, wanted):
        """A loss with these gradients, by the parameter's name."""
        parts = [
            (parameter * paddle.to_tensor(wanted[name])).sum()
            for name, parameter in self.named_parameters()
        ]
        return sum(parts)


def fit(bare, model, optimizer, clip, part):
    """Gammas and weights after all steps, and the shares clipped."""
    shares = []
    for step in range(NUM_STEPS):
        whole = gradients(step)
        wanted = {
            name: part(name, whole[name.replace("_", ".")])
            for name, _ in bare.named_parameters()
        }
        model(wanted).backward()
        optimizer.step()
        optimizer.clear_grad()
        shares.append(clip.summary()["clipped_fraction"])
    gamma = clip.full_state_dict()["gamma"]
    return (
        {key: float(value) for key, value in gamma.items()},
        {key: p.numpy() for key, p in bare.named_parameters()},
        shares,
    )


def fit_alone():
    model = Tensors(SHAPES)
    clip, optimizer = make_optimizer(model)
    return fit(model, model, optimizer, clip, lambda name, whole: whole)


def make_optimizer(model):
    clip = ClipGradByAdaGC(t_start=T_START)
    clip.bind(model)
    optimizer = paddle.optimizer.AdamW(
        1e-2, parameters=model.parameters(), epsilon=1e-2, grad_clip=clip
    )
    return clip, optimizer


def fit_on_this_rank():
    hcg = start_fleet(
        mp=2,
        ep=2,
        sharding=2,
        moe_sharding=2,
        configs={"sharding_configs": {"split_param": True}},
    )
    expert = hcg.get_expert_parallel_rank()
    rows = slice(4 * hcg.get_model_parallel_rank(), None)
    rows = slice(rows.start, rows.start + 4)
    bare = Tensors(
        {
            "replicated": [8, 4],
            "split": [4, 6],
            f"experts.{expert}": [4, 6],
        }
    )
    bare.split.is_distributed = True
    bare.split.split_axis = 0
    weight = getattr(bare, f"experts_{expert}")
    weight.expert = weight.no_sync = True
    weight.color = {
        "color": "moe_expert",
        "group": hcg.get_moe_sharding_parallel_group(),
    }
    clip, optimizer = make_optimizer(bare)
    model = fleet.distributed_model(bare)
    optimizer = fleet.distributed_optimizer(optimizer)
    # Ranks that share slices average their gradients: 0.5 and 1.5 times it.
    share = 0.5 + hcg.get_sharding_parallel_rank()

    def part(name, whole):
        return share * (whole[rows] if name == "split" else whole)

    return rows.start, fit(bare, model, optimizer, clip, part)


@pytest.mark.slow
def test_run_is_that_of_one_process():
    gamma, weights, shares = fit_alone()
    assert max(shares[T_START:]) > 0
    for first_row, (own, parts, own_shares) in run_on_ranks(
        fit_on_this_rank, 4
    ):
        assert own == pytest.approx(gamma, rel=1e-5)
        assert own_shares == shares
        for key, value in parts.items():
            whole = weights[key]
            if key == "split":
                whole = whole[first_row : first_row + 4]
            np.testing.assert_allclose(value, whole, rtol=1e-5)
