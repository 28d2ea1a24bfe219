# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a rank learns that calls alone what every rank has to call."""

import os

import paddle
import paddle.distributed as dist
import pytest
from core.parallel.ranks import run_on_ranks
from paddle.distributed import fleet

from paddle_adagc import ClipGradByAdaGC


def call_alone(name, answer):
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"pp_degree": 2}
    fleet.init(is_collective=True, strategy=strategy)
    clip = ClipGradByAdaGC()
    model = paddle.nn.Linear(4, 2)
    clip.bind(model)
    optimizer = paddle.optimizer.AdamW(
        parameters=model.parameters(), grad_clip=clip
    )
    model(paddle.ones([1, 4])).sum().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        try:
            getattr(clip, name)()
        except RuntimeError as error:
            answer.write_text(str(error))
    os._exit(0)  # the ranks meet no more


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full_state_dict", "summary"])
def test_the_error_says_that_every_rank_has_to_call_it(name, tmp_path):
    answer = tmp_path / "answer"
    with pytest.raises(FileNotFoundError):  # no rank returns
        run_on_ranks(call_alone, 2, timeout=120, name=name, answer=answer)
    said = answer.read_text()
    assert f"in {name}(): every rank has to call it" in said
