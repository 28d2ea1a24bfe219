# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM may come at any line of a copy of the record's steps."""

import sys
from pathlib import Path

from watch.training import make_training, train

from paddle_adagc.watch import Record, read_record
from paddle_adagc.watch.ring import FIRST_COPY

FILES = "recording.py", "ring.py", "writer.py"


class Gone(BaseException):
    """The process has ended: nothing after the handler runs."""


def flush_until(number, record):
    """Do as SIGTERM's handler does before the n-th line of a copy."""
    lines = set()

    def trace(frame, event, argument):
        if Path(frame.f_code.co_filename).name not in FILES:
            return None
        lines.add((frame.f_code, frame.f_lineno))
        if len(lines) == number:
            sys.settrace(None)
            record._leave("signal", "SIGTERM")
            raise Gone
        return trace

    sys.settrace(trace)
    try:
        record.flush()
    finally:
        sys.settrace(None)


def test_sigterm_at_any_line_of_a_copy_loses_no_step(tmp_path):
    has_ended, number = False, 0
    while not has_ended:
        number += 1
        folder = tmp_path / f"{number}"
        model, optimizer = make_training(None)
        record = Record(folder, optimizer, model)
        train(model, optimizer, range(FIRST_COPY - 1), record=record)
        try:
            flush_until(number, record)
            has_ended = True
            record.close()
        except Gone:
            pass
        run = read_record(folder)
        assert len(run.step) == run.end["step"] == FIRST_COPY - 1, number
        assert run.end["kind"] == ("finished" if has_ended else "signal")
    assert number > 50
