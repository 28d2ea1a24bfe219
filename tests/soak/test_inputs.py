# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Corrupt input of every kind is refused by name, or read."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddle_adagc.lab.soak.inputs import (
    TOKENS,
    Edit,
    Input,
    Reader,
    corrupt,
)
from paddle_adagc.lab.soak.readers import READERS
from paddle_adagc.lab.train.parse import ALLOW_RESOLVERS, read_values

EDITS = st.lists(
    st.builds(
        Edit,
        place=st.floats(0, 1),
        length=st.integers(0, 30) | st.just(10**9),
        payload=st.sampled_from(TOKENS) | st.binary(max_size=4),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("kind", READERS)
def test_corrupt_input(kind, tmp_path):
    if kind == "tar":
        pytest.importorskip("webdataset")
    subject = Input(READERS[kind], tmp_path)

    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[*HealthCheck],
    )
    @given(EDITS)
    def check(edits):
        assert not subject.fault_of(corrupt(subject.sound, edits))

    check()


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("config", b"max_steps: 12", b"max_steps: ${}"),
        ("config", b"max_steps: 12", b"max_steps: ${oc.env:HOME}"),
        ("config", b"name: adagc", b"name: adagc, 2: 3"),
        ("config", b"model:", b"base: config.yaml\nmodel:"),
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
    def make(folder):
        path = folder / "file.txt"
        path.write_text("sound")
        return path

    def read(path):
        text = path.read_text()
        if text == "nameless":
            raise ValueError("something is wrong")
        if text == "crash":
            raise ZeroDivisionError
        return text

    subject = Input(Reader(make, read, has_checksum=True), tmp_path)
    assert "without the file" in subject.fault_of(b"nameless")
    assert "ZeroDivisionError" in subject.fault_of(b"crash")
    assert "accepted" in subject.fault_of(b"changed")
    assert not subject.fault_of(b"sound")


def test_edits():
    edits = [Edit(0.5, 2, b"xy"), Edit(1.0, 10**9, b"!")]
    assert corrupt(b"abcdef", edits) == b"abcxyf!"
