# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The scalars that a process differentiates, and whose losses they are.

A loss belongs to the optimizers whose parameters it reached. With several
optimizers, hooks on some parameters of each see that. Paddle is imported within
functions, because ``adagc-run`` imports this module while Paddle is imported.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

RECORDS: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those that see the losses: ``backward()`` begins their next step."""

_NUM_HOOKED = 64  # parameters of an optimizer


@dataclasses.dataclass(eq=False)
class _Loss:
    value: Any
    left: set[int] | None = None
    """Optimizers that it reached, and whose step it is to come; None: whichever
    steps first."""
    takers: list[Any] = dataclasses.field(default_factory=list)

    def is_for(self, number: int) -> bool:
        """Whether it is one of the next step of an optimizer."""
        return self.left is None or number in self.left


_seen: deque[_Loss] = deque(maxlen=4096)
_scaled: dict[int, tuple[Any, Any]] = {}  # by a GradScaler, and as before
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_hooked: set[int] = set()
_reached: set[int] = set()
_count = itertools.count()


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


def forget_losses() -> None:
    """Let no later step take the scalars so far."""
    _seen.clear()


def take_losses(optimizer: Any, record: Any) -> list[Any]:
    """Return the scalars of an optimizer's step, detached, over num_losses.

    A record learns which other records take the same.
    """
    number = _numbers.get(optimizer, -1)
    found = [loss for loss in _seen if loss.is_for(number)]
    for loss in found:
        for other in loss.takers:
            record.shares_loss(other)
            other.shares_loss(record)
        loss.takers.append(record)
        loss.left = loss.left or {number}
    _forget(number)
    times = record.num_losses
    return [x.value / times if times > 1 else x.value for x in found]


def _forget(number: int) -> None:
    """Let an optimizer take no more of the scalars so far."""
    for loss in [*_seen]:
        if loss.left is not None:
            loss.left.discard(number)
            if not loss.left:
                _seen.remove(loss)


def newest_loss(optimizer: Any) -> Any:
    """Return the last scalar that no step of an optimizer has taken, if any."""
    number = _numbers.get(optimizer, -1)
    for loss in reversed(_seen):
        if loss.is_for(number):
            return loss.value
    return None


def know_optimizers() -> None:
    """Find the optimizers of this process, whose losses are to be told."""
    from paddle.optimizer import Optimizer

    for thing in gc.get_objects():
        if issubclass(type(thing), Optimizer):
            _know(thing)


def _know(optimizer: Any) -> None:
    from paddle_adagc.optimizer import inner_optimizer

    if "clear_gradients" in vars(optimizer):  # of before see_losses()
        optimizer.clear_gradients = optimizer.clear_grad
    if optimizer in _numbers or not getattr(optimizer, "_param_groups", None):
        return
    if inner_optimizer(optimizer) is not None:
        return
    _numbers[optimizer] = next(_count)
    if len(_numbers) > 1:
        for one, number in [*_numbers.items()]:
            if number not in _hooked:
                _hooked.add(number)
                _hook(one, number)


def _hook(optimizer: Any, number: int) -> None:
    """Let some parameters of an optimizer say when a gradient comes."""
    from paddle_adagc.watch.observe import parameters_of

    def reach(gradient: Any) -> None:
        _reached.add(number)

    trained = [p for p in parameters_of(optimizer) if not p.stop_gradient]
    for parameter in trained[:: len(trained) // _NUM_HOOKED + 1]:
        parameter.register_hook(reach)


@functools.cache
def see_losses() -> None:
    """See every scalar that is differentiated from now on."""
    import paddle
    from paddle.amp.grad_scaler import AmpScaler
    from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import (
        dygraph_sharding_optimizer as sharding,
    )
    from paddle.optimizer import Optimizer

    tensor, kind, scaler_kind = paddle.Tensor, Optimizer, AmpScaler
    backward, together = tensor.backward, paddle.autograd.backward
    scale, init = AmpScaler.scale, kind.__init__

    @functools.wraps(backward)
    def of_tensor(loss: Any, *args: Any, **kwargs: Any) -> Any:
        seen = _see([loss], args, kwargs.get("grad_tensor"))
        return _within(seen, lambda: backward(loss, *args, **kwargs))

    @functools.wraps(together)
    def of_tensors(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        losses = [tensors] if isinstance(tensors, tensor) else tensors
        seen = _see(losses, args, kwargs.get("grad_tensors"))
        return _within(seen, lambda: together(tensors, *args, **kwargs))

    @functools.wraps(scale)
    def scaled(scaler: Any, loss: Any) -> Any:
        result = scale(scaler, loss)
        if result is not loss:  # it is where the scaler is off
            _scaled[id(result)] = result, loss
        return result

    @functools.wraps(init)
    def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        init(optimizer, *args, **kwargs)
        _safely(_know, optimizer)

    tensor.backward, paddle.autograd.backward = of_tensor, of_tensors
    scaler_kind.scale = scaled
    kind.__init__ = made
    _see_clearing(kind)
    _see_clearing(sharding.DygraphShardingOptimizer)
    _see_clearing(sharding.DygraphShardingOptimizerV2)


def _see_clearing(kind: Any) -> None:
    """Forget the losses whose gradients an optimizer of a class clears."""
    from paddle_adagc.optimizer import innermost

    clear = kind.clear_grad

    @functools.wraps(clear)
    def cleared(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if len(_numbers) < 2:  # nothing says whose losses they are
            forget_losses()
        _forget(_numbers.get(innermost(optimizer), -1))
        return clear(optimizer, *args, **kwargs)

    kind.clear_grad = cleared


def _see(
    losses: Sequence[Any], args: Sequence[Any], vector: Any
) -> list[_Loss]:
    """Take what is differentiated, unless it is along a given vector."""
    for record in [*RECORDS]:
        record._finish()
    if (args[0] if args else vector) is not None:
        return []
    return _safely(_add, losses) or []


def _add(losses: Sequence[Any]) -> list[_Loss]:
    plain = losses
    if _scaled:  # what is made of a scaled loss is no loss
        plain = [_scaled[id(x)][1] for x in losses if id(x) in _scaled]
        _scaled.clear()
    found = [_Loss(x.detach()) for x in plain if x.size == 1]
    _seen.extend(found)
    return found


def _within(seen: Sequence[_Loss], differentiate: Callable[[], Any]) -> Any:
    if not seen or len(_numbers) < 2:
        return differentiate()
    _reached.clear()
    result = differentiate()
    for loss in seen:
        loss.left = {*_reached} or None
    return result


def _safely(function: Callable[..., Any], *args: Any) -> Any:
    """Call what observes; an error ends the records that see losses."""
    try:
        return function(*args)
    except Exception as error:
        for record in [*RECORDS]:
            record._end(error)
        return None


def as_float(value: Any) -> float:
    """Convert a number, or a tensor or array of one element.

    From NumPy 2.4 on ``float`` itself refuses those of shape ``[1]``.
    """
    return float(value.item() if hasattr(value, "item") else value)
