# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How ranks reach each other: a store for every group, a mailbox for each rank.

Two gloo groups that rendezvous through one store at the same time read each
other's addresses, so every group gets its own store.

A mailbox keeps messages between ranks, which run on one machine, as files.
Gloo's own send waits until the peer receives, so two ranks that send to each
other first wait for ever (as 1F1B does in every step), and its message tags
count all calls of a rank, so a message from the middle of three ranks never
matches. Here a send returns once the file is there, and the messages of every
(group, sender, receiver) are counted.
"""

import contextlib
import secrets
import socket
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from paddle.base import core
from paddle.distributed import collective, parallel

_HOST = "127.0.0.1"
_STORE_SECONDS = 120
_MESSAGE_SECONDS = 600.0
_PORTS = range(10_000, 32_000)
_FOLDER = "paddle_adagc/mailbox"  # its key in the store
_native_new_process_group = collective._new_process_group_impl
_stores: list[Any] = []


def new_process_group(
    backend: str,
    store: Any,
    rank: int,
    world_size: int,
    *args: Any,
    group_id: int = 0,
    **options: Any,
) -> Any:
    """Make a process group; gloo groups after the first get their own store.

    The first group (id 0, all ranks) also opens the rank's mailbox.
    """
    if backend == "gloo" and group_id != 0:
        key, is_first = f"paddle_adagc/store/{group_id}", rank == 0
        port = free_port() if is_first else int(_published(store, key))
        own = core.TCPStore(_HOST, port, is_first, 0, _STORE_SECONDS)
        if is_first:
            store.set(key, str(port))
        _stores.append(own)
        return core.ProcessGroupGloo.create(own, rank, world_size, group_id)
    if backend == "gloo":
        global _mailbox
        _mailbox = Mailbox(store, rank)
    return _native_new_process_group(
        backend, store, rank, world_size, *args, group_id=group_id, **options
    )


def _published(store: Any, key: str) -> str:
    store.wait(key)
    return store.get(key).decode()


def free_port() -> int:
    """Choose a random port that nothing listens on.

    Paddle aborts the process where its store cannot bind, so the port is
    taken from outside the range that the system gives to outgoing
    connections, at random, unaffected by anyone's seed.
    """
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((_HOST, port))
            return port


class Mailbox:
    """Keeps messages between ranks as files, until they are asked for.

    Rank 0 publishes the folder in the ranks' common store.
    """

    def __init__(self, store: Any, rank: int) -> None:
        if rank == 0:
            store.set(_FOLDER, tempfile.mkdtemp(prefix="gloo-fleet-"))
        self._folder = Path(_published(store, _FOLDER))
        self._rank = rank
        self._sent, self._expected = Counter[Any](), Counter[Any]()

    def send(self, channel: int, peer: int, payload: bytes) -> None:
        """Leave ``payload`` for global rank ``peer`` and return."""
        number = self._sent[channel, peer]
        self._sent[channel, peer] += 1
        path = self._path(channel, self._rank, peer, number)
        path.with_suffix(".part").write_bytes(payload)
        path.with_suffix(".part").rename(path)

    def expect(self, channel: int, peer: int) -> int:
        """Return the number of the next message of a rank on a channel."""
        self._expected[channel, peer] += 1
        return self._expected[channel, peer] - 1

    def receive(self, channel: int, peer: int, number: int) -> bytes:
        """Wait for a message of global rank ``peer`` on ``channel``."""
        path = self._path(channel, peer, self._rank, number)
        end = time.monotonic() + _MESSAGE_SECONDS
        while not path.exists():
            if time.monotonic() > end:
                raise ConnectionError(
                    f"rank {peer} sent nothing for {_MESSAGE_SECONDS:.0f} s "
                    f"while rank {self._rank} waited for it"
                )
            time.sleep(0.0005)
        payload = path.read_bytes()
        path.unlink()
        return payload

    def _path(self, channel: int, source: int, peer: int, number: int) -> Path:
        return self._folder / f"{channel}-{source}-{peer}-{number}"


_mailbox: Mailbox | None = None


def get_mailbox() -> Mailbox:
    assert _mailbox is not None, "the first gloo group opens the mailbox"
    return _mailbox


PATCHES: dict[str, list[tuple[Any, str, Any]]] = {
    "gloo groups made at the same time share rendezvous keys": [
        (module, "_new_process_group_impl", new_process_group)
        for module in (collective, parallel)
    ]
}
