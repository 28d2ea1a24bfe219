# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Corrupt input: everything that is read from outside, with bytes changed.

A sound file of every kind is changed in random places. The reader must refuse
it by an error that names the file, or read something; it must not raise another
exception, take more than :data:`MAX_SECONDS`, or read a changed file that has a
checksum.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MAX_SECONDS = 5
"""Of the processor."""

_MAX_WAIT = 60
"""Seconds of the clock."""

ERRORS = (ImportError, OSError, TypeError, ValueError)
"""What the commands print without a traceback."""

TOKENS = tuple(
    text.encode()
    for text in (
        *("", "0", "-1", "1e39", "1e-300", "1e999", "NaN", "Infinity", "inf"),
        *("2147483648", "99999999999999999999", "9" * 5000, "null", "true"),
        *("[]", "{}", '""', "[1]", '{"a": 1}', "${", "${}", "${a}", "${:}"),
        *("${oc.env:HOME}", "base: config.yaml", "!!python/name:os.system "),
        *("[" * 3000, "{a: " * 300, "\n", "\x00", "\x85", "\n- ", ": ", "*a"),
        *("../", "/etc/passwd", "'", '"', ",", "#", "&a [*a]"),
    )
)
"""What has broken readers before."""


@dataclasses.dataclass(frozen=True)
class Edit:
    """A change of a file's bytes."""

    place: float
    """Where, from 0 to 1."""

    length: int
    """Bytes that are taken out there."""

    payload: bytes
    """Bytes that are put in."""


@dataclasses.dataclass(frozen=True)
class Reader:
    """A kind of input, and what reads it."""

    make: Callable[[Path], Path]
    """Writes a sound input below a folder; returns the file to change."""

    read: Callable[[Path], Any]
    """Reads that file."""

    has_checksum: bool = False
    """Every change must be refused."""

    names_file: bool = True
    """Errors name the file (those of a config's values name the key)."""


def random_edits(rng: np.random.Generator) -> list[Edit]:
    """Draw one to three changes: bytes, cuts and :data:`TOKENS`."""
    edits = []
    for _ in range(rng.integers(1, 4)):
        length = int(rng.integers(0, 30))
        payload = TOKENS[rng.integers(len(TOKENS))]
        if rng.random() < 0.3:
            length, payload = 1, rng.bytes(1)
        elif rng.random() < 0.3:
            length, payload = (10**9 if rng.random() < 0.3 else length), b""
        edits.append(Edit(float(rng.random()), length, payload))
    return edits


def corrupt(content: bytes, edits: Sequence[Edit]) -> bytes:
    """Apply changes, one after the other."""
    for edit in edits:
        start = round(edit.place * len(content))
        stop = start + edit.length
        content = content[:start] + edit.payload + content[stop:]
    return content


class Input:
    """A sound input, to be read with changes.

    Args:
        reader: Its kind.
        folder: Empty folder for it.
    """

    def __init__(self, reader: Reader, folder: Path) -> None:
        self._reader = reader
        self.path = reader.make(folder)
        self.sound = self.path.read_bytes()
        self._expected = self._read()

    def _read(self) -> str:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),  # PaddleNLP's
        ):
            warnings.simplefilter("ignore")
            return repr(self._reader.read(self.path))

    def fault_of(self, changed: bytes) -> str:
        """Read the input with another content.

        Returns:
            What the reader did wrong; empty if it did nothing wrong.
        """
        self.path.write_bytes(changed)
        try:
            with _limited():
                found = self._read()
        except ERRORS as error:
            is_named = self.path.name.split(".")[0] in str(error)
            if self._reader.names_file and not is_named:
                return f"error without the file: {error!r:.300}"
            return ""
        except BaseException as error:
            return f"{type(error).__name__}: {error!s:.300}"
        finally:
            self.path.write_bytes(self.sound)
        if self._reader.has_checksum and found != self._expected:
            return "accepted, in spite of a checksum"
        return ""


class _TooLongError(BaseException):
    """A reader did not end in time."""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """End what computes too long, or waits: the machine may be busy."""

    def stop(*_: object) -> None:
        raise _TooLongError(f"more than {MAX_SECONDS} s")

    numbers = (signal.SIGPROF, signal.SIGALRM)
    before = [signal.signal(number, stop) for number in numbers]
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    signal.alarm(_MAX_WAIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
