# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A state on the disk: whole, checked, or refused by name."""

import os
from pathlib import Path

import numpy as np
import paddle
import pytest
from core.state_models import bound_clip, make_model
from helpers import gammas
from safetensors import safe_open
from safetensors.numpy import save_file

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.state_file import STATE_FILE, load_state, save_state


def test_missing_damaged_and_half_written_files(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=STATE_FILE):
        load_state(tmp_path)
    clip = bound_clip(make_model())
    path = save_state(clip.state_dict(), tmp_path)
    old = path.read_bytes()

    def fail(_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("paddle_adagc.files.os.fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            save_state({**clip.state_dict(), "step": 9}, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [STATE_FILE]
    assert path.read_bytes() == old
    path.write_bytes(old[:40])
    with pytest.raises(ValueError, match="damaged"):
        load_state(tmp_path)


def test_state_cast_to_bfloat16_loads_and_saves_its_values(tmp_path):
    state = {
        "step": 1,
        "gamma": {"a": paddle.full([], 0.5).astype("bfloat16")},
        "config": {},
    }
    save_state(state, tmp_path)
    for saved in (state, load_state(tmp_path)):
        clip = ClipGradByAdaGC()
        clip.set_state_dict(saved)
        assert gammas(clip).tolist() == [0.5]
    bits = {**state, "gamma": {"a": state["gamma"]["a"].numpy()}}
    with pytest.raises(ValueError, match="dtype uint16"):
        ClipGradByAdaGC().set_state_dict(bits)


def test_what_a_file_holds(tmp_path):
    """A file of other numbers with its metadata, or of another format."""
    kept = {"gamma": {"a": 0.5}, "support": {"a": 3.0}}
    clip = ClipGradByAdaGC()
    clip.set_state_dict({"step": 7, "config": {}, **kept})
    file_name = "of_this_clip.safetensors"
    path = save_state(clip.state_dict(), tmp_path, file_name)
    assert load_state(tmp_path, file_name)["gamma"] == kept["gamma"]
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
        assert {*file.keys()} == {*kept}
        for name, numbers in kept.items():
            assert file.get_tensor(name).tolist() == [*numbers.values()]
    assert metadata["format"] == "paddle_adagc.state.4"
    assert metadata["step"] == "7"
    for vectors in ({"gamma": [0.75]}, {"support": [0.5]}):
        changed = {name: np.float32(values) for name, values in vectors.items()}
        save_file(changed, path, metadata)
        with pytest.raises(ValueError, match="SHA-256"):
            load_state(tmp_path, file_name)


@pytest.mark.parametrize(
    "make",
    [lambda path: path.symlink_to("gone"), Path.mkdir, os.mkfifo],
)
def test_only_regular_files_are_opened(make, tmp_path):
    make(tmp_path / STATE_FILE)
    with pytest.raises(FileNotFoundError, match="is no file: was the check"):
        load_state(tmp_path)
