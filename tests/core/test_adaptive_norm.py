# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""States in the form of ERNIE's callback load, or are refused by name."""

import logging
import math
import pickle

import numpy as np
import paddle
import pytest
from core.parallel.simulated import Ranks, along
from helpers import Attack, gammas
from reference.ernie import FILE, as_theirs

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.adaptive_norm import load_adaptive_norm

FILES = FILE.replace(".pth", "_{}.pth")
ABOUT = {
    "clip_ratio": 1.03,
    "beta": 0.98,
    "epsilon": 1e-8,
    "start_clip_steps": 100,
    "shard_clip": False,
    "enable_record": False,
    "steps": 120,
    "enable_record_clip_history": False,
}


def state_of(norms, **about):
    """A state of their form; norms by name."""
    by_name = {
        name: {
            "norm_value": np.array([norm], np.float32),
            "clip_times": 3,
            "norm_history": {1: [1.0, 2.0]},
        }
        for name, norm in norms.items()
    }
    return as_theirs({**by_name, **ABOUT, **about})


def bound_clip(model=None, **arguments):
    """A clip, and Paddle's names of its model's parameters by key."""
    model = model or paddle.nn.Linear(3, 2)
    clip = ClipGradByAdaGC(t_start=101, lambda_rel=1.03, beta=0.98)
    clip.bind(model, **arguments)
    return clip, {key: p.name for key, p in model.named_parameters()}


@pytest.mark.parametrize(("protocol", "steps"), [(2, 120), (4, 100)])
def test_one_process(tmp_path, protocol, steps):
    """Its warm-up is one step longer than it says."""
    clip, names = bound_clip()
    norms = {names["weight"]: 0.5, names["bias"]: 0.25}
    state = state_of(norms, steps=steps)
    paddle.save(state, str(tmp_path / FILE), protocol=protocol)
    clip.set_state_dict(load_adaptive_norm(clip, tmp_path))
    assert clip.num_steps == steps
    assert clip.warmup_left == (steps == 100)
    assert gammas(clip).tolist() == [0.5, 0.25]


def test_norms_of_bfloat16_gradients_are_read(tmp_path):
    clip, names = bound_clip()
    norm = paddle.to_tensor(0.3, "bfloat16")
    theirs = {name: {"norm_value": norm} for name in names.values()}
    paddle.save({**state_of({}), **theirs}, str(tmp_path / FILE))
    found = load_adaptive_norm(clip, tmp_path)["gamma"]
    assert {*found.values()} == {norm.item()}


@pytest.mark.parametrize("norm", [0.0, math.nan, math.inf, -1.0])
def test_units_and_what_is_no_norm_start_anew(tmp_path, norm, caplog):
    model = paddle.nn.Linear(4, 4)
    model.other = paddle.nn.Linear(2, 2)
    units = {"^weight": {"parts": {"q": 2, "k": 2}}}
    clip, names = bound_clip(model, units=units)
    norms = dict.fromkeys(names.values(), 0.5) | {names["other.bias"]: norm}
    paddle.save(state_of(norms), str(tmp_path / FILE))
    with caplog.at_level(logging.WARNING):
        state = load_adaptive_norm(clip, tmp_path)
    anew = {k for k, gamma in state["gamma"].items() if gamma == math.inf}
    assert anew == {"q.weight", "k.weight", "other.bias"}
    assert "3 tensors start from their next norms" in caplog.text
    clip.set_state_dict(state)
    assert np.isfinite(gammas(clip)).sum() == 2


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_broken_file_is_named_and_a_crafted_one_runs_nothing(
    tmp_path, protocol
):
    clip, names = bound_clip()
    target = tmp_path / "hacked"
    for content in (b"", b"no pickle", b"\x80\x04"):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(ValueError, match=f"{FILE} is refused"):
            load_adaptive_norm(clip, tmp_path)
    for bad in (
        Attack(target),
        {**ABOUT, names["bias"]: {"norm_value": Attack(target)}},
        {**ABOUT, names["bias"]: {"norm_value": eval}},
        {**ABOUT, names["bias"]: {"norm_value": np.float32}},
        {**ABOUT, "clip_ratio": tmp_path},
    ):
        (tmp_path / FILE).write_bytes(pickle.dumps(bad, protocol))
        with pytest.raises(ValueError, match="refused: it asks for"):
            load_adaptive_norm(clip, tmp_path)
    assert not target.exists()


NO_NUMBERS = "x", True, [0.5], np.ones(2), np.ones(1, "int8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": None}, "no state of ClipGradByAdaptive"),
        ({"steps": -1}, "is no count"),
        ({"steps": True}, "is no count"),
        ({"a": {"clip_times": 1}}, "not one number"),
        *(({"a": {"norm_value": x}}, "not one number") for x in NO_NUMBERS),
        ({"a": {"norm_value": 0.5}}, r"of another model.*lacks a \(1 in all"),
    ],
)
def test_another_content_is_named(tmp_path, change, message):
    clip, names = bound_clip()
    state = state_of(dict.fromkeys(names.values(), 0.5)) | change
    state = {name: value for name, value in state.items() if value is not None}
    paddle.save(state, str(tmp_path / FILE))
    with pytest.raises(ValueError, match=f"{FILE} is.*{message}.*To start"):
        load_adaptive_norm(clip, tmp_path)


def test_a_clip_that_is_not_bound_is_named(tmp_path):
    paddle.save(state_of({"a": 0.5}), str(tmp_path / FILE))
    with pytest.raises(RuntimeError, match=r"call clip.bind\(model\) first"):
        load_adaptive_norm(ClipGradByAdaGC(), tmp_path)


@pytest.mark.parametrize(
    ("files", "num_ranks", "expected"),
    [
        ({0: 0.5, 1: 0.5}, 2, 0.5),
        ({}, 2, "no adaptivenorm_clip_state"),
        ({"": 0.5}, 2, "a single process saved it, and this run has 2"),
        (
            {0: 0.5, 1: 0.5},
            1,
            "process 1 of several saved it, and this run has 1",
        ),
        ({0: 0.5}, 1, "process 0 of several saved it, and this run has 1"),
        ({0: 0.5, 2: 0.5}, 4, "rank 1, 3 of 4 has no file"),
        ({0: 0.5, 1: 0.6}, 2, "norm_value of bias is 0.6.* on rank 1, and 0.5"),
        ({0: 0.5, 1: {"steps": 99}}, 2, "do not belong together"),
        ({0: {"shard_clip": True}, 1: {"shard_clip": True}}, 2, "shard_clip"),
        ({0: 0.5, 1: b"bytes"}, 2, "rank 1: .*_1.pth is refused"),
    ],
)
def test_ranks(monkeypatch, tmp_path, files, num_ranks, expected):
    clip, names = bound_clip()
    for rank, content in files.items():
        path = tmp_path / (FILE if rank == "" else FILES.format(rank))
        about = content if isinstance(content, dict) else {}
        norm = content if isinstance(content, float) else 0.5
        state = state_of({names["bias"]: norm, names["weight"]: 1.0}, **about)
        paddle.save(state, str(path))
        if isinstance(content, bytes):
            path.write_bytes(content)

    def load(rank):
        return load_adaptive_norm(clip, tmp_path)["gamma"]

    ranks = Ranks(monkeypatch, along("data", num_ranks))
    if isinstance(expected, float):
        assert ranks.run(load) == [{"bias": expected, "weight": 1.0}] * 2
        return
    with pytest.raises((FileNotFoundError, ValueError), match=expected):
        ranks.run(load)
