# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Paddle's side of a decoupled update, Adam's state, and parts of tensors.

Accumulators, float32 master weights, parameter groups and the choice of the
weights that decay are Paddle's; an optimizer adds its state and its rule. With
the names of ``paddle.optimizer.AdamW``'s accumulators: an optimizer with no
other state than Adam's and AdamW load each other's.
"""

from __future__ import annotations

import abc
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
    if topology.sharding.size > 1:
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
    """This rank's part of a tensor that tensor parallelism may split.

    A reduction is over the whole tensor, by one all-reduce; it keeps all axes,
    those reduced over with size 1.
    """

    def __init__(self, parameter: Tensor) -> None:
        self._ranks, self._split_axis = Axis(), -1
        is_split = getattr(parameter, "is_distributed", False)
        if not is_split or is_expert(parameter):
            return
        topology = read_topology()
        if topology.model.size == 1:
            return
        split_axis = split_axis_of(parameter)
        if split_axis is None:
            raise ValueError(
                f"{parameter.name} is split over tensor-parallel ranks, but "
                "nothing says along which axis: set its split_axis"
            )
        self._ranks, self._split_axis = topology.model, split_axis

    def sum(self, values: Tensor, axes: Sequence[int]) -> Tensor:
        # Paddle takes no axes for all of them.
        total = values.sum(list(axes), keepdim=True) if axes else values
        if self._split_axis in axes:
            dist.all_reduce(total, dist.ReduceOp.SUM, self._ranks.group)
        return total

    def mean(self, values: Tensor) -> Tensor:
        num_elements = values.size * self._ranks.size
        return self.sum(values, range(values.ndim)) / num_elements

    def max(self, values: Tensor) -> Tensor:
        largest = values.max([*range(values.ndim)], keepdim=True)
        if self._split_axis >= 0:
            dist.all_reduce(largest, dist.ReduceOp.MAX, self._ranks.group)
        return largest

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


_GROUP_KEYS = ("params", "learning_rate", "grad_clip")

Parameters = Sequence[Tensor] | Sequence[dict[str, Any]]
Options = Mapping[str, float]
"""The hyper-parameters of a parameter's group."""

ADAM_STATE = ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")
"""Moving averages of the gradient and of its square, of the weight's shape; and
each beta ** t of the coming step t, from 1, ``[1]``."""


class Step(NamedTuple):
    """One step of one parameter."""

    parameter: Tensor  # for its name, marks and accumulators
    weight: Tensor  # what changes in place: float64, or float32 (as the master)
    gradient: Tensor  # of the weight's dtype
    lr: Tensor  # learning rate, [], on the device, of the weight's dtype
    options: Options  # weight_decay is 0 where the parameter does not decay

    def take(self, change: Tensor) -> None:
        """Let the weight decay, and subtract ``change`` from it."""
        decayed = self.weight * (1 - self.lr * self.options["weight_decay"])
        assign_(self.weight, decayed - change)


class DecoupledOptimizer(Optimizer, abc.ABC):
    """A Paddle optimizer whose weight decay is decoupled from the gradient.

    In every step each weight that decays is multiplied by ``1 - learning_rate *
    weight_decay``. A step never waits for the device.

    Args:
        learning_rate: A number or a scheduler.
        parameters: Parameters, or groups of them. A group is a dict of
            ``params`` and, if it wishes, ``learning_rate`` (a factor of the
            optimizer's, as in Paddle), ``grad_clip`` and any of the
            hyper-parameters.
        hyper_parameters: By name, all positive but decays of moving averages
            (``beta1`` and ``beta2`` of Adam's moments, ``momentum``), in [0,
            1), and ``weight_decay``, not negative. ``epsilon`` is added to the
            square root of the second moment.
        apply_decay_param_fun: Whether the parameter of this name decays; None:
            all do.
        grad_clip: Clips the gradients first.
        multi_precision: Take weights in bfloat16 and float16, with float32
            master weights, which are updated.
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
    def _update(self, step: Step) -> None:
        """Make one step of one parameter, in place."""

    def _add_state(
        self, parameter: Tensor, held: Tensor, options: Options
    ) -> None:
        """Add Adam's accumulators; ``held`` is the parameter or its master."""
        self._add_adam_state(held, options["beta1"], options["beta2"])

    def _add_adam_state(self, held: Tensor, beta1: float, beta2: float) -> None:
        for name in ("moment1", "moment2"):
            self._add(held, name)
        for name, beta in (("beta1_pow_acc", beta1), ("beta2_pow_acc", beta2)):
            self._add_accumulator(name, held, held.dtype, beta, [1])

    def _add(self, held: Tensor, name: str) -> None:
        self._add_accumulator(name, held, held.dtype)

    def _state_of(self, parameter: Tensor, *names: str) -> list[Tensor]:
        return [self._get_accumulator_master(n, parameter) for n in names]

    def _moments(self, step: Step, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Put a gradient into Adam's state; give the moments without bias."""
        moment1, moment2, *powers = self._state_of(step.parameter, *ADAM_STATE)
        beta1, beta2 = step.options["beta1"], step.options["beta2"]
        return (
            _advance(moment1, powers[0], beta1, gradient),
            _advance(moment2, powers[1], beta2, gradient.square()),
        )

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
        super()._add_param_group(group)
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
            if parameter.dtype in (paddle.float16, paddle.bfloat16):
                if not self._multi_precision:
                    raise ValueError(
                        f"{parameter.name} is {parameter.dtype}, which would "
                        "round small updates away: use multi_precision=True"
                    )
                held = self._create_master_weight(parameter)
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
        weight = self._master_weights.get(parameter.name, parameter)
        if weight is parameter:
            refuse_freed(type(self).__name__, parameter)
        lr = self._create_param_lr((parameter, gradient)).reshape([])
        gradient, lr = gradient.astype(weight.dtype), lr.astype(weight.dtype)
        self._update(Step(parameter, weight, gradient, lr, options))
        if weight is not parameter:
            assign_(parameter, weight.astype(parameter.dtype))


def assign_(target: Tensor, value: Tensor) -> None:
    """Overwrite a tensor with another of its shape and dtype."""
    _C_ops.assign_out_(value, target)


def square_root(x: Tensor) -> Tensor:
    """Square root; on CPUs correctly rounded, as :func:`.rule.square_root`."""
    if not x.place.is_cpu_place():
        return x.sqrt()
    return x.astype("float64").sqrt().astype(x.dtype)


def adam_direction(mean: Tensor, square: Tensor, epsilon: float) -> Tensor:
    """Adam's update before the learning rate, from moments without bias."""
    return mean / (square_root(square) + epsilon)


def _advance(
    moment: Tensor, power: Tensor, beta: float, value: Tensor
) -> Tensor:
    """Put a value into a moving average; return that without its bias to 0."""
    assign_(moment, beta * moment + (1 - beta) * value)
    unbiased = moment / (1 - power.reshape([]))
    assign_(power, power * beta)
    return unbiased


def _checked(values: Mapping[str, Any]) -> dict[str, float]:
    checked = {}
    for name, value in values.items():
        check = check_positive
        if name == "weight_decay":
            check = check_not_negative
        elif "beta" in name or name == "momentum":
            check = check_decay
        checked[name] = check(name, value)
    return checked
