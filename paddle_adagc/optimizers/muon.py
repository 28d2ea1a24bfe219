# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Muon: orthogonalised momentum for matrices, AdamW for everything else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Literal, get_args

import paddle
from paddle import Tensor, _C_ops

from paddle_adagc.checks import check_choice, check_integer
from paddle_adagc.optimizers import base
from paddle_adagc.parallel.layout import (
    read_layout,
    refuse_stage_3,
    units_of,
    unwrap,
)

Scaling = Literal["spectral", "rms"]

_NOT_HIDDEN = re.compile(
    r"(^|\.)lm_head\."
    r"|\.(mlp|block_sparse_moe)\.(shared_expert_)?gate\."
    r"|^visual\.proj$|^textual\.text_projection$"
)
"""Heads and routers, by the keys of the decoder, of CLIP, and of PaddleNLP's
decoders."""


def hidden_matrices(model: paddle.nn.Layer) -> Callable[[str], bool]:
    """Return Muon's ``is_matrix_fun`` for a language model or CLIP.

    Args:
        model: A decoder of PaddleNLP or of this repository, or CLIP. It may be
            spread over ranks, and wrapped by fleet.

    Returns:
        Function of a parameter's name: True for the weight of a linear map of
        a hidden layer. It has two axes, or each of its units, and is no
        embedding, head or router.

    Example:
        >>> import paddle
        >>> from paddle_adagc.optimizers.muon import hidden_matrices
        >>> model = paddle.nn.Linear(4, 2)
        >>> is_matrix = hidden_matrices(model)
        >>> is_matrix(model.weight.name), is_matrix(model.bias.name)
        (True, False)
    """
    layout = read_layout(model)
    refuse_stage_3("Muon", layout)
    matrices = {
        parameter.name
        for parameter in unwrap(model).parameters()
        if _num_axes(parameter) == {2}
        and not layout[parameter.name].is_embedding
        and not _NOT_HIDDEN.search(layout[parameter.name].key)
    }
    return lambda name: name in matrices


def _num_axes(parameter: Tensor) -> set[int]:
    """Return how many axes a parameter has, or each of its units."""
    units = units_of(parameter)
    return {len(unit.shape) for unit in units} or {parameter.ndim}


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


