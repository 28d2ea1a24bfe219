# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Corrupt input of every kind is refused by name, or read.

A sound file of every kind is changed in random places. The reader must refuse
it by an error that names the file, or read something. It must not raise another
exception, take more than ``MAX_SECONDS``, or read a changed file that has a
checksum.
"""

import contextlib
import io
import json
import math
import resource
import signal
import struct
import warnings
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages import load_tool
from soak.readers import READERS
from soak.runs import REPEAT

ERRORS = load_tool("command").ERRORS
MAX_SECONDS = 5
"""Of the processor."""

MAX_BYTES = 512 * 2**20
"""Of memory that a reader may take, above what the process has."""

BINARY = {".idx", ".idx without manifest", "tensors.npy", "tar"}
BINARY |= {"clip state", "clip state without checksum", "weights", ".bin"}


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

VALUES = (
    *(None, True, 0, -1, -5, 1, 3, 2**31, 2**63, 10**18, 1.5, 1e300, math.nan),
    *("", "x", "../x", "9" * 5000, "${a}", "x" * 100_000),
    *([], {}, [[]], [0] * 10_000, {"a": {}}, {"": None}),
    json.loads("[" * 900 + "]" * 900),
)
"""What takes the place of a value: sizes, counts, names, nesting."""


@st.composite
def corrupted(draw, content):
    """``content`` after one to three changes: bytes, cuts and ``TOKENS``."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        length = draw(st.integers(0, 30) | st.just(len(content)))
        payload = draw(st.sampled_from(TOKENS) | st.binary(max_size=4))
        content = content[:start] + payload + content[start + length :]
    return content


@st.composite
def restructured(draw, content):
    """JSON, JSON lines or YAML after changes of their values."""
    try:
        lines = [json.loads(content)]
    except ValueError:
        try:
            lines = [json.loads(line) for line in content.splitlines()]
        except ValueError:
            lines = [yaml.load(content, yaml.CSafeLoader)]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        lines[at] = draw(changed(lines[at]))
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


@st.composite
def changed(draw, value):
    """Change one value, one key or one list, at a random place."""
    if isinstance(value, dict | list) and value and draw(st.integers(0, 3)):
        places = [*value] if isinstance(value, dict) else range(len(value))
        place, new = draw(st.sampled_from(places)), value.copy()
        new[place] = draw(changed(value[place]))
        return new
    if isinstance(value, dict) and draw(st.booleans()):
        left = [*value][: draw(st.integers(0, len(value)))]
        extra = draw(st.sampled_from(VALUES))
        return {key: value[key] for key in left} | {"extra": extra}
    if isinstance(value, list) and draw(st.booleans()):
        return value * draw(st.sampled_from((0, 2, 1000)))
    return draw(st.sampled_from(VALUES))


@st.composite
def reheaded(draw, content):
    """``content`` with other numbers in its binary or ASCII headers."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.sampled_from((0, 1, 2**16, 2**31, 2**40, 2**63, -1)))
        text = b"%011o\0" % (abs(number) % 2**33)
        form = draw(st.sampled_from(("<H", "<I", "<Q", ">Q", "octal")))
        if form != "octal":
            size = struct.calcsize(form)
            text = struct.pack(form, number % 2 ** (8 * size))
        headers = [0, 124, 512 + 124, max(len(changed) - 60, 0)]
        start = draw(st.sampled_from(headers)) + draw(st.integers(0, 40))
        changed[start : start + len(text)] = text
    return bytes(changed)


class TooLongError(BaseException):
    """A reader did not end in time; no reader catches it."""


@contextlib.contextmanager
def limited():
    """End what computes too long; refuse memory above ``MAX_BYTES`` more."""

    def stop(*_):
        raise TooLongError(f"more than {MAX_SECONDS} s")

    fields = Path("/proc/self/statm").read_text().split()
    used = int(fields[5]) * resource.getpagesize()
    memory = resource.getrlimit(resource.RLIMIT_DATA)
    handler = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    resource.setrlimit(resource.RLIMIT_DATA, (used + MAX_BYTES, memory[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, memory)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


def read(reader, path):
    """What a reader reads, as text."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),  # PaddleNLP's
    ):
        warnings.simplefilter("ignore")
        return repr(reader.read(path))


def fault_of(reader, path, content, expected=None):
    """What a reader does wrong with a file's content; empty for nothing."""
    path.write_bytes(content)
    try:
        with limited():
            found = read(reader, path)
    except ERRORS as error:
        is_named = path.name.split(".")[0] in str(error)
        if reader.names_file and not is_named:
            return f"error without the file: {error!r:.300}"
        return ""
    except BaseException as error:
        return f"{type(error).__name__}: {error!s:.300}"
    if reader.has_checksum and found != expected:
        return "accepted, in spite of a checksum"
    return ""


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("is_structural", [False, True])
@pytest.mark.parametrize(
    "num_examples",
    [
        15,
        pytest.param(200 * REPEAT, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_corrupt_input(kind, is_structural, num_examples, tmp_path):
    if kind == "tar":
        pytest.importorskip("webdataset")
    change = corrupted
    if is_structural:
        change = reheaded if kind in BINARY else restructured
    reader = READERS[kind]
    path = reader.make(tmp_path)
    sound, expected = path.read_bytes(), read(reader, path)

    @settings(
        max_examples=num_examples,
        derandomize=num_examples == 15,
        deadline=None,
        database=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(change(sound))
    def check(content):
        assert not fault_of(reader, path, content, expected)

    check()


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("config", b"max_steps: 12", b"max_steps: ${oc.env:HOME}"),
        ("config", b"name: adagc", b"name: adagc, 2: 3"),
        ("config", b"model:", b"base: config.yaml\nmodel:"),
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
    ],
)
def test_what_was_once_accepted_is_refused(kind, old, new, tmp_path):
    path = READERS[kind].make(tmp_path)
    changed = path.read_bytes().replace(old, new, 1)
    assert changed != path.read_bytes()
    assert not fault_of(READERS[kind], path, changed)
    with pytest.raises(ValueError):  # noqa: PT011  (named by fault_of)
        READERS[kind].read(path)
