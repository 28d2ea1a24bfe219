# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Send and receive as pipeline parallelism and all-to-all need them."""

from collections import defaultdict, deque
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.base import core
from paddle.distributed.communication.group import Group, _GroupManager

from paddle_adagc.lab.gloo.mailbox import get_mailbox
from paddle_adagc.lab.gloo.patch import Patch


class Done:
    """The task of an operation that has already finished."""

    def wait(self) -> bool:
        """Return at once."""
        return True

    is_completed = wait
    synchronize = wait


class Receive:
    """The task of a receive: it takes the message when it is waited for."""

    def __init__(self, channel: int, peer: int, tensor: Tensor) -> None:
        """Queue behind the receives from ``peer`` that were posted before."""
        self.source = (channel, peer)
        self._tensor = tensor
        self._done = False
        _posted[self.source].append(self)

    def wait(self) -> bool:
        """Write the message into the tensor; earlier receives come first."""
        while not self._done:
            _posted[self.source].popleft()._complete()
        return True

    def is_completed(self) -> bool:
        """Whether the message is in the tensor."""
        return self._done

    synchronize = wait

    def _complete(self) -> None:
        payload = get_mailbox().receive(*self.source)
        write_in_place(self._tensor, tensor_of_bytes(payload, self._tensor))
        self._done = True


_posted: dict[tuple[int, int], deque[Receive]] = defaultdict(deque)
_coalesced: dict[int, list[Receive]] = {}


def group_of(process_group: Any) -> Group:
    """Return the ``Group`` around a process group."""
    for group in _GroupManager.group_map_by_id.values():
        if group.process_group is process_group:
            return group
    raise ValueError("this process group belongs to no group of Paddle")


def bytes_of_tensor(tensor: Tensor) -> bytes:
    """Return the elements in row-major order; bfloat16 as 16-bit words."""
    return np.ascontiguousarray(tensor.numpy()).tobytes()


def tensor_of_bytes(payload: bytes, like: Tensor) -> Tensor:
    """Make a tensor of ``like``'s shape and dtype from a rank's bytes.

    Raises:
        ValueError: The sender's tensor had another size.
    """
    name = str(like.dtype).rsplit(".", 1)[-1]
    dtype = np.dtype("uint16" if name == "bfloat16" else name)
    if len(payload) != like.size * dtype.itemsize:
        raise ValueError(
            f"received {len(payload)} bytes for a {name} tensor of shape "
            f"{list(like.shape)}, which takes {like.size * dtype.itemsize}: "
            "both sides must use the same shape and dtype"
        )
    array = np.frombuffer(payload, dtype).reshape(list(like.shape))
    return core.eager.Tensor(value=array, place=core.CPUPlace())


def write_in_place(tensor: Tensor, value: Tensor) -> None:
    """Overwrite a tensor's elements, also where it is a view of a buffer."""
    if tensor.size:
        with paddle.no_grad():
            tensor.copy_(value, True)


def send(self: Any, tensor: Tensor, dst: int, sync_op: bool = True) -> Done:
    """Hand ``tensor`` to rank ``dst`` of the group; never waits for it."""
    group = group_of(self)
    get_mailbox().send(group.id, group.ranks[dst], bytes_of_tensor(tensor))
    return Done()


def recv(self: Any, tensor: Tensor, src: int, sync_op: bool = True) -> Receive:
    """Receive into ``tensor`` from rank ``src``, at the latest in ``wait``."""
    group = group_of(self)
    return _post(Receive(group.id, group.ranks[src], tensor), sync_op)


def _post(task: Receive, sync_op: bool) -> Receive:
    """Wait for a receive now, or leave that to whoever holds the task."""
    channel = task.source[0]
    if channel in _coalesced:
        _coalesced[channel].append(task)
    elif sync_op:
        task.wait()
    return task


