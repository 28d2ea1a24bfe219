# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where a record is called: an optimizer's updates."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import paddle
from paddle.distributed.auto_parallel.api import _ShardOptimizer

from paddle_adagc.optimizer import inner_optimizer, innermost


def stepping(optimizer: Any) -> Any:
    """Return the optimizer whose ``_apply_optimize`` a step calls.

    The innermost one; but ``shard_optimizer``'s makes the step itself, and
    takes from the one inside only how one tensor is updated.
    """
    while not isinstance(optimizer, _ShardOptimizer):
        inner = inner_optimizer(optimizer)
        if inner is None:
            return optimizer
        optimizer = inner
    return optimizer


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer, of all its groups."""
    found: list[Any] = []
    for group in innermost(optimizer)._param_groups:
        found += group["params"] if isinstance(group, dict) else [group]
    return found


def model_parameters_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's parameters, as the model has them.

    Inside of fleet's ``fuse_optimizer`` they are buffers that join several.
    """
    original = getattr(optimizer, "_origin_parameter_list", None)
    return original or parameters_of(optimizer)


def gradients_of(optimizer: Any) -> list[tuple[Any, Any]]:
    """Return an optimizer's parameters with gradients, of all its groups."""
    pairs = []
    for parameter in parameters_of(optimizer):
        gradient = getattr(parameter, "main_grad", None)
        gradient = parameter.grad if gradient is None else gradient
        if not parameter.stop_gradient and gradient is not None:
            pairs.append((parameter, gradient))
    return pairs


def check_stepping(optimizer: Any) -> None:
    """Refuse an auto-parallel optimizer whose gradients cannot be seen."""
    is_inside = "_shard_fn" in vars(optimizer)  # of the wrapper
    if is_inside and not isinstance(optimizer, _ShardOptimizer):
        raise ValueError(
            f"shard_optimizer wraps this {type(optimizer).__name__}, and makes "
            "its steps: give Record the optimizer that it returned"
        )
    if getattr(optimizer, "enable_tensor_fusion", False):
        raise ValueError(
            "auto-parallel's tensor fusion adds up the gradients within the "
            "optimizer's step, where only its clip can measure them: leave "
            "_enable_tensor_fusion() out, or skip_above and (shadow=False) the "
            "shadow"
        )


def observe(optimizer: Any, record: Any) -> Callable[[], None]:
    """Show a record each update's gradients, before the clip.

    The update is made only if the record's ``_see`` returns True. ``optimizer``
    is the one whose method a step calls, see :func:`.stepping`.

    Returns:
        What ends it.
    """
    original = optimizer._apply_optimize
    before = vars(optimizer).get("_apply_optimize")  # another record's

    # A clip that is called within looks for a function of this name, and for
    # these variables of it and of its caller (find_caller()).
    def _apply_optimize(
        loss: Any,
        startup_program: Any,
        params_grads: Any,
        param_group_idx: int = 0,
    ) -> Any:
        self = optimizer
        param_group = sys._getframe(1).f_locals.get("param_group")
        given = loss, startup_program, params_grads, param_group_idx
        begins = not isinstance(params_grads, dict) or (
            param_group is optimizer._param_groups[0]
        )
        is_made = observed.record is None or record._see(params_grads, begins)
        result = original(*given) if is_made else []
        del self, param_group
        return result

    observed: Any = _apply_optimize
    observed.record = record
    optimizer.__dict__["_apply_optimize"] = observed

    def end() -> None:
        observed.record = None
        if vars(optimizer).get("_apply_optimize") is not observed:
            return  # a later record calls it
        del optimizer.__dict__["_apply_optimize"]
        if before is not None:
            optimizer.__dict__["_apply_optimize"] = before

    return end


def warn_of_blindness(directory: Any, kind: type) -> None:
    """Say that an optimizer of this class has made no step that is seen."""
    what_to_do = (
        "give Record the optimizer whose step() is called, after it is wrapped"
    )
    if issubclass(kind, paddle.optimizer.LBFGS):
        what_to_do = "its updates cannot be seen"
    warnings.warn(
        f"the record {directory} has seen no step of {kind.__name__}, so that "
        "nothing but the loss is recorded and no step is left out: "
        f"{what_to_do}",
        stacklevel=4,
    )
