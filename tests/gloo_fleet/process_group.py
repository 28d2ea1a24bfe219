# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Methods of a process group that gloo lacks or gets wrong.

Messages as pipeline parallelism and all-to-all need them, reduce-scatter and
all-to-all.
"""

from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from paddle.base import core
from paddle.distributed.communication.group import Group, _GroupManager

from gloo_fleet.rendezvous import get_mailbox


class Done:
    """The task of an operation that has already finished."""

    def wait(self) -> bool:
        return True


class Receive:
    """The task of a receive: takes the message when it is waited for.

    That is the next one of ``peer``, after those of earlier receives. It fills
    one of ``num_parts`` equal parts of the flattened tensor.
    """

    def __init__(
        self,
        channel: int,
        peer: int,
        tensor: Tensor,
        num_parts: int = 1,
        index: int = 0,
    ) -> None:
        number = get_mailbox().expect(channel, peer)
        self._message = channel, peer, number
        self._tensor = tensor
        self._part = num_parts, index
        self._done = False

    def wait(self) -> bool:
        """Write the message into the tensor, once."""
        if self._done:
            return True
        payload = get_mailbox().receive(*self._message)
        whole = self._tensor.numpy()  # a copy; bfloat16 as 16-bit words
        part = _part(whole.reshape(-1), *self._part)
        if len(payload) != part.nbytes:
            raise ValueError(
                f"received {len(payload)} bytes for {self._tensor.dtype} of "
                f"shape {list(part.shape)}, which takes {part.nbytes}: "
                "both sides must use the same shape and dtype"
            )
        part[:] = np.frombuffer(payload, part.dtype)
        value = core.eager.Tensor(value=whole, place=core.CPUPlace())
        write_in_place(self._tensor, value)
        self._done = True
        return True


_coalesced: dict[int, list[Receive]] = {}


def _group_of(process_group: Any) -> Group:
    for group in _GroupManager.group_map_by_id.values():
        if group.process_group is process_group:
            return group
    raise ValueError("this process group belongs to no group of Paddle")


def _part(flat: Any, num_parts: int, index: int) -> Any:
    size = flat.shape[0] // num_parts
    return flat[index * size : (index + 1) * size]


def write_in_place(tensor: Tensor, value: Tensor) -> None:
    """Overwrite a tensor's elements, also where it is a view of a buffer."""
    if tensor.size:
        with paddle.no_grad():
            tensor.copy_(value, True)


def send(self: Any, tensor: Tensor, dst: int, sync_op: bool = True) -> Done:
    """Hand ``tensor`` to rank ``dst`` of the group; never waits for it."""
    return send_partial(self, tensor, dst, 1, 0)


def send_partial(
    self: Any, tensor: Tensor, dst: int, num_parts: int, index: int, *_: bool
) -> Done:
    group = _group_of(self)
    part = _part(tensor.numpy().reshape(-1), num_parts, index)
    get_mailbox().send(group.id, group.ranks[dst], part.tobytes())
    return Done()


def recv(self: Any, tensor: Tensor, src: int, sync_op: bool = True) -> Receive:
    """Receive into ``tensor`` from rank ``src``, at the latest in ``wait``."""
    return recv_partial(self, tensor, src, 1, 0, sync_op)


def recv_partial(
    self: Any,
    tensor: Tensor,
    src: int,
    num_parts: int,
    index: int,
    sync_op: bool = True,
) -> Receive:
    group = _group_of(self)
    task = Receive(group.id, group.ranks[src], tensor, num_parts, index)
    if group.id in _coalesced:
        _coalesced[group.id].append(task)
    elif sync_op:
        task.wait()
    return task


def start_coalescing(self: Any) -> None:
    """Post receives without waiting until ``end_coalescing``."""
    _coalesced[_group_of(self).id] = []


def end_coalescing(self: Any, tasks: Any = None) -> None:
    """Wait for the receives that were posted in between."""
    for task in _coalesced.pop(_group_of(self).id):
        task.wait()


def all_gather_partial(
    self: Any, out: Tensor, tensor: Tensor, num_parts: int, index: int
) -> Done:
    """Fill every part of ``out`` from the rank that holds it."""
    with paddle.no_grad():
        whole = paddle.empty([out.size], out.dtype)
        part = _part(tensor.reshape([-1]), num_parts, index).contiguous()
        self.all_gather_into_tensor(whole, part, True).wait()
        write_in_place(out, whole.reshape(out.shape))
    return Done()


def all_reduce_on_calc_stream(self: Any, tensor: Tensor, op: Any) -> Any:
    """Reduce; finished when it returns."""
    task = self.all_reduce(tensor, op, True)
    task.wait()
    return task


def reduce_scatter_tensor(
    self: Any, out: Tensor, tensor: Tensor, op: Any, sync_op: bool = True
) -> Done:
    """Reduce ``tensor`` [num_ranks * n, ...]; keep this rank's [n, ...]."""
    whole = tensor.detach().clone()
    self.all_reduce(whole, op, True).wait()
    write_in_place(out, _part(whole, self.size(), self.rank()))
    return Done()


def all_to_all_single(
    self: Any,
    out: Tensor,
    tensor: Tensor,
    out_sizes: list[int],
    in_sizes: list[int],
    sync_op: bool = True,
) -> Done:
    """Give the i-th share of ``tensor`` to rank i; all shares are equal."""
    if out_sizes or in_sizes:
        raise NotImplementedError("shares of different sizes")
    group = _group_of(self)
    for i in range(group.nranks):
        send_partial(self, tensor, i, group.nranks, i)
    for i, rank in enumerate(group.ranks):
        Receive(group.id, rank, out, group.nranks, i).wait()
    return Done()


_GROUP = core.ProcessGroup
PATCHES: dict[str, list[tuple[Any, str, Any]]] = {
    "gloo's tags mismatch from three ranks on, and its sends block": [
        (_GROUP, "send", send),
        (_GROUP, "recv", recv),
        (_GROUP, "send_on_calc_stream", send),
        (_GROUP, "recv_on_calc_stream", recv),
        (_GROUP, "_start_coalescing", start_coalescing),
        (_GROUP, "_end_coalescing", end_coalescing),
    ],
    "gloo has no partial send, receive and all-gather": [
        (_GROUP, "send_partial_on_calc_stream", send_partial),
        (_GROUP, "recv_partial_on_calc_stream", recv_partial),
        (_GROUP, "all_gather_partial_on_calc_stream", all_gather_partial),
    ],
    "gloo has no calculation stream": [
        (_GROUP, "all_reduce_on_calc_stream", all_reduce_on_calc_stream)
    ],
    "gloo has no reduce-scatter": [
        (_GROUP, "reduce_scatter_tensor", reduce_scatter_tensor)
    ],
    "gloo has no all-to-all": [
        (_GROUP, "all_to_all_single", all_to_all_single)
    ],
}
