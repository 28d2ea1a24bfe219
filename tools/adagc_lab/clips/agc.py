# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AGC: clipping of each unit's gradient by the norm of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.distributed.fleet.layers.mpu import VocabParallelEmbedding

from adagc_lab.clips.compared import ComparedClip
from paddle_adagc import rule
from paddle_adagc.checks import check_positive

_HEAD = "lm_head.weight"


class ClipGradByAGC(ComparedClip):
    r"""Adaptive gradient clipping in its gradient form (Brock et al. 2021).

    With :math:`G_u` the gradient and :math:`W_u` the weights of a unit (arXiv
    2102.06171, equation 3):

    .. math::

        G_u \leftarrow \lambda \frac{\max(\|W_u\|, \epsilon)}{\max(\|G_u\|,
        10^{-6})} G_u \quad \text{if } \|G_u\| > \lambda \max(\|W_u\|,
        \epsilon)

    A unit makes one output: see :func:`unit_axes`. As in the original the final
    layer is left alone: a bound model's ``lm_head.weight``. The AdaGC paper has
    ``lambda_rel=0.001``.
    """

    def __init__(self, lambda_rel: float = 0.01, epsilon: float = 1e-3) -> None:
        super().__init__()
        self.lambda_rel = check_positive("lambda_rel", lambda_rel)
        self.epsilon = check_positive("epsilon", epsilon)
        self._embeddings: set[str] = set()

    def bind(self, model: nn.Layer) -> None:
        """Learn which parameters are embeddings, whose units are rows."""
        super().bind(model)
        self._embeddings = embeddings(model)

    def clip_(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Clip unit by unit."""
        for parameter, gradient in pairs:
            if parameter is None:
                continue
            if self.keys.get(parameter.name) == _HEAD:
                h = paddle.ones([1])
            else:
                h = self._scales(parameter, gradient)
            squared = gradient.astype("float32").square().sum()
            finite = paddle.isfinite(squared)
            scaled = gradient.astype("float32") * h
            scaled = paddle.where(finite, scaled, paddle.zeros_like(scaled))
            paddle.assign(scaled.astype(gradient.dtype), gradient)

    def _scales(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Return the factor of each unit, with the axes of the parameter."""
        is_embedding = parameter.name in self._embeddings
        axes = unit_axes(parameter.ndim, is_embedding)
        weight, norm = (
            rule.square_root(x.astype("float32").square().sum(axes, None, True))
            for x in (parameter, gradient)
        )
        bound = self.lambda_rel * weight.clip(min=self.epsilon)
        h = bound / norm.clip(min=1e-6)
        return paddle.where(norm > bound, h, paddle.ones_like(h))


def embeddings(model: nn.Layer) -> set[str]:
    """Return the names of parameters whose rows are looked up."""
    marked = {p.name for p in model.parameters() if hasattr(p, "is_embedding")}
    kinds = (nn.Embedding, VocabParallelEmbedding)
    return marked | {
        layer.weight.name
        for layer in model.sublayers(include_self=True)
        if isinstance(layer, kinds)
    }


def unit_axes(num_axes: int, is_embedding: bool) -> tuple[int, ...]:
    """Return the axes along which a unit of AGC lies.

    A unit is a column of a linear weight ``[in, out]``, a row of an embedding
    ``[vocabulary, hidden]``, a filter ``[in, ...]`` of a convolution ``[out,
    in, ...]``; a vector is one unit.
    """
    if num_axes == 2 and not is_embedding:
        return (0,)
    return tuple(range(1 if num_axes > 1 else 0, num_axes))
