# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Progress of runs: plain lines without a terminal."""

import contextlib

from paddle_adagc.lab.reproduce.running import SECONDS, Progress


def test_plain_lines_at_a_low_rate(clock, capsys):
    with contextlib.closing(Progress(6, 2, clock)) as progress:
        for second in range(int(4 * SECONDS)):
            progress.show(100 + 10 * second, 1300, second // 25)
            clock.now += 1
    assert capsys.readouterr().err.splitlines() == [
        "6 runs, 2 at a time",
        "00:15  250 of 1,300 steps, 0 of 6 runs done, about 01:45 left",
        "00:30  400 of 1,300 steps, 1 of 6 runs done, about 01:30 left",
        "00:45  550 of 1,300 steps, 1 of 6 runs done, about 01:15 left",
    ]


def test_a_bar_on_a_terminal(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with contextlib.closing(Progress(6, 2, clock)) as progress:
        progress.show(10, 9600, 1)
    assert "10/9600" in capsys.readouterr().err
