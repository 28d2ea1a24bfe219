# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdamW on CPUs with the same roundings on every processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from paddle import Tensor, _C_ops

from paddle_adagc.kernels.build import load_library
from paddle_adagc.kernels.facts import DTYPES, describe
from paddle_adagc.kernels.host import HostTensors

_OPERATORS: Any = _C_ops
_OPERATOR: Any = _C_ops.adamw_


def replace_adamw() -> bool:
    """Let every optimizer that steps by Paddle's AdamW use the compiled loop.

    Returns:
        Whether the loop is there; without it Paddle's operator stays.
    """
    if load_library() is None:
        return False
    _OPERATORS.adamw_ = adamw_
    return True


def adamw_(
    weight: Tensor,
    gradient: Tensor,
    lr: Tensor,
    moment1: Tensor,
    moment2: Tensor,
    moment2_max: Tensor | None,
    beta1_power: Tensor,
    beta2_power: Tensor,
    master_weight: Tensor | None,
    found_inf: Tensor | None,
    beta1: float,
    beta2: float,
    epsilon: float,
    lr_ratio: float,
    weight_decay: float,
    with_decay: bool,
    *options: Any,
) -> tuple[Tensor | None, ...]:
    """One step in place, with the signature of Paddle's operator.

    Dense float32 tensors in host memory take the loop of ``host.cpp``, which
    rounds like the AVX-512 kernel of Paddle 3.3.1; all others, AMSGrad, and a
    learning rate of its own per layer (``lr_ratio``) take Paddle's operator.

    Args:
        weight: Any shape; the gradient and both moments have the same.
        gradient: Not changed.
        lr: Learning rate, one element, float32 or float64.
        moment1: Moving average of the gradient.
        moment2: Moving average of its square.
        moment2_max: AMSGrad's maximum.
        beta1_power: ``beta1 ** t``, ``[1]``; multiplied by beta1.
        beta2_power: ``beta2 ** t``, ``[1]``; multiplied by beta2.
        master_weight: Of a weight in low precision.
        found_inf: Skips the step where true.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        lr_ratio: Factor of the learning rate.
        weight_decay: Decoupled weight decay.
        with_decay: Whether the weight decays.
        options: The operator's other arguments.

    Returns:
        The tensors that changed, in the operator's order.
    """
    rest = (moment2_max, master_weight, found_inf)
    dense = [weight, gradient, moment1, moment2]
    powers = [beta1_power, beta2_power]
    takes_loop = (
        all(other is None for other in rest)
        and lr_ratio == 1.0
        and not gradient.is_selected_rows()
        and _are_float32_on_host([*dense, *powers])
    )
    if not takes_loop:
        outputs: tuple[Tensor | None, ...] = _OPERATOR(
            weight,
            gradient,
            lr,
            moment1,
            moment2,
            moment2_max,
            *powers,
            master_weight,
            found_inf,
            beta1,
            beta2,
            epsilon,
            lr_ratio,
            weight_decay,
            with_decay,
            *options,
        )
        return outputs
    held = np.array([power.item() for power in powers], np.float32)
    library = load_library()
    assert library is not None
    library.adagc_adamw(
        *(tensor.data_ptr() for tensor in dense),
        weight.get_tensor()._numel(),
        held.ctypes.data,
        lr.item(),
        beta1,
        beta2,
        epsilon,
        weight_decay if with_decay else 0.0,
    )
    for power, beta in zip(powers, (beta1, beta2), strict=True):
        power.scale_(beta)
    return (weight, moment1, moment2, None, *powers, None)


def _are_float32_on_host(tensors: list[Tensor]) -> bool:
    facts = describe(tensors)
    is_float32 = facts["dtype"] == DTYPES.index(paddle.float32)
    return bool(
        HostTensors.is_available()
        and np.all(HostTensors.can_take(facts) & is_float32)
    )
