# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Corrupt input of every kind is refused by name, or read.

A sound file of every kind is changed in random places. The reader must refuse
it by an error that names the file, or read something. It must not raise another
exception, take more than ``MAX_SECONDS``, or read a changed file that has a
checksum.
"""

import collections
import contextlib
import io
import signal
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak.readers import READERS, Reader
from soak.trials import REPEAT, Trial

from paddle_adagc.lab.cli.command import ERRORS
from paddle_adagc.lab.train.parse import ALLOW_RESOLVERS, read_values

MAX_SECONDS = 5
"""Of the processor."""
MAX_WAIT = 60
"""Seconds of the clock: the machine may be busy."""

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

EVERY = settings(
    deadline=None, database=None, suppress_health_check=[*HealthCheck]
)
settings.register_profile("fast", EVERY, max_examples=15, derandomize=True)
settings.register_profile("long", EVERY, max_examples=200 * REPEAT)


@st.composite
def corrupted(draw, content):
    """``content`` after one to three changes: bytes, cuts and ``TOKENS``."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        length = draw(st.integers(0, 30) | st.just(len(content)))
        payload = draw(st.sampled_from(TOKENS) | st.binary(max_size=4))
        content = content[:start] + payload + content[start + length :]
    return content


class Input:
    """A sound input in an empty folder, to be read with changes."""

    def __init__(self, reader, folder):
        self._reader = reader
        self.path = reader.make(folder)
        self.sound = self.path.read_bytes()
        self._expected = self._read()

    def _read(self):
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),  # PaddleNLP's
        ):
            warnings.simplefilter("ignore")
            return repr(self._reader.read(self.path))

    def fault_of(self, changed):
        """What the reader does wrong with a content; empty for nothing."""
        self.path.write_bytes(changed)
        try:
            with limited():
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


class TooLongError(BaseException):
    """A reader did not end in time."""


@contextlib.contextmanager
def limited():
    """End what computes too long, or waits."""

    def stop(*_):
        raise TooLongError(f"more than {MAX_SECONDS} s")

    numbers = (signal.SIGPROF, signal.SIGALRM)
    before = [signal.signal(number, stop) for number in numbers]
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    signal.alarm(MAX_WAIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    "profile",
    ["fast", pytest.param("long", marks=[pytest.mark.slow, pytest.mark.long])],
)
def test_corrupt_input(kind, profile, tmp_path, trials):
    if kind == "tar":
        pytest.importorskip("webdataset")
    subject = Input(READERS[kind], tmp_path)
    counts = collections.Counter()

    @settings.get_profile(profile)
    @given(corrupted(subject.sound))
    def check(changed):
        fault = subject.fault_of(changed)
        counts["traceback" if fault else "refused or read"] += 1
        assert not fault

    try:
        check()
    finally:
        for outcome, count in counts.items():
            trials.append(Trial("inputs", kind, outcome, count=count))


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("config", b"max_steps: 12", b"max_steps: ${}"),
        ("config", b"max_steps: 12", b"max_steps: ${oc.env:HOME}"),
        ("config", b"name: adagc", b"name: adagc, 2: 3"),
        ("config", b"model:", b"base: config.yaml\nmodel:"),
        ("config", b"model:", b"b: " + b"${train}" * 9000 + b"\nmodel:"),
        ("config", b"model:", b"# " + b"x" * 2**20 + b"\nmodel:"),
        ("config", b"model: ", b"model: " + b"[" * 5000),
        ("claims", b"", b"\x80 no YAML: ["),
        ("record", b'"step": 2', b'"step": 3'),
        ("record", b'{"step": 0', b'3\n{"step": 0'),
        ("run.json", b"3", b"[" * 5000),
        (".idx without manifest", b"MMIDIDX\0\0\1", b"MMIDIDX\0\0\2"),
        ("clip state without checksum", b'"keys"', b'"kess"'),
        ("Hugging Face config", b'layers": 2', b'layers": 2000000000'),
        ("Hugging Face config", b'vocab_size": 64', b'vocab_size": Infinity'),
        ("Hugging Face config", b'vocab_size": 64', b'vocab_size": 2147483648'),
        ("weights' index", b"model-00001", b"../model-00001"),
        ("weights' index", b"model-00001", b"9" * 5000),
        ("overrides", b"train.max", b"[" * 3000),
    ],
)
def test_what_was_once_accepted_is_refused(kind, old, new, tmp_path):
    subject = Input(READERS[kind], tmp_path)
    changed = subject.sound.replace(old, new, 1)
    assert changed != subject.sound
    assert not subject.fault_of(changed)
    subject.path.write_bytes(changed)
    with pytest.raises(ValueError):  # noqa: PT011  (named by fault_of)
        READERS[kind].read(subject.path)


def test_resolvers_of_omegaconf_need_permission(tmp_path, monkeypatch):
    file = tmp_path / "config.yaml"
    file.write_text("train: {output_dir: '${oc.env:HOME}'}")
    with pytest.raises(ValueError, match=r"oc\.env.*ALLOW_RESOLVERS=1"):
        read_values(file)
    monkeypatch.setenv(ALLOW_RESOLVERS, "1")
    monkeypatch.setenv("HOME", "anywhere")
    assert read_values(file) == {"train": {"output_dir": "anywhere"}}


def test_what_a_reader_does_wrong_is_found(tmp_path):
    def read(path):
        text = path.read_text()
        if text == "nameless":
            raise ValueError("something is wrong")
        if text == "crash":
            raise ZeroDivisionError
        return text

    subject = Input(Reader("file.txt", "sound", read, True), tmp_path)
    assert "without the file" in subject.fault_of(b"nameless")
    assert "ZeroDivisionError" in subject.fault_of(b"crash")
    assert "accepted" in subject.fault_of(b"changed")
    assert not subject.fault_of(b"sound")
