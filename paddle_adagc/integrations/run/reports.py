# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the processes of a command tell ``adagc-run``.

Both ends are sockets of Linux' abstract namespace, so nothing lies on a disk. A
process sends datagrams with what it knows (:class:`Reporter`), which
``adagc-run`` collects (:class:`Listener`). It also holds a connection, on which
nothing is sent: its end tells either side that the other has gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import selectors
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_UCRED = struct.Struct("3i")  # pid, uid, gid
_F_SETSIG = 10
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LONGEST = 1 << 16


def _namespace() -> str:
    """Return host and network namespace, within which names are known."""
    host = ""
    with contextlib.suppress(OSError):
        host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{host} {os.stat('/proc/self/ns/net').st_ino}"


class Listener:
    """Collects the reports of a command's processes, in a thread."""

    def __init__(self) -> None:
        self.name = f"adagc-run-{os.getpid()}-{secrets.token_hex(8)}"
        self.records: dict[int, dict[str, Any]] = {}
        """The last report of each process, by its id."""
        self.running: dict[int, int] = {}
        """Number of connections of each process that has loaded Paddle."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._selector = selectors.DefaultSelector()
        self._datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._datagrams.bind(f"\0{self.name}.reports")
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(f"\0{self.name}.lifeline")
        self._door.listen(1024)
        for sock in (self._datagrams, self._door):
            self._selector.register(sock, selectors.EVENT_READ)

    @property
    def address(self) -> dict[str, Any]:
        """What a :class:`Reporter` needs."""
        return {
            "name": self.name,
            "parent": os.getpid(),
            "namespace": _namespace(),
        }

    def start(self) -> None:
        """Begin to collect."""
        self._thread.start()

    def stop(self) -> None:
        """Read all that was sent before; then end."""
        if self._thread.is_alive():
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.sendto(b'{"pid": 0}', f"\0{self.name}.reports")
            self._thread.join()
        self._datagrams.close()
        self._door.close()
        self._selector.close()

    def _run(self) -> None:
        while 0 not in self.records:
            for key, _ in self._selector.select():
                with contextlib.suppress(OSError, ValueError):
                    self._handle(key)
        del self.records[0]

    def _handle(self, key: selectors.SelectorKey) -> None:
        sock: Any = key.fileobj
        if sock is self._datagrams:
            report = json.loads(sock.recv(_LONGEST))
            pid = int(report.pop("pid"))
            self.records[pid] = {**self.records.get(pid, {}), **report}
        elif sock is self._door:
            line, _ = sock.accept()
            raw = line.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size
            )
            pid = _UCRED.unpack(raw)[0]
            self.running[pid] = self.running.get(pid, 0) + 1
            self._selector.register(line, selectors.EVENT_READ, pid)
        else:  # the process ended, or runs another program now
            self._selector.unregister(sock)
            sock.close()
            self.running[key.data] -= 1
            if not self.running[key.data]:
                del self.running[key.data]


class Reporter:
    """Tells ``adagc-run`` about this process, and ends with it.

    A forked child, such as a worker that loads data, is not waited for, unless
    it tells something itself.

    Args:
        address: Of the :class:`Listener`.

    Raises:
        ProcessLookupError: ``adagc-run`` has ended.
    """

    def __init__(self, address: dict[str, Any]) -> None:
        self._address = address
        self._to = f"\0{address['name']}.reports"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._connect()
        os.register_at_fork(after_in_child=lambda: self._lifeline.close())

    def _connect(self) -> None:
        address, self._pid = self._address, os.getpid()
        self._lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._lifeline.connect(f"\0{address['name']}.lifeline")
        except ConnectionRefusedError:
            # In another container nobody hears us, and we train as well.
            if address["namespace"] != _namespace():
                return
            raise ProcessLookupError("adagc-run has ended") from None
        # The kernel sends SIGTERM when the other end closes.
        fd = self._lifeline.fileno()
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGTERM)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC)
        if os.getppid() == address["parent"]:
            _prctl(_PR_SET_PDEATHSIG, 0)  # the lifeline does it

    def tell(self, *, waits: bool = True, **report: Any) -> None:
        """Send a report; without ``waits`` it may not arrive."""
        if self._pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                self._connect()
        text = json.dumps({"pid": os.getpid(), **report}).encode()
        self._socket.settimeout(1 if waits else 0)
        with contextlib.suppress(OSError):
            self._socket.sendto(text, self._to)


def end_with_parent() -> None:
    """Let this process get SIGTERM when its parent dies; kept by exec."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def adopted_orphans() -> Iterator[None]:
    """Inside, processes whose parent ends become children of this one."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value)
