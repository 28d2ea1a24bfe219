# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AGC: clipping of each unit's gradient by the norm of its weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import paddle
from paddle import Tensor, _C_ops

from paddle_adagc import rule
from paddle_adagc.checks import Argument, check_positive
from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.gradients import HALF_CLIPPED, NonFinite
from paddle_adagc.clips.lookup import Found
from paddle_adagc.clips.step import Decision, Step
from paddle_adagc.clips.tensors import Tensors
from paddle_adagc.kernels.operators import dense_float
from paddle_adagc.parallel.layout import TensorLayout, refuse_freed
from paddle_adagc.parallel.meshes import local_value
from paddle_adagc.parallel.topology import Topology

_SMALLEST_NORM = 1e-6
_ROUNDING = 1e-6  # of a tensor's norm, measured in two ways
_HEAD = "lm_head.weight"


class ClipGradByAGC(TensorScalingClip):
    r"""Adaptive gradient clipping in its gradient form (Brock et al. 2021).

    With :math:`G_u` the gradient and :math:`W_u` the weights of a unit (arXiv
    2102.06171, equation 3):

    .. math::

        G_u \leftarrow \lambda \frac{\max(\|W_u\|, \epsilon)}{\max(\|G_u\|,
        10^{-6})} G_u \quad \text{if } \|G_u\| > \lambda \max(\|W_u\|,
        \epsilon)

    A unit is what makes one output: a column of a linear weight ``[in, out]``,
    a row of an embedding ``[vocabulary, hidden]`` (known as such after
    :meth:`bind`), a filter ``[in, ...]`` of a convolution ``[out, in, ...]``;
    a vector is one unit. As in the original the final layer is left alone: a
    bound language model's ``lm_head.weight``. A parameter that holds several of
    the paper's tensors (:mod:`paddle_adagc.parallel.units`: experts, a fused
    qkv) has the units of each of these. optax chooses other axes: it sums 2-D
    and 3-D tensors over the first axis, and takes ``[1, n]`` as one unit.

    Where tensor parallelism splits units, their norms are summed over its
    group, in one all-reduce. A slice of sharding V2 cuts through units: it is
    refused.

    Args:
        lambda_rel: :math:`\lambda`; the original's default 0.01, the AdaGC
            paper uses 0.001.
        epsilon: :math:`\epsilon`, least weight norm.
        nonfinite: As for :class:`paddle_adagc.ClipGradByAdaGC`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is not positive; in :meth:`bind`, the layout
            cuts through units.

    Example:
        >>> import paddle
        >>> from paddle_adagc import ClipGradByAGC
        >>> model = paddle.nn.Linear(4, 2)
        >>> clip = ClipGradByAGC(lambda_rel=0.01)
        >>> clip.bind(model)
        >>> optimizer = paddle.optimizer.AdamW(
        ...     3e-4, parameters=model.parameters(), grad_clip=clip
        ... )
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
        >>> clip.metrics()["clipped_fraction"]
        1.0
    """

    needs_whole_tensors = True

    lambda_rel = Argument(check_positive)
    epsilon = Argument(check_positive)

    def __init__(
        self,
        lambda_rel: float = 0.01,
        epsilon: float = 1e-3,
        *,
        nonfinite: NonFinite = "zero",
    ) -> None:
        super().__init__(nonfinite=nonfinite)
        self.lambda_rel, self.epsilon = lambda_rel, epsilon

    def check_layout(
        self, layout: Sequence[TensorLayout], topology: Topology
    ) -> None:
        """Refuse slices of tensors, and parts along an unknown axis."""
        if topology.splits_parameters and topology.sharding.size > 1:
            raise ValueError(
                "AGC under sharding V2 (split_param) or stage 3: a slice cuts "
                "through units; use sharding V1 or stage 2"
            )
        for tensor in layout if topology.model.size > 1 else ():
            is_unknown = tensor.is_tp_split and tensor.split_axis is None
            if is_unknown and tensor.takes_part and tensor.key != _HEAD:
                raise ValueError(
                    f"{tensor.key} is split over tensor-parallel ranks, but "
                    "nothing says along which axis: set its split_axis"
                )

    def advance(self, step: Step) -> Decision:
        """Decide about units later, tensor by tensor."""
        return Decision(paddle.ones_like(step.norm), {})

    def _scale_(
        self, found: Found, step: Step, h: Tensor, discard: Tensor | None
    ) -> Tensor:
        norm = step.norm
        finite = paddle.isfinite(norm)
        if discard is not None:
            found.gradients.scale_(h, discard)
        copies: list[tuple[Tensor, Tensor]] = []
        units = self._find_units(found, step.tensors, copies)
        _sum_split_units(units, step)
        squared = [paddle.zeros([1], "float32")] * len(step.keys)
        try:
            for index, unit in units.items():
                squared[index] = unit.clip_(
                    self.lambda_rel, self.epsilon, finite[index]
                )
            for copy, gradient in copies:
                _C_ops.assign_out_(copy, gradient)
        except Exception as error:
            raise RuntimeError(HALF_CLIPPED) from error
        whole = step.reducer.local_norms(paddle.concat(squared))
        share = rule.square_root(whole) / norm
        share = paddle.where(share > 1 - _ROUNDING, paddle.ones_like(h), share)
        is_known = paddle.logical_and(finite, whole > 0)
        return paddle.where(is_known, share, h)

    def _find_units(
        self, found: Found, known: Tensors, copies: list[tuple[Tensor, Tensor]]
    ) -> dict[int, _Units]:
        """Measure the units of each tensor that is clipped, by its index.

        Parts of a strided gradient have no view: ``copies`` gets its copy,
        which they are views of, and itself.
        """
        units = {}
        layout = known.layout  # none before bind()
        for first, pair in zip(found.indexes, found.pairs, strict=True):
            parameter, gradient = pair
            refuse_freed("AGC", parameter)
            if 0 in parameter.shape:  # Paddle 3.1: no place
                continue
            weight = local_value(parameter)
            parts = known.units.get(first, ())
            if parts and not gradient.is_contiguous():
                copies.append((_C_ops.assign(gradient), gradient))
                gradient = copies[-1][0]
            tensors = [
                (unit.view(weight), unit.view(gradient), unit.shape)
                for unit in parts
            ] or [(weight, gradient, weight.shape)]
            for index, tensor in enumerate(tensors, first):
                if known.keys[index] != _HEAD:
                    is_embedding = bool(layout) and layout[index].is_embedding
                    units[index] = _Units(*tensor, is_embedding)
        return units


