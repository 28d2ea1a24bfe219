# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Names that say which expert a tensor belongs to.

``ernie_pretrain`` of PaddleFormers numbers the experts of every expert-parallel
rank from 0, so that ``mlp.experts.0`` is a different expert on each. A clip
keeps one number per logical tensor, under a name that no two of them share.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import paddle

_EXPERT = re.compile(r"(?<=\.mlp\.experts\.)\d+(?=\.)")


@contextlib.contextmanager
def global_expert_names(model: Any) -> Iterator[None]:
    """Inside, ``model.state_dict()`` has the names of the model in one piece.

    Nothing changes for a model without ``config.moe_rank``, or whose experts
    have global numbers already.
    """
    config: Any = getattr(model, "config", None)
    num_ranks = getattr(config, "moe_world_size", None) or 1
    rank = max(getattr(config, "moe_rank", None) or 0, 0)
    original = model.state_dict
    numbers = [int(n) for name in original() for n in _EXPERT.findall(name)]
    if rank == 0 or not numbers or min(numbers) > 0:
        yield
        return
    first = rank * (config.moe_num_experts // num_ranks)

    def renamed(*args: Any, **kwargs: Any) -> dict[str, paddle.Tensor]:
        return {
            _EXPERT.sub(lambda m: str(int(m.group()) + first), name): tensor
            for name, tensor in original(*args, **kwargs).items()
        }

    object.__setattr__(model, "state_dict", renamed)
    try:
        yield
    finally:
        object.__delattr__(model, "state_dict")
