# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Size and checksum of a file that grows, and a file that goes away."""

import os

import pytest

from paddle_adagc.lab.checksums import describe
from paddle_adagc.lab.record.appending import AppendedFile


def test_what_is_appended_is_counted_and_hashed(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"kept, cut")
    file = AppendedFile(path, 4)
    assert file.sync() == describe(tmp_path, ["a"])["a"]
    file.write(b" and")
    file.write(b" more")
    assert file.sync() == describe(tmp_path, ["a"])["a"]
    assert path.read_bytes() == b"kept and more"
    file.close()


def test_a_flush_hands_all_data_over(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    file = AppendedFile(tmp_path / "a", 0)
    file.write(b"data")
    file.flush()
    assert (tmp_path / "a").read_bytes() == b"data"
    assert synced == []
    file.sync()
    assert len(synced) == 1


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_gone_is_named(tmp_path, replaced):
    path = tmp_path / "a"
    file = AppendedFile(path, 0)
    path.unlink()
    if replaced:
        path.write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="the file is gone"):
        file.flush()
