# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Names that say which expert a tensor belongs to.

PaddleFormers numbers the experts of every expert-parallel rank from 0, so that
``mlp.experts.0`` is a different expert on each. A clip keeps one number per
logical tensor, under a name that no two of them share.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import paddle

_EXPERT = re.compile(r"(?<=\.mlp\.experts\.)\d+(?=\.)")


def global_expert_name(name: str, first_expert: int) -> str:
    """Replace the expert's number on this rank by that in the whole model."""
    return _EXPERT.sub(lambda m: str(int(m.group()) + first_expert), name)


@contextlib.contextmanager
def global_expert_names(model: paddle.nn.Layer) -> Iterator[None]:
    """Inside, ``model.state_dict()`` has the names of the model in one piece.

    The model is an ``ErnieMoEForCausalLM`` or ``ErnieMoEForCausalLMPipe``.
    """
    config = model.config
    num_local_experts = config.moe_num_experts // config.moe_world_size
    first_expert = max(config.moe_rank, 0) * num_local_experts
    original = model.state_dict

    def renamed(*args: Any, **kwargs: Any) -> dict[str, paddle.Tensor]:
        return {
            global_expert_name(name, first_expert): tensor
            for name, tensor in original(*args, **kwargs).items()
        }

    object.__setattr__(model, "state_dict", renamed)
    try:
        yield
    finally:
        object.__delattr__(model, "state_dict")
