# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Buffered messages between ranks of one machine, over local sockets.

Gloo's own send waits until the peer receives, so two ranks that send to each
other first wait for ever (as 1F1B does in every step), and its message tags
count all calls of a rank, so a message from the middle of three ranks never
matches. Here a send returns as soon as the bytes are handed over, and every
(group, sender) pair is a queue of its own.
"""

import secrets
import struct
import threading
from collections import defaultdict, deque
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

_TIMEOUT_SECONDS = 600.0
_SHARED_KEY = "paddle_adagc/mailbox/key"
_KEY_BYTES = 32
_CHANNEL = struct.Struct("<q")


class Mailbox:
    """Sends bytes to other ranks and keeps what they sent until asked for."""

    def __init__(self, store: Any, rank: int, host: str) -> None:
        """Listen on a free port and publish it in the ranks' common store.

        Rank 0 draws a key, without which the mailboxes take no messages.
        """
        self._store = store
        self._rank = rank
        self._outgoing: dict[int, Connection] = {}
        self._arrived: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)
        self._closed: set[int] = set()
        self._changed = threading.Condition()
        if rank == 0:
            store.set(_SHARED_KEY, secrets.token_hex(_KEY_BYTES))
        store.wait(_SHARED_KEY)
        self._authkey = bytes(store.get(_SHARED_KEY))
        self._listener = Listener((host, 0), backlog=128, authkey=self._authkey)
        store.set(_key(rank), f"{host}:{self._listener.address[1]}")
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, channel: int, peer: int, payload: bytes) -> None:
        """Hand ``payload`` to global rank ``peer`` and return."""
        if peer not in self._outgoing:
            self._store.wait(_key(peer))
            address = self._store.get(_key(peer)).decode()
            host, _, port = address.rpartition(":")
            self._outgoing[peer] = Client(
                (host, int(port)), authkey=self._authkey
            )
            self._outgoing[peer].send_bytes(_CHANNEL.pack(self._rank))
        self._outgoing[peer].send_bytes(_CHANNEL.pack(channel) + payload)

    def receive(self, channel: int, peer: int) -> bytes:
        """Wait for the next message of global rank ``peer`` on ``channel``.

        Raises:
            ConnectionError: The peer ended without sending.
            TimeoutError: Nothing came within ten minutes.
        """
        queue = self._arrived[channel, peer]
        with self._changed:
            came = self._changed.wait_for(
                lambda: queue or peer in self._closed, _TIMEOUT_SECONDS
            )
            if queue:
                return queue.popleft()
        if came:
            raise ConnectionError(
                f"rank {peer} ended while rank {self._rank} waited for it"
            )
        raise TimeoutError(
            f"rank {self._rank} got nothing from rank {peer} "
            f"within {_TIMEOUT_SECONDS:.0f} s"
        )

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, OSError):
                continue  # a stranger
            threading.Thread(
                target=self._read, args=(connection,), daemon=True
            ).start()

    def _read(self, connection: Connection) -> None:
        (peer,) = _CHANNEL.unpack(connection.recv_bytes())
        while True:
            try:
                message = connection.recv_bytes()
            except (EOFError, OSError):
                with self._changed:
                    self._closed.add(peer)
                    self._changed.notify_all()
                return
            (channel,) = _CHANNEL.unpack_from(message)
            with self._changed:
                self._arrived[channel, peer].append(message[_CHANNEL.size :])
                self._changed.notify_all()


def _key(rank: int) -> str:
    return f"paddle_adagc/mailbox/{rank}"


_mailbox: Mailbox | None = None


def open_mailbox(store: Any, rank: int, host: str) -> None:
    """Open this process's mailbox, so that others can reach it from now on.

    Args:
        store: All ranks'.
        rank: This process's.
        host: Address at which the others reach it.
    """
    global _mailbox
    _mailbox = Mailbox(store, rank, host)


def get_mailbox() -> Mailbox:
    """Return this process's mailbox."""
    assert _mailbox is not None, "the first gloo group opens the mailbox"
    return _mailbox
