# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Linear layers whose three matrix products are in block-wise FP8.

The recipe of DeepSeek-V3 (arXiv 2412.19437, section 3.3) as ERNIE-4.5's
released training code uses it: e4m3 throughout, gradients included, scales
that are powers of two, no history of scales.

| product | left operand | right operand |
|---|---|---|
| forward, `x @ w` | x, 1x128 along its width | w, 128x128 |
| dgrad, `dy @ w.T` | dy, 1x128 along its width | w, 128x128 |
| wgrad, `x.T @ dy` | x, 128x1 along the tokens | dy, 128x1 along the tokens |

Tokens are the flattened leading axes. Blocks end with a tensor; a micro-batch
and an expert have their own.

The products are emulated: see :mod:`adagc_lab.models.fp8.emulated`.
"""

import contextlib
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer

from adagc_lab.models.fp8 import emulated


def without_autocast() -> contextlib.AbstractContextManager[None]:
    """Keep the operands' dtypes under AMP."""
    if paddle.amp.is_autocast_enabled():
        return paddle.amp.auto_cast(enable=False)
    return contextlib.nullcontext()


class Float8Product(PyLayer):
    """`x @ weight` and its two gradients, each with operands in FP8."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply [tokens, in] by [in, out]; the result has x's dtype."""
        ctx.save_for_backward(x, weight)
        ctx.is_frozen = (x.stop_gradient, weight.stop_gradient)
        with without_autocast():
            return emulated.product(x, weight).astype(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of `x` and `weight`, of their dtypes; None if frozen."""
        x, weight = ctx.saved_tensor()
        of_x = of_weight = None
        with without_autocast():
            if not ctx.is_frozen[0]:
                of_x = emulated.product(grad, weight, transposed=True)
                of_x = of_x.astype(x.dtype)
            if not ctx.is_frozen[1]:
                of_weight = emulated.weight_gradient(x, grad)
                of_weight = of_weight.astype(weight.dtype)
        return of_x, of_weight


def float8_linear(
    x: Tensor, weight: Tensor, bias: None = None, name: str | None = None
) -> Tensor:
    """`F.linear` with products in FP8, without a bias and not of empty `x`.

    `x` is cast to the dtype of `weight`.
    """
    if bias is not None:
        raise ValueError("bias in an FP8 linear: there is none, use None.")
    if 0 in x.shape:
        raise ValueError(
            f"x of shape {list(x.shape)} in an FP8 linear: it needs a token."
        )
    tokens = x.astype(weight.dtype).reshape([-1, x.shape[-1]])
    y = Float8Product.apply(tokens, weight)
    return y.reshape([*x.shape[:-1], weight.shape[-1]])


class Float8Linear(nn.Linear):
    """`nn.Linear` without bias, with products in FP8."""

    def forward(self, x: Tensor) -> Tensor:
        return float8_linear(x, self.weight, self.bias)
