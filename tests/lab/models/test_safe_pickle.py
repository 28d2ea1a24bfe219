# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Weights from strangers: read as arrays, or refused."""

import os
import pickle

import numpy as np
import paddle
import pytest
from adagc_lab.models.safe_pickle import check_pickle


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [2, 4])
def test_code_in_weights_is_refused_and_not_run(tmp_path, protocol):
    file = tmp_path / "model_state.pdparams"
    weights = {"a": np.ones(2), "b": Attack(tmp_path / "hacked")}
    file.write_bytes(pickle.dumps(weights, protocol))
    with pytest.raises(ValueError, match=r"model_state.*refused.*system"):
        check_pickle(file)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("protocol", [2, 4])
def test_paddle_s_own_files_pass(tmp_path, protocol):
    state = paddle.nn.Linear(3, 2).state_dict()
    state["half"] = paddle.ones([2]).astype("bfloat16")
    file = str(tmp_path / "model_state.pdparams")
    paddle.save(state, file, protocol=protocol)
    check_pickle(file)


@pytest.mark.parametrize("content", [b"", b"no pickle", b"\x80\x04"])
def test_broken_file_is_named(tmp_path, content):
    file = tmp_path / "model_state.pdparams"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"model_state\.pdparams is broken"):
        check_pickle(file)
