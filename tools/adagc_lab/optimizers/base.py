# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The base of the laboratory's optimizers; Adam's state.

Paddle manages accumulators, float32 master weights and which weights decay. An
optimizer adds its state and its rule. Accumulators have the names of
``paddle.optimizer.AdamW``'s.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import paddle
from paddle import Tensor
from paddle.nn.clip import ClipGradBase
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from paddle_adagc.checks import (
    check_decay,
    check_positive,
    check_real,
)
from paddle_adagc.parallel.topology import read_topology

LearningRate: TypeAlias = float | LRScheduler
Options: TypeAlias = Mapping[str, float]
Start: TypeAlias = dict[str, float | None]
"""First value of an accumulator ``[1]``; None: zeros of the weight's shape."""


class ParameterStep(NamedTuple):
    """One step of one parameter."""

    parameter: Tensor  # for its name and marks
    weight: Tensor  # what changes in place: float32, or the float32 master
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
    weight_decay``. A step never waits for the device. One parameter group.

    Args:
        learning_rate: A number or a scheduler.
        parameters: Parameters.
        hyper_parameters: By name, all positive but decays of moving averages
            (``beta1``, ``beta2``, ``momentum``), in [0, 1), and
            ``weight_decay``, not negative.
        apply_decay_param_fun: Whether the parameter of this name decays; None:
            all do.
        grad_clip: Clips the gradients first.
        multi_precision: Take weights in bfloat16 and float16, with float32
            master weights, which are updated.
        name: Prefix of the accumulators' names.
    """

    needs_whole_tensors = False
    """Whether the rule looks at more than one element of a tensor at a time."""

    def __init__(
        self,
        learning_rate: LearningRate,
        parameters: Sequence[Tensor] | None,
        hyper_parameters: Options,
        *,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        grad_clip: ClipGradBase | None = None,
        multi_precision: bool = False,
        name: str | None = None,
    ) -> None:
        self._options = {
            key: _CHECKS.get(key, check_positive)(key, value)
            for key, value in hyper_parameters.items()
        }
        self._decays = apply_decay_param_fun
        self._multi_precision = bool(multi_precision)
        if self.needs_whole_tensors:
            _refuse_split_tensors(type(self).__name__)
        super().__init__(
            learning_rate, parameters, grad_clip=grad_clip, name=name
        )

    @abc.abstractmethod
    def _update(self, step: ParameterStep) -> None:
        """Make one step of one parameter, in place."""

    @abc.abstractmethod
    def _start(self, parameter: Tensor) -> Start:
        """Name a parameter's accumulators, and say how each starts."""

    def _create_accumulators(self, block: Any, parameters: Any) -> None:
        for parameter in parameters:
            if parameter.name in self._already_create_accumulator:
                continue
            master = parameter
            if parameter.dtype in (paddle.float16, paddle.bfloat16):
                if not self._multi_precision:
                    raise ValueError(
                        f"{parameter.name} is {parameter.dtype}, which would "
                        "round small updates away: use multi_precision=True"
                    )
                master = self._create_master_weight(parameter)
            for name, start in self._start(parameter).items():
                dtype = paddle.int64 if isinstance(start, int) else master.dtype
                shape = None if start is None else [1]
                self._add_accumulator(name, master, dtype, start or 0.0, shape)
            self._already_create_accumulator.add(parameter.name)

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> None:
        parameter, gradient = param_and_grad
        state = {
            name: self._get_accumulator_master(name, parameter)
            for name in self._start(parameter)
        }
        options = self._options
        if self._decays is not None and not self._decays(parameter.name):
            options = {**options, "weight_decay": 0.0}
        weight = self._master_weights.get(parameter.name, parameter)
        lr = self._create_param_lr((parameter, gradient)).reshape([])
        gradient, lr = gradient.astype(weight.dtype), lr.astype(weight.dtype)
        self._update(
            ParameterStep(parameter, weight, gradient, lr, options, state)
        )
        if weight is not parameter:
            paddle.assign(weight.astype(parameter.dtype), parameter)


def _refuse_split_tensors(rule: str) -> None:
    """Refuse tensor parallelism and sharding V2, which split tensors."""
    topology = read_topology()
    if topology.model.size > 1:
        raise ValueError(
            f"{rule} needs whole tensors, and tensor parallelism over "
            f"{topology.model.size} ranks splits them: use data parallelism or "
            "sharding V1"
        )
    if topology.sharding.size > 1 and topology.splits_parameters:
        raise ValueError(
            f"{rule} needs whole tensors, and sharding V2 splits them: set "
            "sharding_configs.split_param to False (V1)"
        )


def _check_not_negative(name: str, value: Any) -> float:
    """Return a real number of at least 0 as a float; refuse others."""
    if (number := check_real(name, value)) < 0:
        raise ValueError(f"{name} must not be negative, got {value!r}")
    return number


_CHECKS = {
    **dict.fromkeys(("beta1", "beta2", "momentum"), check_decay),
    "weight_decay": _check_not_negative,
}


class AdamLike(DecoupledOptimizer):
    """An optimizer with Adam's accumulators, by the names of Paddle's AdamW."""

    def _start(self, parameter: Tensor) -> Start:
        powers = {f"beta{i}_pow_acc": self._options[f"beta{i}"] for i in (1, 2)}
        return {"moment1": None, "moment2": None, **powers}


def adam_update(step: ParameterStep, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Put a gradient into Adam's state.

    Returns Adam's update before the learning rate, and the second moment
    without bias to 0.
    """
    means = []
    for i, value in ((1, gradient), (2, gradient.square())):
        beta, moment = step.options[f"beta{i}"], step.state[f"moment{i}"]
        power = step.state[f"beta{i}_pow_acc"]
        paddle.assign(beta * moment + (1 - beta) * value, moment)
        means.append(moment / (1 - power.reshape([])))
        paddle.assign(power * beta, power)
    mean, square = means
    return mean / (square_root(square) + step.options["epsilon"]), square


def square_root(x: Tensor) -> Tensor:
    """Square root; on CPUs correctly rounded, as the clips' own."""
    if not x.place.is_cpu_place():
        return x.sqrt()
    return x.astype("float64").sqrt().astype(x.dtype)
