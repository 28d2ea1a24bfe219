# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base of the optimizers: Paddle's side of a decoupled update.

Accumulators, float32 master weights, parameter groups and the choice of the
weights that decay are Paddle's; an optimizer adds its state and its rule.

Tensor parallelism splits a tensor along its ``split_axis``: what a rule
reduces over that axis is reduced over the ``mp`` group as well, in one
all-reduce, and what it needs whole is gathered. Owner-based sharding (V1, stage
2) leaves tensors whole; slices (V2, stage 3) and buffers that join tensors are
refused.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import paddle
import paddle.distributed as dist
from paddle import Tensor, _C_ops
from paddle.nn.clip import ClipGradBase
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from paddle_adagc.checks import (
    check_decay,
    check_not_negative,
    check_positive,
    suggestion,
)
from paddle_adagc.guards import eager
from paddle_adagc.parallel.layout import (
    is_expert,
    refuse_freed,
    refuse_stage_3,
    split_axis_of,
)
from paddle_adagc.parallel.topology import Axis, read_topology


def check_whole_tensors(what: str, names: Sequence[str] = ()) -> None:
    """Refuse sharding that gives the optimizer ``what`` no whole tensors."""
    topology = read_topology()
    if topology is not None and topology.sharding.size > 1:
        if topology.splits_parameters:
            raise ValueError(
                f"{what} needs whole tensors, and sharding V2 splits them: "
                "set sharding_configs.split_param to False (V1)"
            )
        if topology.fuses_parameters:
            raise ValueError(
                f"{what} needs each tensor by itself, and "
                "sharding_configs.fuse_optimizer joins them: leave it or "
                "tensor_fusion out"
            )
    refuse_stage_3(what, names)


class Parts:
    """This rank's part of a tensor, and what the whole is made of.

    Under tensor parallelism a parameter that ``is_distributed`` is a part of
    one; without a ``split_axis`` it is refused. Reductions keep all axes, those
    reduced over with size 1.
    """

    def __init__(self, parameter: Tensor) -> None:
        self._ranks, self._split_axis = Axis(), -1
        is_split = getattr(parameter, "is_distributed", False)
        if not is_split or is_expert(parameter):
            return
        topology = read_topology()
        if topology is None or topology.model.size == 1:
            return
        split_axis = split_axis_of(parameter)
        if split_axis is None:
            raise ValueError(
                f"{parameter.name} is split over tensor-parallel ranks, but "
                "nothing says along which axis: set its split_axis"
            )
        self._ranks, self._split_axis = topology.model, split_axis

    def sum(self, values: Tensor, axes: Sequence[int]) -> Tensor:
        """Sum over some axes of the whole tensor."""
        # Paddle takes no axes for all of them.
        total = values.sum(list(axes), keepdim=True) if axes else values
        if self._split_axis in axes:
            dist.all_reduce(total, dist.ReduceOp.SUM, self._ranks.group)
        return total

    def mean(self, values: Tensor) -> Tensor:
        """Mean of the whole tensor."""
        num_elements = values.size * self._ranks.size
        return self.sum(values, range(values.ndim)) / num_elements

    def max(self, values: Tensor) -> Tensor:
        """Largest element of the whole tensor."""
        largest = values.max([*range(values.ndim)], keepdim=True)
        if self._split_axis >= 0:
            dist.all_reduce(largest, dist.ReduceOp.MAX, self._ranks.group)
        return largest

    def min(self, values: Tensor) -> Tensor:
        """Smallest element of the whole tensor."""
        return -self.max(-values)

    def gather(self, part: Tensor) -> Tensor:
        """Return the whole tensor from the ranks' parts, in one all-gather."""
        if self._ranks.size == 1:
            return part
        parts: list[Tensor] = []
        dist.all_gather(parts, part, group=self._ranks.group)
        return paddle.concat(parts, axis=self._split_axis)

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor."""
        if self._ranks.size == 1:
            return whole
        parts = paddle.split(whole, self._ranks.size, axis=self._split_axis)
        return parts[self._ranks.rank]


_LOW_PRECISION = (paddle.float16, paddle.bfloat16)
_GROUP_KEYS = ("params", "learning_rate", "grad_clip")

Parameters = Sequence[Tensor] | Sequence[dict[str, Any]]
Options = Mapping[str, float]
"""The hyper-parameters of a parameter's group."""


class Step(NamedTuple):
    """One step of one parameter."""

    parameter: Tensor  # for its name, marks and accumulators
    weight: Tensor
    """What changes in place: the parameter, or in low precision its float32
    values. float32 or float64."""

    gradient: Tensor  # of the weight's dtype
    lr: Tensor  # learning rate, [], on the device, of the weight's dtype

    options: Options
    """``weight_decay`` is 0 where the parameter does not decay."""

    def take(self, change: Tensor) -> None:
        """Let the weight decay, and subtract ``change`` from it."""
        decayed = self.weight * (1 - self.lr * self.options["weight_decay"])
        assign_(self.weight, decayed - change)


