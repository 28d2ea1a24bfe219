# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A gloo process group for every fleet group, each with a store of its own."""

import os
import secrets
import socket
from typing import Any

from paddle.base import core
from paddle.distributed import collective, parallel

from paddle_adagc.lab.gloo import mailbox
from paddle_adagc.lab.gloo.patch import Patch

_HOST = "127.0.0.1"
_TIMEOUT_SECONDS = 120
_ATTEMPTS = 50
_PORTS = range(10_000, 32_000)
_native_new_process_group = collective._new_process_group_impl
_stores: list[Any] = []


def new_process_group(
    backend: str,
    store: Any,
    rank: int,
    world_size: int,
    group_name: str,
    pg_options: Any,
    group_id: int = 0,
    **options: Any,
) -> Any:
    """Make a process group; gloo groups after the first get their own store.

    Two gloo groups that rendezvous through one store at the same time read
    each other's addresses. The first group (id 0, all ranks) also opens the
    rank's mailbox for point-to-point messages.
    """
    if backend == "gloo" and group_id != 0:
        own = _store_of_group(store, group_id, rank)
        _stores.append(own)
        return core.ProcessGroupGloo.create(own, rank, world_size, group_id)
    if backend == "gloo":
        mailbox.open_mailbox(store, rank, own_host())
    return _native_new_process_group(
        backend,
        store,
        rank,
        world_size,
        group_name,
        pg_options,
        group_id=group_id,
        **options,
    )


def _store_of_group(store: Any, group_id: int, rank: int) -> Any:
    """Start the group's store on its first rank, connect to it elsewhere."""
    key = f"paddle_adagc/store/{group_id}"
    if rank == 0:
        host, port = own_host(), free_port()
        own = core.TCPStore(host, port, True, 0, _TIMEOUT_SECONDS)
        store.set(key, f"{host}:{port}")
        return own
    store.wait(key)
    host, _, port = store.get(key).decode().rpartition(":")
    return core.TCPStore(host, int(port), False, 0, _TIMEOUT_SECONDS)


def own_host() -> str:
    """Address at which the other ranks reach this one.

    The loopback, unless the launcher's endpoints lie on several hosts.
    """
    endpoints = os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")
    hosts = {endpoint.rpartition(":")[0] for endpoint in endpoints}
    if len(hosts) == 1:
        return _HOST
    return os.environ["PADDLE_CURRENT_ENDPOINT"].rpartition(":")[0]


def free_port() -> int:
    """Choose a random port that nothing listens on.

    Paddle aborts the process where its store cannot bind, so the port is
    taken from outside the range that the system gives to outgoing
    connections, at random, unaffected by anyone's seed.

    Raises:
        RuntimeError: Every port that was tried is in use.
    """
    for _ in range(_ATTEMPTS):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        with socket.socket() as probe:
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return port
    raise RuntimeError(
        f"no free port between {_PORTS[0]} and {_PORTS[-1]} "
        f"in {_ATTEMPTS} attempts"
    )


_REASON = "gloo groups made at the same time share rendezvous keys"
PATCHES = (
    Patch(collective, "_new_process_group_impl", new_process_group, _REASON),
    Patch(parallel, "_new_process_group_impl", new_process_group, _REASON),
)
