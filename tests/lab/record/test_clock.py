# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
import time
import types

import paddle
import pytest
from adagc_lab.record import clock


@pytest.fixture
def device(monkeypatch):
    """A device whose work takes 3 s longer than the host's."""
    behind = types.SimpleNamespace(waits=0, now=0.0)

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            behind.now += 3.0
            self.time = behind.now

        def synchronize(self):
            behind.waits += 1

        def elapsed_time(self, other):
            return 1e3 * (other.time - self.time)

    def synchronize():
        behind.waits += 1

    monkeypatch.setattr(clock, "_is_cpu", lambda: False)
    monkeypatch.setattr(paddle.device, "Event", Event)
    monkeypatch.setattr(paddle.device, "synchronize", synchronize)
    return behind


def test_clock_waits_and_a_timer_waits_only_to_read(device):
    clock.device_seconds()
    assert device.waits == 1
    timer = clock.Timer()
    timer.stop()
    assert device.waits == 1
    assert timer.seconds() == pytest.approx(3.0)
    assert device.waits == 2


def test_a_cpu_is_timed_by_the_host():
    begin = time.perf_counter()
    timer = clock.Timer()
    timer.stop()
    assert 0 <= timer.seconds() <= time.perf_counter() - begin
    assert clock.device_seconds() >= begin
