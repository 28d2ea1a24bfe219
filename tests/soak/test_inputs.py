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
from soak.readers import READERS, Reader
from soak.trials import REPEAT, Trial

from paddle_adagc.lab.train.parse import ALLOW_RESOLVERS, read_values

ERRORS = load_tool("command").ERRORS
MAX_SECONDS = 5
"""Of the processor."""
MAX_WAIT = 60
"""Seconds of the clock: the machine may be busy."""

MAX_BYTES = 512 * 2**20
"""Of memory that a reader may take, above what the process has."""

BINARY = {".idx", ".idx without manifest", "flight recorder", "gzip", "tar"}
BINARY |= {"clip state", "clip state without checksum", "weights", ".bin"}
JSON = {"weights' index", "manifest", "Hugging Face config", "tokenizer"}
JSON |= {"record", "ended record", "run.json", "complete.json", "jsonl"}
YAML = {"config", "claims", "experiments"}
STRUCTURED = sorted({*BINARY, *JSON, *YAML, "results"})
"""Kinds whose structure is changed, too."""


def nested(depth):
    """Return a list in a list in a list ..."""
    value = []
    for _ in range(depth):
        value = [value]
    return value


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


VALUES = (
    *(None, True, 0, -1, -5, 1, 3, 2**31, 2**63, 10**18, 1.5, 1e300, math.nan),
    *("", "x", "../x", "9" * 5000, "${a}", "x" * 100_000),
    *([], {}, [[]], [0] * 10_000, {"a": {}}, {"": None}, nested(900)),
)
"""What takes the place of a value: sizes, counts, names, nesting."""


@st.composite
def restructured(draw, content):
    """``content``, of JSON or of JSON lines, after changes of its values."""
    try:
        lines = [json.dumps(json.loads(content)).encode()]
    except ValueError:
        lines = content.splitlines()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        try:
            found = json.loads(lines[at])
        except ValueError:
            continue
        lines[at] = json.dumps(_changed(draw, found)).encode()
    return b"\n".join(lines) + b"\n"


@st.composite
def rewritten(draw, content):
    """``content``, of YAML, after changes of its values; some are aliases."""
    value = yaml.load(content, yaml.CSafeLoader)
    for _ in range(draw(st.integers(1, 3))):
        value = _changed(draw, value)
    try:
        text = yaml.dump(value, Dumper=yaml.CSafeDumper)
    except RecursionError:
        text = json.dumps(value)
    return text.encode()


def _changed(draw, value):
    """Change one value, one key or one list, at a random place."""
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from([*value]))
        return {**value, key: _changed(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        place = draw(st.integers(0, len(value) - 1))
        changed = _changed(draw, value[place])
        return [*value[:place], changed, *value[place + 1 :]]
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
        form = draw(st.sampled_from(("<H", "<I", "<q", ">q", "octal")))
        text = b"%011o\0" % (abs(number) % 2**33)
        if form != "octal":
            size = struct.calcsize(form)
            order = "little" if form[0] == "<" else "big"
            text = (number % 2 ** (8 * size)).to_bytes(size, order)
        headers = [0, 124, 512 + 124, max(len(changed) - 60, 0)]
        start = draw(st.sampled_from(headers)) + draw(st.integers(0, 40))
        changed[start : start + len(text)] = text
    return bytes(changed)


STRUCTURES = {
    **dict.fromkeys(STRUCTURED, restructured),
    **dict.fromkeys(BINARY, reheaded),
    **dict.fromkeys(YAML, rewritten),
}
"""Kind of input -> what changes its structure."""


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
            with limited(), limited_memory():
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


@contextlib.contextmanager
def limited_memory():
    """Refuse memory above ``MAX_BYTES`` more: a ``MemoryError``."""
    fields = Path("/proc/self/statm").read_text().split()
    used = int(fields[5]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = used + MAX_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("is_structural", [False, True])
@pytest.mark.parametrize(
    "profile",
    ["fast", pytest.param("long", marks=[pytest.mark.slow, pytest.mark.long])],
)
def test_corrupt_input(kind, is_structural, profile, tmp_path, trials):
    if is_structural and kind not in STRUCTURES:
        pytest.skip("its bytes alone are changed")
    change = STRUCTURES[kind] if is_structural else corrupted
    if kind == "tar":
        pytest.importorskip("webdataset")
    subject = Input(READERS[kind], tmp_path)
    counts = collections.Counter()

    @settings.get_profile(profile)
    @given(change(subject.sound))
    def check(changed):
        fault = subject.fault_of(changed)
        counts["traceback" if fault else "refused or read"] += 1
        assert not fault

    try:
        check()
    finally:
        group = "structures" if is_structural else "inputs"
        for outcome, count in counts.items():
            trials.append(Trial(group, kind, outcome, count=count))


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
        return {"0": 1, "1": 2}[path.read_text()]

    subject = Input(Reader("file.txt", "0", read, True), tmp_path)
    assert "KeyError" in subject.fault_of(b"2")
    assert "accepted" in subject.fault_of(b"1")
    assert not subject.fault_of(b"0")
    nameless = Input(
        Reader("x", "0", lambda path: int(path.read_text())), tmp_path
    )
    assert "without the file" in nameless.fault_of(b"a word")
