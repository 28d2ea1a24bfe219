# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Methods of a process group that gloo lacks or gets wrong.

Messages as pipeline parallelism and all-to-all need them, reduce-scatter and
all-to-all.
"""

from collections import defaultdict, deque
from collections.abc import Callable
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

    is_completed = wait
    synchronize = wait


class Receive:
    """The task of a receive: takes the message when it is waited for.

    It queues behind the receives from ``peer`` that were posted before, and
    fills one of ``num_parts`` equal parts of the flattened tensor.
    """

    def __init__(
        self,
        channel: int,
        peer: int,
        tensor: Tensor,
        num_parts: int = 1,
        index: int = 0,
    ) -> None:
        self.source = (channel, peer)
        self._tensor = tensor
        self._part = num_parts, index
        self._done = False
        _posted[self.source].append(self)

    def wait(self) -> bool:
        """Write the message into the tensor; earlier receives come first."""
        while not self._done:
            _posted[self.source].popleft()._complete()
        return True

    def is_completed(self) -> bool:
        return self._done

    synchronize = wait

    def _complete(self) -> None:
        payload = get_mailbox().receive(*self.source)
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


_posted: dict[tuple[int, int], deque[Receive]] = defaultdict(deque)
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


def on_calc_stream(name: str) -> Callable[..., Any]:
    """Wrap the group's method ``name``: finished when it returns."""

    def call(self: Any, *args: Any) -> Any:
        task = getattr(self, name)(*args, True)
        task.wait()
        return task

    return call


def reduce_scatter_tensor(
    self: Any, out: Tensor, tensor: Tensor, op: Any, sync_op: bool = True
) -> Done:
    """Reduce ``tensor`` [num_ranks * n, ...]; keep this rank's [n, ...]."""
    whole = tensor.detach().clone()
    self.all_reduce(whole, op, True).wait()
    write_in_place(out, _part(whole, self.size(), self.rank()))
    return Done()


def all_to_all(
    self: Any, outs: list[Tensor], tensors: list[Tensor], sync_op: bool = True
) -> Done:
    """Give ``tensors[i]`` to rank i and get ``outs[i]`` from it."""
    group = _group_of(self)
    peers = [i for i in range(group.nranks) if i != group.rank]
    for i in peers:
        send(self, tensors[i], i)
    write_in_place(outs[group.rank], tensors[group.rank])
    for i in peers:
        Receive(group.id, group.ranks[i], outs[i]).wait()
    return Done()


def all_to_all_single(
    self: Any,
    out: Tensor,
    tensor: Tensor,
    out_sizes: list[int],
    in_sizes: list[int],
    sync_op: bool = True,
) -> Done:
    """All-to-all of rows; empty lists mean equal shares."""
    sends = _rows(tensor.detach(), in_sizes, self.size(), "in_split_sizes")
    parts = _rows(out.detach(), out_sizes, self.size(), "out_split_sizes")
    gets = [paddle.empty(part.shape, part.dtype) for part in parts]
    all_to_all(self, gets, sends)
    write_in_place(out, paddle.concat(gets))
    return Done()


def all_to_all_tensor(
    self: Any, out: Tensor, tensor: Tensor, sync_op: bool = True
) -> Done:
    return all_to_all_single(self, out, tensor, [], [])


def _rows(
    tensor: Tensor, sizes: list[int], num_ranks: int, name: str
) -> list[Tensor]:
    """Split the rows of ``tensor`` into ``sizes``, one block a rank."""
    num_rows = tensor.shape[0]
    if not sizes and num_rows % num_ranks == 0:
        sizes = [num_rows // num_ranks] * num_ranks
    if sum(sizes) != num_rows or len(sizes) != num_ranks:
        raise ValueError(
            f"{name}={list(sizes)} does not split {num_rows} rows over "
            f"{num_ranks} ranks: give one size a rank that add up"
        )
    ends = np.cumsum(sizes).tolist()
    return [
        tensor[end - size : end] for end, size in zip(ends, sizes, strict=True)
    ]


_ON_CALC_STREAM = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast",
    "reduce",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_tensor",
)
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
        (_GROUP, "send_partial", send_partial),
        (_GROUP, "recv_partial", recv_partial),
        (_GROUP, "send_partial_on_calc_stream", send_partial),
        (_GROUP, "recv_partial_on_calc_stream", recv_partial),
        (_GROUP, "all_gather_partial", all_gather_partial),
        (_GROUP, "all_gather_partial_on_calc_stream", all_gather_partial),
    ],
    "gloo has no calculation stream": [
        (_GROUP, f"{name}_on_calc_stream", on_calc_stream(name))
        for name in _ON_CALC_STREAM
    ],
    "gloo has no reduce-scatter": [
        (_GROUP, "reduce_scatter_tensor", reduce_scatter_tensor)
    ],
    "gloo has no all-to-all": [
        (_GROUP, "all_to_all", all_to_all),
        (_GROUP, "all_to_all_single", all_to_all_single),
        (_GROUP, "all_to_all_tensor", all_to_all_tensor),
    ],
}
