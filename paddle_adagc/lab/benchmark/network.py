# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hosts of our own on one machine, with a chosen delay between them.

Every host is a network namespace with one TUN device. The other ends of the
devices are in this process: a thread takes each packet, holds it for the delay
and hands it to the host that it is for. Delays hold to about 0.1 ms.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_DEVICE = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET = 65536
_LAST_BYTE_OF_DESTINATION = 19
_IDLE_SECONDS = 0.1
_PREFIX = f"adagc{os.getpid() % 10000}h"

INTERFACE = "tun0"
"""Name of every host's network device."""


def why_unavailable() -> str | None:
    """Why hosts cannot be made here; None where they can."""
    if shutil.which("ip") is None:
        return "the command ip is missing (package iproute2)"
    if not _DEVICE.exists():
        return f"{_DEVICE} is missing"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"{_PREFIX}x"
    made = subprocess.run(
        ["ip", "netns", "add", name], capture_output=True, text=True
    )
    if made.returncode:
        return f"ip netns add: {made.stderr.strip()}"
    _ip("netns", "del", name)
    return None


def address(host: int) -> str:
    """IPv4 address of a host, counted from 0."""
    return f"10.77.0.{host + 1}"


def command_on(host: int, command: Sequence[str]) -> list[str]:
    """Return the command that runs another one on a host."""
    return ["ip", "netns", "exec", f"{_PREFIX}{host}", *command]


@contextlib.contextmanager
def network(num_hosts: int, delay_seconds: float) -> Iterator[None]:
    """Hosts 0 to ``num_hosts`` - 1, and the delay of each packet between them.

    Raises:
        OSError: A device cannot be made.
        subprocess.CalledProcessError: ``ip`` failed.
    """
    with contextlib.ExitStack() as cleanup:
        devices = [_add_host(cleanup, host) for host in range(num_hosts)]
        stop = threading.Event()
        router = threading.Thread(
            target=_forward, args=(devices, delay_seconds, stop)
        )
        router.start()
        cleanup.callback(router.join)
        cleanup.callback(stop.set)
        yield


def _add_host(cleanup: contextlib.ExitStack, host: int) -> int:
    """Make a namespace with a device; gives the device's file descriptor."""
    name = f"{_PREFIX}{host}"
    _ip("netns", "add", name)
    cleanup.callback(_ip, "netns", "del", name)
    descriptor = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
    cleanup.callback(os.close, descriptor)
    request = struct.pack("16sH14x", name.encode(), _IFF_TUN | _IFF_NO_PI)
    fcntl.ioctl(descriptor, _TUNSETIFF, request)
    _ip("link", "set", name, "netns", name, "name", INTERFACE)
    _ip("-n", name, "addr", "add", f"{address(host)}/24", "dev", INTERFACE)
    _ip("-n", name, "link", "set", INTERFACE, "up")
    _ip("-n", name, "link", "set", "lo", "up")
    return descriptor


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _forward(
    devices: Sequence[int], delay_seconds: float, stop: threading.Event
) -> None:
    """Carry IPv4 packets between the devices until told to stop."""
    held: list[tuple[float, int, bytes]] = []
    count = 0
    while not stop.is_set():
        wait = _IDLE_SECONDS
        if held:
            wait = max(held[0][0] - time.perf_counter(), 0.0)
        readable, _, _ = select.select(devices, [], [], wait)
        for device in readable:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(device, _PACKET)
                    count += 1
                    due = time.perf_counter() + delay_seconds
                    heapq.heappush(held, (due, count, packet))
        while held and held[0][0] <= time.perf_counter():
            _deliver(devices, heapq.heappop(held)[2])


def _deliver(devices: Sequence[int], packet: bytes) -> None:
    is_ipv4 = packet[0] >> 4 == 4
    host = packet[_LAST_BYTE_OF_DESTINATION] - 1 if is_ipv4 else -1
    if 0 <= host < len(devices):
        os.write(devices[host], packet)
