# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The scalars that a process differentiates: the losses of any loop.

Paddle is imported within functions, because ``adagc-run`` imports this module
while Paddle is imported.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import Any

from paddle_adagc.checks import as_float

RECORDS: list[Any] = []
"""Those that see the losses: ``backward()`` begins their next step."""

_seen: deque[Any] = deque(maxlen=4096)
_scaled: tuple[Any, Any] = (None, None)  # by a GradScaler, and as before


def scalar(loss: Any) -> Any:
    """Return a loss detached, or as a float.

    Raises:
        TypeError: It is no scalar.
    """
    import paddle

    if isinstance(loss, paddle.Tensor):
        if loss.size != 1:
            raise TypeError(
                f"the loss is a tensor of shape {loss.shape}: give a scalar, "
                "such as loss.mean()"
            )
        return loss.detach()
    try:
        return as_float(loss)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the loss is {loss!r}: give a scalar") from error


def take_losses() -> list[Any]:
    """Return the scalars differentiated since the last call, detached."""
    found = [*_seen]
    _seen.clear()
    return found


@functools.cache
def see_losses() -> None:
    """See every scalar that is differentiated from now on."""
    import paddle
    from paddle.amp.grad_scaler import AmpScaler

    tensor: Any = paddle.Tensor
    backward, together = tensor.backward, paddle.autograd.backward
    scale = AmpScaler.scale

    @functools.wraps(backward)
    def of_tensor(loss: Any, *args: Any, **kwargs: Any) -> Any:
        _see([loss], args, kwargs.get("grad_tensor"))
        return backward(loss, *args, **kwargs)

    @functools.wraps(together)
    def of_tensors(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        is_one = isinstance(tensors, paddle.Tensor)
        _see([tensors] if is_one else tensors, args, kwargs.get("grad_tensors"))
        return together(tensors, *args, **kwargs)

    @functools.wraps(scale)
    def scaled(scaler: Any, loss: Any) -> Any:
        global _scaled
        result = scale(scaler, loss)
        _scaled = result, loss
        return result

    tensor.backward = of_tensor
    paddle.autograd.backward = of_tensors
    AmpScaler.scale = scaled


def _see(losses: Sequence[Any], args: Sequence[Any], gradient: Any) -> None:
    """Take what is differentiated, unless it is along a given vector."""
    global _scaled
    for record in [*RECORDS]:
        record._finish()
    if (args[0] if args else gradient) is not None:
        return
    try:
        for loss in losses:
            if loss.size == 1:
                loss = _scaled[1] if loss is _scaled[0] else loss
                _seen.append(loss.detach())
    except Exception as error:
        for record in RECORDS:
            record._end(error)
    _scaled = (None, None)
