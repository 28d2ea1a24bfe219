# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""State of the clip as a dict; bad states are refused."""

import numpy as np
import paddle
import pytest
from core.state_models import KEYS, bound_clip, fill, make_model
from helpers import gammas, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.topology import Axis, Topology
from paddle_adagc.state_file import load_state, save_state


def test_order_of_the_keys_in_a_state_does_not_matter():
    model = make_model()
    state = bound_clip(model, steps=4).state_dict()
    assert list(state["gamma"]) == KEYS
    for value in state["gamma"].values():
        assert (value.shape, value.dtype) == ([], paddle.float32)
    backwards = dict(reversed(state["gamma"].items()))
    clip = bound_clip(model)
    clip.set_state_dict({**state, "gamma": backwards})
    again = clip.state_dict()
    assert (again["step"], again["config"]["t_start"]) == (4, 3)
    assert [*again["gamma"].items()] == [*state["gamma"].items()]


def changed(values, change):
    """Other values for some names, or for keys in them; None takes one out."""
    merged = {**values, **change}
    for name, x in change.items():
        if isinstance(x, dict) and x:
            merged[name] = changed(values.get(name, {}), x)
    return {name: x for name, x in merged.items() if x is not None}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": None}, "step"),
        ({"gamma": None}, "gamma"),
        ({"config": None}, "config"),
        ({"step": -1}, "-1"),
        ({"step": 2.5}, "2.5"),
        *(({"warmup_start": x}, "warmup_start") for x in (-1, 2.5, 5, {})),
        ({"gamma": [1.0]}, "gamma"),
        *(({"gamma": {"0.bias": x}}, f"0.bias.*{x}") for x in (-0.5, 0.0)),
        ({"gamma": {"0.bias": float("nan")}}, "0.bias.*nan"),
        ({"gamma": {"0.bias": np.ones(3)}}, r"0.bias.*\[3\]"),
        ({"gamma": {"0.bias": "big"}}, "0.bias"),
        *(({"gamma": {"0.bias": x}}, ".*float32") for x in (1e-300, 1e39)),
        ({"gamma": {"4.weight": 1.0}, "support": None}, "4.weight"),
        ({"gamma": {"2.weight": None}, "support": None}, "2.weight"),
        ({"support": {"0.bias": -1.0}}, "support of '0.bias'"),
        ({"support": {"0.bias": None}}, r"lacks \['0.bias'\]"),
    ],
    ids=str,
)
def test_bad_state_is_refused_and_leaves_the_clip_unchanged(change, message):
    clip = bound_clip(make_model(), steps=2)
    before = clip.state_dict()
    with pytest.raises(ValueError, match=message):
        clip.set_state_dict(changed(before, change))
    assert clip.state_dict() == before


@pytest.mark.parametrize(
    ("state", "kind", "message"),
    [
        ([], TypeError, "a list, not a dict"),
        ({"w": 1}, ValueError, "a model's or an optimizer's"),
        (
            {"step": 3, "config": {}, "gamma": {}, "mean": {"a": 1.0}},
            ValueError,
            r"holds \['mean'\].*another clip's",
        ),
    ],
)
def test_what_is_no_state_of_the_clip_is_refused(state, kind, message):
    clip = ClipGradByAdaGC()
    with pytest.raises(kind, match=message):
        clip.set_state_dict(state)
    assert clip.num_steps == 0


@pytest.mark.filterwarnings("error")
def test_other_arguments_are_warned_of_once_the_state_is_loaded():
    donor = ClipGradByAdaGC(lambda_rel=2.0)
    parameters = make_parameters([[2]])
    for _ in range(7):
        fill(donor, parameters)
    clip = ClipGradByAdaGC()
    with pytest.raises(UserWarning, match=r"lambda_rel=1.04 \(state: 2.0\)"):
        clip.set_state_dict(donor.state_dict())
    assert (clip.num_steps, clip.lambda_rel) == (7, 1.04)
    assert gammas(clip).tolist() == gammas(donor).tolist()
    after = r"lambda_abs=0.5 "
    for t_start, message in (
        (7, after),
        (8, r"t_start=8 \(state: 100\)$"),
    ):
        clip = ClipGradByAdaGC(lambda_rel=2.0, t_start=t_start, lambda_abs=0.5)
        with pytest.raises(UserWarning, match=message):
            clip.set_state_dict(donor.state_dict())


def test_one_rank_s_state_is_not_taken_for_the_whole(monkeypatch, tmp_path):
    model = make_model()
    rank, whole = (bound_clip(model) for _ in range(2))
    topology = Topology(sharding=Axis(0, 2))  # each tensor has an owner
    monkeypatch.setattr(rank._progress.ranks, "topology", lambda: topology)
    fill(rank, model.parameters()[:2])
    save_state(rank.state_dict(), tmp_path)
    state = load_state(tmp_path)
    assert [*state["gamma"]] == KEYS[:2]
    with pytest.raises(ValueError, match=r"'2\.weight', '2\.bias' missing.*fu"):
        whole.set_state_dict(state)
    assert whole.num_steps == 0
    whole.set_state_dict(state, new_tensors="start")
    assert whole.num_steps == 1
    assert np.isinf(gammas(whole)).tolist() == [False, False, True, True]
    fill(whole, model.parameters())
    assert np.isfinite(gammas(whole)).all()