class Muon(base.DecoupledOptimizer):
    r"""Muon (Jordan et al. 2024) for matrices, AdamW for all other weights.

    A matrix :math:`W` with gradient :math:`g` takes the step

    .. math::

        m &\leftarrow \mu m + (1 - \mu) g \\
        u &= \mu m + (1 - \mu) g \text{ with Nesterov, else } m \\
        W &\leftarrow (1 - \eta \lambda) W - \eta \, s \, \mathrm{NS}(u)

    with :func:`orthogonalize` as NS and the ``scaling`` as :math:`s`. NS is
    computed in the dtype of the weight or its master, float32 as a rule
    (Jordan's and PyTorch's implementations use bfloat16).

    A parameter that holds units (:mod:`paddle_adagc.parallel.units`: experts
    with three axes, or what ``clip.bind(model, units=...)`` declared before the
    first step) is orthogonalised unit by unit.

    Where tensor parallelism splits a matrix, the direction is gathered over its
    group (one all-gather per matrix and step), and each rank keeps its part of
    NS of the whole. Sharding that splits tensors (V2, stage 3) is refused, at
    the latest in the first step.

    Args:
        learning_rate: :math:`\eta`, a number or a scheduler.
        momentum: :math:`\mu`, decay of the momentum.
        nesterov: Look one step of the momentum ahead.
        num_iterations: Newton-Schulz iterations.
        scaling: :math:`s` of a weight ``[in, out]``. ``"spectral"``:
            ``sqrt(max(1, out / in))`` (Jordan et al. 2024). ``"rms"``:
            ``0.2 * sqrt(max(in, out))``, the size of AdamW's updates
            (Moonlight, arXiv 2502.16982, equation 4), so that AdamW's learning
            rate and weight decay fit both kinds of weights.
        parameters: Parameters, or groups of them.
        weight_decay: :math:`\lambda`, not negative.
        adamw_beta1: Decay of AdamW's first moment.
        adamw_beta2: Decay of AdamW's second moment.
        adamw_epsilon: Added to the root of AdamW's second moment.
        is_matrix_fun: Whether the parameter of this name is a matrix to
            orthogonalise; the embedding, the head and routers should not be.
            :func:`~paddle_adagc.optimizers.muon.hidden_matrices` makes one
            from a model. None: every parameter with two axes is one, or with
            units that have two.
        **shared: ``grad_clip``, ``apply_decay_param_fun``, ``multi_precision``
            and ``name`` of
            :class:`~paddle_adagc.optimizers.base.DecoupledOptimizer`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range. In the first step:
            ``is_matrix_fun`` chose a parameter that has not two axes, nor
            units that have.

    Example:
        >>> import paddle
        >>> from paddle_adagc import ClipGradByAdaGC
        >>> from paddle_adagc.optimizers.muon import Muon, hidden_matrices
        >>> model = paddle.nn.Linear(4, 2)
        >>> optimizer = Muon(
        ...     2e-2,
        ...     parameters=model.parameters(),
        ...     is_matrix_fun=hidden_matrices(model),
        ...     grad_clip=ClipGradByAdaGC(),
        ... )
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
    """

    _needs_whole_tensors = True

    def __init__(
        self,
        learning_rate: base.LearningRate,
        momentum: float = 0.95,
        nesterov: bool = True,
        num_iterations: int = 5,
        scaling: Scaling = "spectral",
        parameters: base.Parameters | None = None,
        weight_decay: float = 0.1,
        adamw_beta1: float = 0.9,
        adamw_beta2: float = 0.95,
        adamw_epsilon: float = 1e-8,
        is_matrix_fun: Callable[[str], bool] | None = None,
        **shared: Any,
    ) -> None:
        self._nesterov = bool(nesterov)
        self._num_iterations = check_integer(
            "num_iterations", num_iterations, 1
        )
        self._scaling = check_choice("scaling", scaling, get_args(Scaling))
        self._is_matrix_fun = is_matrix_fun
        options = {
            "momentum": momentum,
            "adamw_beta1": adamw_beta1,
            "adamw_beta2": adamw_beta2,
            "adamw_epsilon": adamw_epsilon,
            "weight_decay": weight_decay,
        }
        super().__init__(learning_rate, parameters, options, **shared)

    def _is_matrix(self, parameter: Tensor) -> bool:
        axes = _num_axes(parameter)
        if self._is_matrix_fun is None:
            return axes == {2}
        is_chosen = self._is_matrix_fun(parameter.name)
        if is_chosen and axes != {2}:
            raise ValueError(
                f"is_matrix_fun chose {parameter.name!r} of shape "
                f"{parameter.shape}: Muon orthogonalises matrices alone"
            )
        return is_chosen

    def _start(self, parameter: Tensor, options: base.Options) -> base.Start:
        if self._is_matrix(parameter):
            return {"momentum": None}
        return base.adam_start(options["adamw_beta1"], options["adamw_beta2"])

    def _update(self, step: base.Step) -> None:
        if "momentum" not in step.state:
            self._update_by_adamw(step)
            return
        moment, momentum = step.state["momentum"], step.options["momentum"]
        average = momentum * moment + (1 - momentum) * step.gradient
        paddle.assign(average, moment)
        direction = moment
        if self._nesterov:
            direction = momentum * moment + (1 - momentum) * step.gradient
        parts = base.Parts(step.parameter, num_axes=2)

        def change_of(matrix: Tensor) -> Tensor:
            num_in, num_out = matrix.shape
            if self._scaling == "spectral":
                scale = math.sqrt(max(1.0, num_out / num_in))
            else:
                scale = 0.2 * math.sqrt(max(num_in, num_out))
            return step.lr * scale * orthogonalize(matrix, self._num_iterations)

        units = units_of(step.parameter)
        if not units:
            step.take(parts.of_whole(change_of, direction))
            return
        change = paddle.empty_like(direction)
        for unit in units:
            matrix = unit.view(direction).reshape(unit.shape)
            part = parts.of_whole(change_of, matrix)
            paddle.assign(part.reshape(unit.view_shape), unit.view(change))
        step.take(change)

    def _update_by_adamw(self, step: base.Step) -> None:
        """Make a step by the operator of Paddle's own AdamW."""
        moment1, moment2, power1, power2 = step.state.values()
        options = step.options
        _C_ops.adamw_(
            *(step.weight, step.gradient, step.lr, moment1, moment2),
            None,  # AMSGrad's maximum
            *(power1, power2, None, None),  # master weight, found_inf
            options["adamw_beta1"],
            options["adamw_beta2"],
            options["adamw_epsilon"],
            1.0,  # lr_ratio
            options["weight_decay"],
            True,  # with_decay
            *(False, 1000),  # lazy_mode, its rows per thread
            *(False, False, False),  # multi_precision, global powers, AMSGrad
        )
