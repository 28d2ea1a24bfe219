# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which weights of a model are matrices of its hidden layers."""

from __future__ import annotations

import re
from collections.abc import Callable

import paddle

from paddle_adagc.parallel.layout import read_layout, unwrap

_NOT_HIDDEN = re.compile(
    r"(^|\.)lm_head\."
    r"|\.(mlp|block_sparse_moe)\.(shared_expert_)?gate\."
    r"|^visual\.proj$|^textual\.text_projection$"
)
"""Heads and routers, by the keys of the decoder, of CLIP, and of PaddleNLP's
decoders."""


def hidden_matrices(model: paddle.nn.Layer) -> Callable[[str], bool]:
    """Muon's ``is_matrix_fun`` for the decoder, CLIP, and PaddleNLP's decoders.

    Args:
        model: Spread over ranks or not; before fleet wraps it or after.

    Returns:
        Whether the parameter of this name is the weight of a linear map of a
        hidden layer: has two axes, and is no embedding, head or router.
    """
    layout = read_layout(model)
    matrices = {
        parameter.name
        for parameter in unwrap(model).parameters()
        if parameter.ndim == 2
        and not layout[parameter.name].is_embedding
        and not _NOT_HIDDEN.search(layout[parameter.name].key)
    }
    return lambda name: name in matrices