def start_coalescing(self: Any) -> None:
    """Post receives without waiting until ``end_coalescing``."""
    _coalesced[group_of(self).id] = []


def end_coalescing(self: Any, tasks: Any = None) -> None:
    """Wait for the receives that were posted in between."""
    for task in _coalesced.pop(group_of(self).id):
        task.wait()


def _part(tensor: Tensor, num_parts: int, index: int) -> Tensor:
    """One of ``num_parts`` equal parts of the flattened tensor."""
    flat = tensor.reshape([-1])
    size = flat.shape[0] // num_parts
    return flat[index * size : (index + 1) * size]


def send_partial(
    self: Any,
    tensor: Tensor,
    dst: int,
    num_parts: int,
    index: int,
    sync_op: bool = True,
) -> Done:
    """Send part ``index`` of the flattened tensor."""
    with paddle.no_grad():
        return send(self, _part(tensor, num_parts, index), dst)


def recv_partial(
    self: Any,
    tensor: Tensor,
    src: int,
    num_parts: int,
    index: int,
    sync_op: bool = True,
) -> Receive:
    """Receive part ``index`` of the flattened tensor."""
    group = group_of(self)
    task = ReceivePart(group.id, group.ranks[src], tensor, num_parts, index)
    return _post(task, sync_op)


class ReceivePart(Receive):
    """A receive that fills one of the equal parts of a flattened tensor."""

    def __init__(
        self,
        channel: int,
        peer: int,
        tensor: Tensor,
        num_parts: int,
        index: int,
    ) -> None:
        """Queue behind the receives from ``peer`` that were posted before."""
        super().__init__(channel, peer, tensor)
        self._num_parts = num_parts
        self._index = index

    def _complete(self) -> None:
        payload = get_mailbox().receive(*self.source)
        with paddle.no_grad():
            parts = [
                _part(self._tensor, self._num_parts, i)
                for i in range(self._num_parts)
            ]
            like = parts[self._index]
            parts[self._index] = tensor_of_bytes(payload, like)
            whole = paddle.concat(parts).reshape(self._tensor.shape)
        write_in_place(self._tensor, whole)
        self._done = True


def all_gather_partial(
    self: Any, out: Tensor, tensor: Tensor, num_parts: int, index: int
) -> Done:
    """Fill every part of ``out`` from the rank that holds it."""
    with paddle.no_grad():
        whole = paddle.empty([out.size], out.dtype)
        part = _part(tensor, num_parts, index).contiguous()
        self.all_gather_into_tensor(whole, part, True).wait()
        write_in_place(out, whole.reshape(out.shape))
    return Done()


_TAGS = "gloo's tags mismatch from three ranks on, and its sends block"
_PARTS = "gloo has no partial send, receive and all-gather"
PATCHES = (
    Patch(core.ProcessGroup, "send", send, _TAGS),
    Patch(core.ProcessGroup, "recv", recv, _TAGS),
    Patch(core.ProcessGroup, "send_on_calc_stream", send, _TAGS),
    Patch(core.ProcessGroup, "recv_on_calc_stream", recv, _TAGS),
    Patch(core.ProcessGroup, "_start_coalescing", start_coalescing, _TAGS),
    Patch(core.ProcessGroup, "_end_coalescing", end_coalescing, _TAGS),
    Patch(core.ProcessGroup, "send_partial", send_partial, _PARTS),
    Patch(core.ProcessGroup, "recv_partial", recv_partial, _PARTS),
    Patch(
        core.ProcessGroup, "send_partial_on_calc_stream", send_partial, _PARTS
    ),
    Patch(
        core.ProcessGroup, "recv_partial_on_calc_stream", recv_partial, _PARTS
    ),
    Patch(core.ProcessGroup, "all_gather_partial", all_gather_partial, _PARTS),
    Patch(
        core.ProcessGroup,
        "all_gather_partial_on_calc_stream",
        all_gather_partial,
        _PARTS,
    ),
)
