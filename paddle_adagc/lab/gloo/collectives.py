# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collectives that gloo's process group lacks or gets wrong."""

from collections.abc import Callable
from typing import Any

import paddle
from paddle import Tensor
from paddle.base import core

from paddle_adagc.lab.gloo.mailbox import get_mailbox
from paddle_adagc.lab.gloo.patch import Patch
from paddle_adagc.lab.gloo.point_to_point import (
    Done,
    Receive,
    bytes_of_tensor,
    group_of,
    write_in_place,
)


def on_calc_stream(name: str) -> Callable[..., Any]:
    """Wrap the group's method ``name``: finished when it returns."""

    def call(self: Any, *args: Any) -> Any:
        task = getattr(self, name)(*args, True)
        task.wait()
        return task

    return call


def in_float32(name: str) -> Callable[..., Any]:
    """Wrap the reduction ``name``: float16 is summed in float32."""
    native = getattr(core.ProcessGroup, name)

    def call(self: Any, tensor: Tensor, *args: Any) -> Any:
        if tensor.dtype != paddle.float16:
            return native(self, tensor, *args)
        wide = tensor.cast("float32")
        native(self, wide, *args).wait()
        write_in_place(tensor, wide.cast("float16"))
        return Done()

    return call


def reduce_scatter_tensor(
    self: Any, out: Tensor, tensor: Tensor, op: Any, sync_op: bool = True
) -> Done:
    """Reduce ``tensor`` [num_ranks * n, ...]; keep this rank's [n, ...]."""
    whole = tensor.detach().clone()
    self.all_reduce(whole, op, True).wait()
    size = whole.shape[0] // self.size()
    write_in_place(out, whole[self.rank() * size : (self.rank() + 1) * size])
    return Done()


def reduce_scatter(
    self: Any, out: Tensor, tensors: list[Tensor], op: Any, sync_op: bool = True
) -> Done:
    """Reduce one tensor a rank; keep the one of this rank."""
    whole = paddle.stack([tensor.detach() for tensor in tensors])
    self.all_reduce(whole, op, True).wait()
    write_in_place(out, whole[self.rank()])
    return Done()


def all_to_all(
    self: Any, outs: list[Tensor], tensors: list[Tensor], sync_op: bool = True
) -> Done:
    """Give ``tensors[i]`` to rank i and get ``outs[i]`` from it."""
    group, mailbox = group_of(self), get_mailbox()
    peers = [i for i in range(group.nranks) if i != group.rank]
    for i in peers:
        mailbox.send(group.id, group.ranks[i], bytes_of_tensor(tensors[i]))
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
    """All-to-all of rows; empty size lists mean equal shares.

    Raises:
        ValueError: The sizes do not add up to the tensors' first dimension.
    """
    sends = _rows(tensor.detach(), in_sizes, self.size(), "in_split_sizes")
    parts = _rows(out.detach(), out_sizes, self.size(), "out_split_sizes")
    gets = [paddle.empty(part.shape, part.dtype) for part in parts]
    all_to_all(self, gets, sends)
    write_in_place(out, paddle.concat(gets))
    return Done()


def all_to_all_tensor(
    self: Any, out: Tensor, tensor: Tensor, sync_op: bool = True
) -> Done:
    """All-to-all of equal shares of the rows."""
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
    ends = [sum(sizes[: i + 1]) for i in range(num_ranks)]
    return [
        tensor[end - size : end] for end, size in zip(ends, sizes, strict=True)
    ]


_STREAM = "gloo has no calculation stream"
_HALF = "gloo's float16 sum gives infinities"
_SCATTER = "gloo has no reduce-scatter"
_EXCHANGE = "gloo has no all-to-all"
PATCHES = (
    *(
        Patch(
            core.ProcessGroup,
            f"{name}_on_calc_stream",
            on_calc_stream(name),
            _STREAM,
        )
        for name in (
            "all_reduce",
            "all_gather",
            "all_gather_into_tensor",
            "broadcast",
            "reduce",
            "reduce_scatter",
            "reduce_scatter_tensor",
            "scatter",
            "scatter_tensor",
            "all_to_all",
            "all_to_all_single",
            "all_to_all_tensor",
        )
    ),
    *(
        Patch(core.ProcessGroup, name, in_float32(name), _HALF)
        for name in ("all_reduce", "allreduce", "reduce")
    ),
    Patch(
        core.ProcessGroup,
        "reduce_scatter_tensor",
        reduce_scatter_tensor,
        _SCATTER,
    ),
    Patch(core.ProcessGroup, "reduce_scatter", reduce_scatter, _SCATTER),
    Patch(core.ProcessGroup, "all_to_all", all_to_all, _EXCHANGE),
    Patch(core.ProcessGroup, "all_to_all_single", all_to_all_single, _EXCHANGE),
    Patch(core.ProcessGroup, "all_to_all_tensor", all_to_all_tensor, _EXCHANGE),
)
