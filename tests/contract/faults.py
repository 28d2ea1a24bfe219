# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make a call within the package fail, whichever functions it has."""

import contextlib
import sys
from pathlib import Path

import paddle_adagc
from paddle_adagc.watch import Record

PACKAGE = str(Path(paddle_adagc.__file__).parent)
TEXT = "an injected fault"


def is_inside(frame):
    """Whether it is a function of the package."""
    return frame is not None and frame.f_code.co_filename.startswith(PACKAGE)


def is_of_record(frame):
    """Whether it is a method of a record, which calls what may fail."""
    code = frame.f_code
    return code.co_varnames[:1] == ("self",) and isinstance(
        frame.f_locals.get("self"), Record
    )


def may_fail(frame):
    """Whether the package calls it, and not just in the user's place."""
    caller = frame.f_back
    return (
        frame.f_code.co_name[0] != "<"
        and "weakref" not in frame.f_code.co_filename  # of anything
        and is_inside(caller)
        and not is_of_record(frame)
        and (is_of_record(caller) or is_inside(caller.f_back))
    )


def key_of(frame):
    code = frame.f_code
    return code.co_filename, code.co_firstlineno, code.co_name


@contextlib.contextmanager
def traced(see):
    """Call ``see(frame)`` for every Python function that is called."""

    def trace(frame, event, value):
        if event == "call":
            see(frame)

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@contextlib.contextmanager
def calls(only_of_the_package=True):
    """Collect the functions that are called, in order."""
    found = {}

    def see(frame):
        if not only_of_the_package or may_fail(frame):
            found.setdefault(key_of(frame))

    with traced(see):
        yield found


@contextlib.contextmanager
def failing(key):
    """Let the first call of a function fail; gives where it did."""
    failed = []

    def see(frame):
        if not failed and key_of(frame) == key and may_fail(frame):
            failed.append(key)
            raise OSError(TEXT)

    with traced(see):
        yield failed
