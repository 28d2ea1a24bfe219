# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A signal may come at any line of a copy of the record's steps."""

import sys
from pathlib import Path

import pytest
from watch.training import make_training, train

from paddle_adagc.watch import Record, read_record
from paddle_adagc.watch.ring import FIRST_COPY

FILES = "recording.py", "ring.py", "writer.py"


def flush_until(number, record):
    """Interrupt a copy before its n-th line."""
    lines = set()

    def trace(frame, event, argument):
        if Path(frame.f_code.co_filename).name not in FILES:
            return None
        lines.add((frame.f_code, frame.f_lineno))
        if len(lines) == number:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        record.flush()
    finally:
        sys.settrace(None)


def terminate(record):
    """Do what SIGTERM's handler does."""
    record._leave("signal", "SIGTERM")


@pytest.mark.parametrize(
    ("then", "kind"), [(terminate, "signal"), (Record.close, "finished")]
)
def test_an_interrupt_at_any_line_of_a_copy_loses_no_step(
    then, kind, tmp_path, recwarn
):
    is_interrupted, number = True, 0
    while is_interrupted:
        is_interrupted, number = False, number + 1
        folder = tmp_path / f"{number}"
        model, optimizer = make_training(None)
        record = Record(folder, optimizer, model)
        train(model, optimizer, range(FIRST_COPY - 1), record=record)
        try:
            flush_until(number, record)
        except KeyboardInterrupt:
            is_interrupted = True
        then(record)
        run = read_record(folder)
        assert len(run.step) == run.end["step"] == FIRST_COPY - 1, number
        assert run.end["kind"] == kind
    assert number > 50
    assert not [str(w.message) for w in recwarn if "record" in str(w.message)]
