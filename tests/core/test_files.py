# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files appear whole or not at all."""

import os

import pytest

from paddle_adagc.files import TEMPORARY, atomic_write, temporary_path


@pytest.mark.parametrize("content", ["größer", b"\x00\xff"])
def test_writes_text_and_bytes(tmp_path, content):
    path = atomic_write(tmp_path / "new" / "file", content)
    expected = content if isinstance(content, bytes) else content.encode()
    assert path.read_bytes() == expected
    assert os.listdir(path.parent) == ["file"]


def test_two_hosts_write_under_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)  # as in two containers
    with (
        temporary_path(tmp_path / "file") as mine,
        temporary_path(tmp_path / "file") as other,
    ):
        mine.write_text("mine")
        other.write_text("other")
    assert (tmp_path / "file").read_text() in ("mine", "other")
    assert os.listdir(tmp_path) == ["file"]


def test_content_and_folder_are_on_the_disk_before_and_after_the_rename(
    tmp_path, monkeypatch
):
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda d: synced.append(os.readlink(f"/proc/self/fd/{d}"))
    )
    atomic_write(tmp_path / "file", "new")
    assert synced[0].endswith(TEMPORARY)
    assert synced[1] == str(tmp_path)
