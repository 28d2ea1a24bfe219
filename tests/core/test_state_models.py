# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A state and the model it is loaded for: names, order, units, parts."""

import numpy as np
import paddle
import pytest
from core.state_models import KEYS, bound_clip, fill, make_model
from helpers import clip_arrays, gammas, make_parameters
from paddle.distributed.fleet.meta_parallel.meta_parallel_base import (
    MetaParallelBase,
)
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_stage2,
    group_sharded_stage3,
)
from paddle.distributed.fleet.utils.mix_precision_utils import MixPrecisionLayer

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.layout import unwrap
from paddle_adagc.parallel.ranks import Ranks
from paddle_adagc.parallel.topology import Axis, Topology
from paddle_adagc.state import ClipState


def test_unbound_state_is_for_the_same_tensors():
    parameters = make_parameters([[2], [3]])
    donor, same, clip = ClipGradByAdaGC(), ClipGradByAdaGC(), ClipGradByAdaGC()
    fill(donor, parameters)
    for each in (same, clip):
        each.set_state_dict(donor.state_dict())
    fill(same, parameters)
    assert same.num_steps == 2
    with pytest.raises(ValueError, match="another model"):
        fill(clip, make_parameters([[2], [3]]))


def test_models_that_cannot_be_bound():
    model = make_model()
    for wrong in (paddle.Model(model), [model]):
        with pytest.raises(TypeError, match="bind the network"):
            ClipGradByAdaGC().bind(wrong)


def test_a_state_saved_unbound_loads_renamed_into_a_bound_clip():
    """Of a model whose first layer was frozen: the state lacks its tensors."""
    model = make_model()
    for parameter in model[0].parameters():
        parameter.stop_gradient = True
    unbound, clip = ClipGradByAdaGC(t_start=3), bound_clip(model)
    for _ in range(5):
        fill(unbound, model.parameters()[2:])
    state = unbound.state_dict()
    with pytest.raises(ValueError, match=r"automatic names .*rename=dict\("):
        clip.set_state_dict(state)
    rename = dict(zip(state["gamma"], KEYS[2:], strict=True))
    clip.set_state_dict(state, rename=rename)
    assert clip.num_steps == 5
    assert gammas(clip).tolist() == [np.inf, np.inf, *gammas(unbound)]


def test_parameters_that_are_no_tensors_of_the_model_are_named():
    model = make_model()
    (stranger,) = make_parameters([[4]])
    with pytest.raises(ValueError, match=stranger.name):
        fill(bound_clip(model), [stranger])
    stranger.name = f"slice@{model[0].weight.name}"
    for clip in (ClipGradByAdaGC(), bound_clip(model)):
        with pytest.raises(ValueError, match=r"slice@.*sharding stage 3"):
            fill(clip, [stranger])


@pytest.mark.parametrize(
    ("wrapper", "attribute"),
    [
        (MetaParallelBase, "_layers"),
        (MixPrecisionLayer, "_layers"),
        (group_sharded_stage2.GroupShardedStage2, "_layer"),
        (group_sharded_stage3.GroupShardedStage3, "_layer"),
    ],
)
def test_wrappers_are_looked_through(wrapper, attribute):
    # Their own constructors take process groups, and some a GPU.
    wrapped = wrapper.__new__(wrapper)
    paddle.nn.Layer.__init__(wrapped)
    model = make_model()
    setattr(wrapped, attribute, model)
    assert unwrap(paddle.DataParallel(wrapped)) is model
    model._layers = paddle.nn.LayerList([paddle.nn.Linear(2, 2)])  # its own
    keys = bound_clip(paddle.DataParallel(model)).state_dict()["gamma"].keys()
    assert keys == {*KEYS, "_layers.0.weight", "_layers.0.bias"}


def test_model_that_has_grown_is_bound_again_while_there_is_no_state():
    model = make_model()
    clip = bound_clip(model)
    model.add_sublayer("head", paddle.nn.Linear(2, 2))
    clip.bind(model)
    assert "head.weight" in clip.state_dict()["gamma"]
    fill(clip, model.parameters())
    before = clip.state_dict()
    model.add_sublayer("second_head", paddle.nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="new clip"):
        clip.bind(model)
    assert clip.state_dict() == before
    loaded = bound_clip(make_model())
    loaded.set_state_dict(bound_clip(make_model()).state_dict())
    with pytest.raises(RuntimeError, match="before set_state_dict"):
        loaded.bind(model)


def test_two_parameters_of_one_name_are_refused():
    def make_linear():
        with paddle.utils.unique_name.guard():
            return paddle.nn.Linear(2, 2, bias_attr=False)

    pair = paddle.nn.LayerList([make_linear(), make_linear()])
    with pytest.raises(ValueError, match=r"two .*'linear_0\.w_0'.*guard"):
        ClipGradByAdaGC().bind(pair)
    clip = ClipGradByAdaGC()
    with pytest.raises(ValueError, match=r"two .*'linear_0\.w_0'.*guard"):
        clip_arrays(clip, pair.parameters(), [np.ones([2, 2])] * 2)
    weight = pair[0].weight
    with pytest.raises(ValueError, match="twice in the optimizer's list"):
        clip_arrays(clip, [weight, weight], [np.ones([2, 2])] * 2)
    assert clip.num_steps == 0


