# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0

import subprocess
import sys

import pytest

from paddle_adagc.lab.benchmark import hosts_clip, network

_REASON = network.why_unavailable()
needs_hosts = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

_ECHO = """
import socket
server = socket.create_server(("", 5001))
connection, _ = server.accept()
while data := connection.recv(64):
    connection.sendall(data)
"""
_ASK = """
import socket, statistics, sys, time
for _ in range(100):
    try:
        peer = socket.create_connection((sys.argv[1], 5001), timeout=5)
        break
    except OSError:
        time.sleep(0.05)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(20):
    begin = time.perf_counter()
    peer.sendall(b"x")
    peer.recv(64)
    times.append(time.perf_counter() - begin)
print(statistics.median(times))
"""


@needs_hosts
def test_a_round_trip_takes_two_delays():
    with network.network(2, 0.02):
        echo = subprocess.Popen(
            network.command_on(0, [sys.executable, "-c", _ECHO])
        )
        try:
            command = [sys.executable, "-c", _ASK, network.address(0)]
            seconds = float(
                subprocess.run(
                    network.command_on(1, command),
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
        finally:
            echo.kill()
            echo.wait()
    assert seconds >= 0.04


@needs_hosts
def test_hosts_are_gone_afterwards():
    def names():
        return subprocess.run(
            ["ip", "netns", "list"], capture_output=True, text=True
        ).stdout

    def fail_on_hosts():
        with network.network(2, 0.0):
            raise KeyError(names())

    before = names()
    with pytest.raises(KeyError, match="adagc"):
        fail_on_hosts()
    assert names() == before


@pytest.mark.slow
@needs_hosts
def test_clip_steps_between_hosts():
    rows = list(hosts_clip.measure(["sharding V1 x2"], [0.0]))
    assert [row["clip"] for row in rows] == ["GlobalGC", "AdaGC"]
    assert all(min(row["ms"]) > 0 for row in rows)
    table = hosts_clip.to_markdown(rows)
    assert "| sharding V1 x2 | AdaGC |" in table


def test_a_missing_command_is_a_reason(monkeypatch):
    monkeypatch.setattr(network.shutil, "which", lambda name: None)
    assert "iproute2" in network.why_unavailable()
