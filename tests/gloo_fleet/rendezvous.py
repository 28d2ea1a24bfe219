# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How ranks reach each other: a store for every group, a mailbox for each rank.

Two gloo groups that rendezvous through one store at the same time read each
other's addresses, so every group gets its own store.

A mailbox buffers messages between ranks, which run on one machine, over local
sockets.
Gloo's own send waits until the peer receives, so two ranks that send to each
other first wait for ever (as 1F1B does in every step), and its message tags
count all calls of a rank, so a message from the middle of three ranks never
matches. Here a send returns as soon as the socket has the bytes, and the
messages of every (group, sender) pair are counted.
"""

import contextlib
import secrets
import socket
import struct
import threading
from collections import Counter, defaultdict
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from paddle.base import core
from paddle.distributed import collective, parallel

_HOST = "127.0.0.1"
_STORE_SECONDS = 120
_MESSAGE_SECONDS = 600.0
_PORTS = range(10_000, 32_000)
_CHANNEL = struct.Struct("<q")
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
        port = free_port() if is_first else _published(store, key)
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


def _published(store: Any, key: str) -> int:
    store.wait(key)
    return int(store.get(key))


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
    """Sends bytes to other ranks and keeps what they sent until asked for.

    Listens on a free port and publishes it in the ranks' common store.
    """

    def __init__(self, store: Any, rank: int) -> None:
        self._store = store
        self._rank = rank
        self._outgoing: dict[int, Connection] = {}
        self._arrived: dict[tuple[int, int], list[bytes]] = defaultdict(list)
        self._expected = Counter[tuple[int, int]]()
        self._changed = threading.Condition()
        self._listener = Listener((_HOST, 0), backlog=128)
        store.set(_key(rank), str(self._listener.address[1]))
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, channel: int, peer: int, payload: bytes) -> None:
        """Hand ``payload`` to global rank ``peer`` and return."""
        if peer not in self._outgoing:
            address = _HOST, _published(self._store, _key(peer))
            self._outgoing[peer] = Client(address)
            self._outgoing[peer].send_bytes(_CHANNEL.pack(self._rank))
        self._outgoing[peer].send_bytes(_CHANNEL.pack(channel) + payload)

    def expect(self, channel: int, peer: int) -> int:
        """Return the number of the next message of a rank on a channel."""
        self._expected[channel, peer] += 1
        return self._expected[channel, peer] - 1

    def receive(self, channel: int, peer: int, number: int) -> bytes:
        """Wait for a message of global rank ``peer`` on ``channel``."""
        messages = self._arrived[channel, peer]
        with self._changed:
            if self._changed.wait_for(
                lambda: len(messages) > number, _MESSAGE_SECONDS
            ):
                message, messages[number] = messages[number], b""
                return message
        raise ConnectionError(
            f"rank {peer} sent nothing for {_MESSAGE_SECONDS:.0f} s while rank "
            f"{self._rank} waited for it"
        )

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()
            threading.Thread(
                target=self._read, args=(connection,), daemon=True
            ).start()

    def _read(self, connection: Connection) -> None:
        (peer,) = _CHANNEL.unpack(connection.recv_bytes())
        while True:
            try:
                message = connection.recv_bytes()
            except (EOFError, OSError):
                return  # the rank has ended
            (channel,) = _CHANNEL.unpack_from(message)
            with self._changed:
                self._arrived[channel, peer].append(message[_CHANNEL.size :])
                self._changed.notify_all()


def _key(rank: int) -> str:
    return f"paddle_adagc/mailbox/{rank}"


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