@pytest.mark.parametrize("binds", ["before", "never"])
def test_a_state_loads_into_a_model_that_has_changed(binds, caplog):
    """A head is exchanged: its tensors start, those of the old are gone."""
    model = make_model()
    donor = ClipGradByAdaGC(t_start=3)
    if binds != "never":
        donor.bind(model)
    for _ in range(4):
        fill(donor, model.parameters())
    state = donor.state_dict()
    model[2] = paddle.nn.Linear(6, 3)
    model.add_sublayer("extra", paddle.nn.Linear(3, 3))
    clip = ClipGradByAdaGC(t_start=3)
    if binds == "before":
        clip.bind(model)
        with pytest.raises(ValueError, match="new_tensors='start'"):
            clip.set_state_dict(state)
    clip.set_state_dict(state, new_tensors="start")
    fill(clip, model.parameters())
    assert clip.num_steps == 5
    after = clip.state_dict()["gamma"]
    assert all(np.isfinite(float(gamma)) for gamma in after.values())
    if binds != "never":
        assert [*after] == [*KEYS, "extra.weight", "extra.bias"]
        assert "extra.weight is new" in caplog.text
    with pytest.raises(ValueError, match="new_tensors must be one of"):
        clip.set_state_dict(state, new_tensors="drop")


def test_a_state_that_a_restart_forgot_does_not_keep_a_model_away():
    clip = ClipGradByAdaGC(t_start=0)
    clip.set_state_dict({"step": 5, "gamma": {"w_0": 1.0}, "config": {}})
    clip.restart_warmup()
    clip.bind(make_model())
    assert clip.num_steps == 5
    assert [*clip.state_dict()["gamma"]] == [*KEYS]


def test_a_bound_state_in_an_unbound_clip_is_named():
    model = make_model()
    donor, clip = ClipGradByAdaGC(t_start=0), ClipGradByAdaGC(t_start=0)
    donor.bind(model)
    fill(donor, model.parameters())
    clip.set_state_dict(donor.state_dict(), new_tensors="start")
    with pytest.raises(ValueError, match=r"lacks .*\.w_0.*Use bind\(model\)"):
        fill(clip, model.parameters())


def test_whole_tensors_of_a_state_do_not_become_units():
    model = make_model()
    whole = bound_clip(model, steps=3)
    clip = ClipGradByAdaGC(t_start=3)
    clip.bind(model, units={"0.weight": {"parts": ["a", "b"]}})
    with pytest.raises(ValueError, match="units were declared here and not th"):
        clip.set_state_dict(whole.state_dict())


def test_a_whole_state_fits_a_rank_s_part_of_the_model(monkeypatch):
    model = make_model()
    state = bound_clip(model, steps=4).full_state_dict()
    clip = ClipGradByAdaGC(t_start=3)
    clip.bind(paddle.nn.Sequential(model[0]))
    with pytest.raises(ValueError, match=r"'2\.weight', '2\.bias' unknown"):
        clip.set_state_dict(state)
    monkeypatch.setattr(paddle.distributed, "get_world_size", lambda: 2)
    stage = Topology(pipe=Axis(0, 2))
    monkeypatch.setattr(f"{Ranks.__module__}.read_topology", lambda: stage)
    clip.set_state_dict(state)
    gamma = clip.state_dict()["gamma"]
    assert [*gamma] == ["0.weight", "0.bias"]
    assert all(float(gamma[k]) == float(state["gamma"][k]) for k in gamma)


def test_state_of_the_same_network_under_other_names_loads_renamed():
    state = bound_clip(make_model(), steps=5).state_dict()
    first, last = paddle.nn.Linear(4, 6), paddle.nn.Linear(6, 2)
    clip = bound_clip(paddle.nn.LayerDict({"first": first, "last": last}))
    with pytest.raises(ValueError, match="give set_state_dict a rename"):
        clip.set_state_dict(state)
    clip.set_state_dict(state, rename={"0": "first", "2": "last"})
    gamma = clip.state_dict()["gamma"]
    for old, new in (("0.weight", "first.weight"), ("2.bias", "last.bias")):
        assert gamma[new] == state["gamma"][old]
    with pytest.raises(ValueError, match="rename has '7', with which no key"):
        clip.set_state_dict(state, rename={"0": "first", "7": "last"})
    with pytest.raises(ValueError, match=r"two tensors the key '2\.bias'"):
        clip.set_state_dict(state, rename={"2.weight": "2.bias"})


@pytest.mark.parametrize(
    ("prefixes", "keys"),
    [
        ({"a": "x", "a.b": "y"}, ("y.weight", "x.c.weight")),  # the longest
        ({"": "model", "a.b": "c"}, ("c.weight", "model.a.c.weight")),
        ({"a": ""}, ("b.weight", "c.weight")),
    ],
)
def test_prefixes_of_keys_are_renamed(prefixes, keys):
    state = ClipState(3, {}, ("a.b.weight", "a.c.weight"), np.ones(2))
    assert state.renamed(prefixes).keys == keys
