# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base of optimizers with decoupled weight decay; Adam's state.

Paddle manages accumulators, float32 master weights, parameter groups and which
weights decay. An optimizer adds its state and its rule. The accumulators have
the names of ``paddle.optimizer.AdamW``'s, so AdamW and an optimizer with Adam's
state can load each other's states.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import paddle
import paddle.distributed as dist
from paddle import Tensor
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


class Parts:
    """This rank's part of a tensor that tensor parallelism may split.

    ``num_axes`` is by default that of the parameter. An expert has one less
    than its stack.
    """

    def __init__(self, parameter: Tensor, num_axes: int | None = None) -> None:
        self.ranks, self.split_axis = Axis(), -1
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
        split_axis -= parameter.ndim - (num_axes or parameter.ndim)
        if split_axis >= 0:
            self.ranks, self.split_axis = topology.model, split_axis

    def of_whole(
        self, function: Callable[[Tensor], Tensor], part: Tensor
    ) -> Tensor:
        """Give the function the whole tensor; return this rank's part of it."""
        ranks, axis = self.ranks, self.split_axis
        if ranks.size == 1:
            return function(part)
        parts: list[Tensor] = []
        dist.all_gather(parts, part, group=ranks.group)
        whole = function(paddle.concat(parts, axis=axis))
        return paddle.split(whole, ranks.size, axis=axis)[ranks.rank]


LearningRate: TypeAlias = float | LRScheduler
Parameters = Sequence[Tensor] | Sequence[dict[str, Any]]
Options = Mapping[str, float]
"""The hyper-parameters of a parameter's group."""

Start = dict[str, float | None]
"""First value of an accumulator ``[1]``; None: zeros of the weight's shape."""


class Step(NamedTuple):
    """One step of one parameter."""

    parameter: Tensor  # for its name and marks
    weight: Tensor  # what changes in place: float64, or float32 (as the master)
    gradient: Tensor  # of the weight's dtype
    lr: Tensor  # learning rate, [], on the device, of the weight's dtype
    options: Options  # weight_decay is 0 where the parameter does not decay
    state: Mapping[str, Tensor]  # accumulators by name

    def take(self, change: Tensor) -> None:
        """Let the weight decay, and subtract ``change`` from it."""
        decayed = self.weight * (1 - self.lr * self.options["weight_decay"])
        paddle.assign(decayed - change, self.weight)


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
        learning_rate: LearningRate,
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

    @abc.abstractmethod
    def _start(self, parameter: Tensor, options: Options) -> Start:
        """Name a parameter's accumulators, and say how each starts."""

    def _check_sharding(self, names: Sequence[str] = ()) -> None:
        """Refuse sharding that gives the rule no whole tensors."""
        if not self._needs_whole_tensors:
            return
        rule, topology = type(self).__name__, read_topology()
        if topology.sharding.size > 1:
            if topology.splits_parameters:
                raise ValueError(
                    f"{rule} needs whole tensors, and sharding V2 splits them: "
                    "set sharding_configs.split_param to False (V1)"
                )
            if topology.fuses_parameters:
                raise ValueError(
                    f"{rule} needs each tensor by itself, and "
                    "sharding_configs.fuse_optimizer joins them: leave it or "
                    "tensor_fusion out"
                )
        refuse_stage_3(rule, names)

    def _add_param_group(self, param_group: dict[str, Any]) -> None:
        own = self._hyper_parameters
        known = ["params", "learning_rate", "grad_clip", *own]
        for key in param_group.keys() - {*known}:
            raise ValueError(
                f"unknown key {key!r} in a parameter group"
                f"{suggestion(key, known)}"
            )
        # Paddle would add a weight decay to the gradients.
        group = {k: v for k, v in param_group.items() if k not in own}
        super()._add_param_group(group)
        group |= _checked({k: param_group.get(k, v) for k, v in own.items()})

    def _options_of(self, target: Any) -> tuple[Options, Any]:
        """Hyper-parameters, and parameters, of a group or of no group."""
        if isinstance(target, dict):
            return target, target["params"]
        return self._hyper_parameters, target

    @eager
    def _create_accumulators(self, block: Any, parameters: Any) -> None:
        options, parameters = self._options_of(parameters)
        for parameter in parameters:
            if parameter.name in self._already_create_accumulator:
                continue
            self._check_sharding([parameter.name])
            refuse_freed(type(self).__name__, parameter)
            master = parameter
            if parameter.dtype in (paddle.float16, paddle.bfloat16):
                if not self._multi_precision:
                    raise ValueError(
                        f"{parameter.name} is {parameter.dtype}, which would "
                        "round small updates away: use multi_precision=True"
                    )
                master = self._create_master_weight(parameter)
            for name, start in self._start(parameter, options).items():
                dtype = paddle.int64 if isinstance(start, int) else master.dtype
                shape = None if start is None else [1]
                self._add_accumulator(name, master, dtype, start or 0.0, shape)
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
        state = {
            name: self._get_accumulator_master(name, parameter)
            for name in self._start(parameter, options)
        }
        decays = self._apply_decay_param_fun
        if decays is not None and not decays(parameter.name):
            options = {**options, "weight_decay": 0.0}
        weight = self._master_weights.get(parameter.name, parameter)
        if weight is parameter:
            refuse_freed(type(self).__name__, parameter)
        lr = self._create_param_lr((parameter, gradient)).reshape([])
        gradient, lr = gradient.astype(weight.dtype), lr.astype(weight.dtype)
        self._update(Step(parameter, weight, gradient, lr, options, state))
        if weight is not parameter:
            paddle.assign(weight.astype(parameter.dtype), parameter)


def adam_start(beta1: float, beta2: float) -> Start:
    """Averages of the gradient and of its square, and beta ** t of step t."""
    powers = {"beta1_pow_acc": beta1, "beta2_pow_acc": beta2}
    return {"moment1": None, "moment2": None, **powers}


_DECAYS = ("beta1", "beta2", "adamw_beta1", "adamw_beta2", "momentum")
_CHECKS = {
    **dict.fromkeys(_DECAYS, check_decay),
    "weight_decay": check_not_negative,
}


def _checked(values: Mapping[str, Any]) -> dict[str, float]:
    return {k: _CHECKS.get(k, check_positive)(k, v) for k, v in values.items()}