class DecoupledOptimizer(Optimizer, abc.ABC):
    """A Paddle optimizer whose weight decay is decoupled from the gradient.

    In every step each weight that decays is multiplied by ``1 - learning_rate *
    weight_decay``. Weights in bfloat16 or float16 are updated in float32; the
    state is float32. A step never waits for the device.

    Args:
        learning_rate: A number or a scheduler.
        parameters: Parameters, or groups of them. A group is a dict of
            ``params`` and, if it wishes, ``learning_rate`` (a factor of the
            optimizer's, as in Paddle), ``grad_clip`` and any of the
            hyper-parameters.
        hyper_parameters: By name: decays of moving averages (``"beta..."``,
            ``"momentum"``) in [0, 1), ``"weight_decay"`` not negative, anything
            else positive.
        apply_decay_param_fun: Whether the parameter of this name decays; None:
            all do.
        grad_clip: Clips the gradients first.
        multi_precision: Keep float32 master weights of low-precision weights.
        name: Prefix of the accumulators' names.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A hyper-parameter is out of range, a parameter group holds
            an unknown key, or sharding splits tensors that the rule needs
            whole.
        RuntimeError: Paddle is in static-graph mode.
    """

    _needs_whole_tensors = False
    """Whether the rule looks at more than one element of a tensor at a time."""

    def __init__(
        self,
        learning_rate: float | LRScheduler,
        parameters: Parameters | None,
        hyper_parameters: Options,
        *,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        grad_clip: ClipGradBase | None = None,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        if not paddle.in_dynamic_mode():
            raise RuntimeError(
                f"{type(self).__name__} works in dynamic-graph mode alone: "
                "call paddle.disable_static()"
            )
        self._hyper_parameters = _checked(hyper_parameters)
        self._apply_decay_param_fun = apply_decay_param_fun
        self._multi_precision = bool(multi_precision)
        self._check_sharding()
        super().__init__(
            learning_rate, parameters, grad_clip=grad_clip, name=name
        )

    @abc.abstractmethod
    def _add_state(
        self, parameter: Tensor, held: Tensor, options: Options
    ) -> None:
        """Add a parameter's accumulators, for its master weight if ``held``."""

    @abc.abstractmethod
    def _update(self, step: Step) -> None:
        """Make one step of one parameter, in place."""

    def _add(
        self,
        held: Tensor,
        name: str,
        start: float = 0.0,
        shape: list[int] | None = None,
    ) -> None:
        """Add an accumulator: float64 of a float64 parameter, else float32."""
        is_low = held.dtype in _LOW_PRECISION
        dtype = paddle.float32 if is_low else held.dtype
        self._add_accumulator(name, held, dtype, start, shape)

    def _state_of(self, parameter: Tensor, *names: str) -> list[Tensor]:
        return [self._get_accumulator_master(n, parameter) for n in names]

    def _check_sharding(self, names: Sequence[str] = ()) -> None:
        if self._needs_whole_tensors:
            check_whole_tensors(type(self).__name__, names)

    def _add_param_group(self, param_group: dict[str, Any]) -> None:
        options = {k: v for k, v in param_group.items() if k not in _GROUP_KEYS}
        for key in options.keys() - self._hyper_parameters.keys():
            known = [*_GROUP_KEYS, *self._hyper_parameters]
            raise ValueError(
                f"unknown key {key!r} in a parameter group"
                f"{suggestion(key, known)}"
            )
        group = {k: v for k, v in param_group.items() if k in _GROUP_KEYS}
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else params
        own = [(parameter, parameter.regularizer) for parameter in params]
        # Paddle would put the group's L2 term, which is None here, in place of
        # the parameters' own regularizers.
        super()._add_param_group(group)
        for parameter, regularizer in own:
            parameter.regularizer = regularizer
        group |= {**self._hyper_parameters, **_checked(options)}

    def _options_of(self, target: Any) -> tuple[Options, Any]:
        """Hyper-parameters, and parameters, of a group or of no group."""
        if not isinstance(target, dict):
            return self._hyper_parameters, target
        options = {key: target[key] for key in self._hyper_parameters}
        return options, target["params"]

    @eager
    def _create_accumulators(self, block: Any, parameters: Any) -> None:
        options, parameters = self._options_of(parameters)
        known = self._already_create_accumulator
        new = [p for p in parameters if p.name not in known]
        if new:
            self._check_sharding([parameter.name for parameter in new])
        for parameter in new:
            refuse_freed(type(self).__name__, parameter)
            held = parameter
            if parameter.dtype in _LOW_PRECISION:
                if self._multi_precision:
                    held = self._create_master_weight(parameter)
                else:
                    warnings.warn(
                        f"{parameter.name} is {parameter.dtype} without a "
                        "master weight: updates smaller than its rounding are "
                        "lost; use multi_precision=True",
                        stacklevel=3,
                    )
            self._add_state(parameter, held, options)
            self._already_create_accumulator.add(parameter.name)

    @eager
    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> None:
        options, (parameter, gradient) = self._options_of(param_and_grad)
        if gradient.is_selected_rows():
            raise TypeError(
                f"the gradient of {parameter.name} is sparse, which "
                f"{type(self).__name__} does not take: make the embedding with "
                "sparse=False"
            )
        decays = self._apply_decay_param_fun
        if decays is not None and not decays(parameter.name):
            options = {**options, "weight_decay": 0.0}
        weight = parameter
        if parameter.name not in self._master_weights:
            refuse_freed(type(self).__name__, parameter)
        if parameter.dtype in _LOW_PRECISION:
            weight = (
                self._master_weights[parameter.name]
                if self._multi_precision
                else parameter.astype("float32")
            )
        lr = self._create_param_lr((parameter, gradient))
        lr = _as(lr, weight).reshape([])
        self._update(
            Step(parameter, weight, _as(gradient, weight), lr, options)
        )
        if weight is not parameter:
            assign_(parameter, weight.astype(parameter.dtype))


def assign_(target: Tensor, value: Tensor) -> None:
    """Overwrite a tensor with another of its shape and dtype."""
    _C_ops.assign_out_(value, target)


def _as(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor if tensor.dtype == like.dtype else tensor.astype(like.dtype)


def _checked(values: Mapping[str, Any]) -> dict[str, float]:
    checked = {}
    for name, value in values.items():
        if name == "weight_decay":
            checked[name] = check_not_negative(name, value)
        elif "beta" in name or name == "momentum":
            checked[name] = check_decay(name, value)
        else:
            checked[name] = check_positive(name, value)
    return checked