def _sum_split_units(units: dict[int, _Units], step: Step) -> None:
    """Sum the norms of units that tensor parallelism splits.

    One vector in the model's order, whichever gradients a rank has.
    """
    reducer = step.reducer
    if reducer.num_tp_ranks == 1:
        return
    parts: dict[int, Tensor] = {}
    for index, tensor in enumerate(step.tensors.layout):
        if num_units := _num_split_units(tensor):
            parts[index] = paddle.zeros([2 * num_units], "float32")
            if index in units:
                parts[index] = paddle.concat(units[index].squared_norms)
    if not parts:
        return
    sizes = [part.shape[0] for part in parts.values()]
    whole = reducer.sum_over_tp(paddle.concat([*parts.values()]))
    for index, sums in zip(parts, paddle.split(whole, sizes), strict=True):
        if index in units:
            units[index].squared_norms = paddle.split(sums, 2)


class _Units:
    """One tensor's units: their squared norms, and how to scale them."""

    def __init__(
        self,
        parameter: Tensor,
        gradient: Tensor,
        shape: Sequence[int],
        is_embedding: bool,
    ) -> None:
        self._target = gradient
        self._inverse: Tensor | None = None
        weights = parameter
        if gradient.is_selected_rows():
            is_embedding = True
            # A row may be stored in several parts; its norm is of their sum.
            rows, inverse = np.unique(gradient.rows(), return_inverse=True)
            self._inverse = paddle.to_tensor(inverse.reshape(-1))
            self._target = gradient._get_tensor_from_selected_rows()
            gradient = paddle.zeros(
                [len(rows), parameter.shape[1]], "float32"
            ).index_add(self._inverse, 0, self._target.astype("float32"))
            weights = paddle.gather(parameter, paddle.to_tensor(rows))
            shape = self._target.shape
        else:  # a view of groups that repeat has an axis more
            weights, gradient = weights.reshape(shape), gradient.reshape(shape)
        self._shape = shape
        axes = unit_axes(len(shape), is_embedding)
        self._unit_shape = [
            1 if axis in axes else size for axis, size in enumerate(shape)
        ]
        self.squared_norms = [  # of weights and gradient, float32 [num_units]
            tensor.astype("float32").square().sum(axes).reshape([-1])
            for tensor in (weights, gradient)
        ]
        self._local = self.squared_norms[1]

    def clip_(
        self, lambda_rel: float, epsilon: float, finite: Tensor
    ) -> Tensor:
        """Scale where ``finite``, bool ``[]``; return the new squared norm."""
        weight, norm = map(rule.square_root, self.squared_norms)
        bound = lambda_rel * weight.clip(min=epsilon)
        h = bound / norm.clip(min=_SMALLEST_NORM)
        is_clipped = paddle.logical_and(norm > bound, finite)
        h = paddle.where(is_clipped, h, paddle.ones_like(h))
        squared_norm = (h.square() * self._local).sum(keepdim=True)
        if self._inverse is not None:
            h = paddle.gather(h, self._inverse)
        target = self._target
        wide = dense_float(target).reshape(self._shape)
        scaled = wide * h.astype(wide.dtype).reshape(self._unit_shape)
        paddle.assign(scaled.astype(target.dtype).reshape(target.shape), target)
        return squared_norm


def unit_axes(num_axes: int, is_embedding: bool) -> tuple[int, ...]:
    """Return the axes along which a unit of :class:`ClipGradByAGC` lies."""
    if num_axes == 2 and not is_embedding:
        return (0,)
    return tuple(range(1 if num_axes > 1 else 0, num_axes))


def _num_split_units(tensor: TensorLayout) -> int:
    """Return the number of units with parts on several ranks."""
    axes = unit_axes(len(tensor.shape), tensor.is_embedding)
    if not tensor.is_tp_split or tensor.split_axis not in axes:
        return 0
    return math.prod(
        size for axis, size in enumerate(tensor.shape) if axis not in axes
    )
