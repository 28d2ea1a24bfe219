# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Progress of runs: plain lines without a terminal."""

from paddle_adagc.lab.reproduce.progress import SECONDS, Progress


def test_plain_lines_at_a_low_rate(clock, capsys):
    with Progress(6, 2, clock) as progress:
        for second in range(int(4 * SECONDS)):
            progress.show(10 * second, 9600, second // 50)
            clock.now += 1
    assert capsys.readouterr().err.splitlines() == [
        "6 runs, 2 at a time",
        "00:30  300 of 9,600 steps, 0 of 6 runs done",
        "01:00  600 of 9,600 steps, 1 of 6 runs done",
        "01:30  900 of 9,600 steps, 1 of 6 runs done",
    ]


def test_a_bar_on_a_terminal(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress(6, 2, clock) as progress:
        progress.show(10, 9600, 1)
    assert "10/9600" in capsys.readouterr().err
