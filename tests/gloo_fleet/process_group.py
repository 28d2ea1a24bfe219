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
from paddle.distributed.fleet.meta_parallel.pp_utils import p2p_communication

from gloo_fleet.rendezvous import get_mailbox


class Done:
    """The task of an operation that has already finished."""

    def wait(self) -> bool:
        return True


class Receive:
    """The task of a receive: takes the message when it is waited for.

    That is the next one of ``peer``, after those of earlier receives.
    """

    def __init__(self, channel: int, peer: int, tensor: Tensor) -> None:
        number = get_mailbox().expect(channel, peer)
        self._message = channel, peer, number
        self._tensor = tensor
        self._done = False

    def wait(self) -> bool:
        """Write the message into the tensor, once."""
        if not self._done:
            fill(self._tensor, get_mailbox().receive(*self._message))
        self._done = True
        return True


_coalesced: dict[int, list[Receive]] = {}


def _group_of(process_group: Any) -> Group:
    for group in _GroupManager.group_map_by_id.values():
        if group.process_group is process_group:
            return group
    raise ValueError("this process group belongs to no group of Paddle")


def write_in_place(tensor: Tensor, value: Tensor) -> None:
    """Overwrite a tensor's elements, also where it is a view of a buffer."""
    if tensor.size:
        with paddle.no_grad():
            tensor.copy_(value, True)


def fill(tensor: Tensor, payload: bytes) -> None:
    """Write the bytes of messages into a tensor."""
    whole = tensor.numpy()  # bfloat16 as 16-bit words
    if len(payload) != whole.nbytes:
        raise ValueError(
            f"received {len(payload)} bytes for {tensor.dtype} of shape "
            f"{tensor.shape}, which takes {whole.nbytes}: both sides must use "
            "the same shape and dtype"
        )
    whole = np.frombuffer(payload, whole.dtype).reshape(whole.shape).copy()
    value = core.eager.Tensor(value=whole, place=core.CPUPlace())
    write_in_place(tensor, value)


def send(self: Any, tensor: Tensor, dst: int, sync_op: bool = True) -> Done:
    """Hand ``tensor`` to rank ``dst`` of the group; never waits for it."""
    group = _group_of(self)
    get_mailbox().send(group.id, group.ranks[dst], tensor.numpy().tobytes())
    return Done()


def recv(self: Any, tensor: Tensor, src: int, sync_op: bool = True) -> Receive:
    """Receive into ``tensor`` from rank ``src``, at the latest in ``wait``."""
    group = _group_of(self)
    task = Receive(group.id, group.ranks[src], tensor)
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
    write_in_place(out, whole.split(self.size())[self.rank()])
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
    group, mailbox = _group_of(self), get_mailbox()
    shares = tensor.numpy().reshape(group.nranks, -1)
    for rank, share in zip(group.ranks, shares, strict=True):
        mailbox.send(group.id, rank, share.tobytes())
    numbers = [(rank, mailbox.expect(group.id, rank)) for rank in group.ranks]
    fill(
        out, b"".join(mailbox.receive(group.id, *number) for number in numbers)
    )
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
        (p2p_communication, "_is_valid_send_recv_partial", lambda *_: False)
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
