# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Muon: orthogonalised momentum for matrices, AdamW for everything else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import paddle
from paddle import Tensor, _C_ops, nn

from adagc_lab.optimizers import base
from paddle_adagc.checks import check_choice, check_integer

Scaling = Literal["spectral", "rms"]

_NOT_HIDDEN = re.compile(
    r"(^|\.)lm_head\.|\.mlp\.gate\.|^visual\.proj$|^textual\.text_projection$"
)
"""Heads and routers, by the keys of the decoder and of CLIP."""


def hidden_matrices(model: nn.Layer) -> Callable[[str], bool]:
    """Return Muon's ``is_matrix_fun`` for a language model or CLIP.

    True for the name of the weight of a linear map of a hidden layer: it has
    two axes, and is no embedding, head or router.
    """
    embeddings = {
        layer.weight.name
        for layer in model.sublayers(include_self=True)
        if "Embedding" in type(layer).__name__ and hasattr(layer, "weight")
    }
    matrices = {
        parameter.name
        for key, parameter in model.named_parameters()
        if parameter.ndim == 2
        and parameter.name not in embeddings
        and "position" not in key
        and not _NOT_HIDDEN.search(key)
    }
    return lambda name: name in matrices


def orthogonalize(matrix: Tensor, num_iterations: int) -> Tensor:
    r"""About :math:`U V^\top` of a matrix :math:`U \Sigma V^\top`.

    Newton-Schulz iterations of :math:`X \leftarrow a X + (b A + c A^2) X`,
    :math:`A = X X^\top`, from the matrix over its Frobenius norm (Jordan et
    al. 2024). Small singular values rise fast: after 5 iterations all lie in
    about [0.7, 1.2].
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / paddle.clip(x.norm(), min=1e-7)
    for _ in range(num_iterations):
        gram = paddle.matmul(x, x, transpose_y=True)
        polynomial = b * gram + c * paddle.matmul(gram, gram)
        x = a * x + paddle.matmul(polynomial, x)
    return x.T if is_tall else x


class Muon(base.AdamLike):
    r"""Muon (Jordan et al. 2024) for matrices, AdamW for all other weights.

    A matrix :math:`W` with gradient :math:`g` takes the step

    .. math::

        m &\leftarrow \mu m + (1 - \mu) g \\
        u &= \mu m + (1 - \mu) g \text{ with Nesterov, else } m \\
        W &\leftarrow (1 - \eta \lambda) W - \eta \, s \, \mathrm{NS}(u)

    with :func:`orthogonalize` as NS, in float32.

    Args:
        learning_rate: :math:`\eta`, a number or a scheduler.
        momentum: :math:`\mu`, decay of the momentum.
        nesterov: Look one step of the momentum ahead.
        num_iterations: Newton-Schulz iterations.
        scaling: :math:`s` of a weight ``[in, out]``. ``"spectral"``:
            ``sqrt(max(1, out / in))`` (Jordan et al. 2024). ``"rms"``:
            ``0.2 * sqrt(max(in, out))``, the size of AdamW's updates
            (Moonlight, arXiv 2502.16982, equation 4).
        parameters: Parameters.
        weight_decay: :math:`\lambda`, not negative.
        beta1: Decay of AdamW's first moment.
        beta2: Decay of AdamW's second moment.
        epsilon: Added to the root of AdamW's second moment.
        is_matrix_fun: Whether the parameter of this name is a matrix to
            orthogonalise, see :func:`hidden_matrices`. None: all with two axes.
        **shared: See :class:`.base.DecoupledOptimizer`.
    """

    needs_whole_tensors = True

    def __init__(
        self,
        learning_rate: base.LearningRate,
        momentum: float = 0.95,
        nesterov: bool = True,
        num_iterations: int = 5,
        scaling: Scaling = "spectral",
        parameters: Sequence[Tensor] | None = None,
        weight_decay: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.95,
        epsilon: float = 1e-8,
        is_matrix_fun: Callable[[str], bool] | None = None,
        **shared: Any,
    ) -> None:
        self._nesterov = bool(nesterov)
        self._iterations = check_integer("num_iterations", num_iterations, 1)
        self._scaling = check_choice("scaling", scaling, get_args(Scaling))
        self._is_matrix_fun = is_matrix_fun
        options = {"momentum": momentum, "weight_decay": weight_decay}
        options |= {"beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        super().__init__(learning_rate, parameters, options, **shared)

    def _is_matrix(self, parameter: Tensor) -> bool:
        chosen = self._is_matrix_fun
        if chosen is None or not chosen(parameter.name):
            return chosen is None and parameter.ndim == 2
        if parameter.ndim != 2:
            raise ValueError(
                f"is_matrix_fun chose {parameter.name!r} of shape "
                f"{parameter.shape}: Muon orthogonalises matrices alone"
            )
        return True

    def _start(self, parameter: Tensor) -> base.Start:
        if self._is_matrix(parameter):
            return {"momentum": None}
        return super()._start(parameter)

    def _update(self, step: base.ParameterStep) -> None:
        if "momentum" not in step.state:
            _adamw_step(step)
            return
        moment, momentum = step.state["momentum"], step.options["momentum"]
        average = momentum * moment + (1 - momentum) * step.gradient
        paddle.assign(average, moment)
        direction = moment
        if self._nesterov:
            direction = momentum * moment + (1 - momentum) * step.gradient
        num_in, num_out = direction.shape
        scale = 0.2 * math.sqrt(max(num_in, num_out))
        if self._scaling == "spectral":
            scale = math.sqrt(max(1.0, num_out / num_in))
        change = orthogonalize(direction, self._iterations)
        step.take(step.lr * scale * change)


def _adamw_step(step: base.ParameterStep) -> None:
    """Make a step by the operator of Paddle's own AdamW."""
    moment1, moment2, power1, power2 = step.state.values()
    options = step.options
    _C_ops.adamw_(
        *(step.weight, step.gradient, step.lr, moment1, moment2),
        None,  # AMSGrad's maximum
        *(power1, power2, None, None),  # master weight, found_inf
        options["beta1"],
        options["beta2"],
        options["epsilon"],
        1.0,  # lr_ratio
        options["weight_decay"],
        True,  # with_decay
        *(False, 1000),  # lazy_mode, its rows per thread
        *(False, False, False),  # multi_precision, global powers, AMSGrad
    )
