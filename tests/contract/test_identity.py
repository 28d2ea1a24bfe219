# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip knows its model by more than names; its attributes by theirs."""

import copy
import pickle

import paddle
import pytest

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.watch import Record


def make_model(width=4):
    """A model with the names of every other one made here."""
    with paddle.utils.unique_name.guard():
        return paddle.nn.Linear(3, width)


def step(model, clip):
    optimizer = paddle.optimizer.SGD(
        0.1, parameters=model.parameters(), grad_clip=clip
    )
    model(paddle.ones([2, 3])).sum().backward()
    optimizer.step()
    optimizer.clear_grad()


@pytest.mark.parametrize("is_bound", [True, False])
def test_another_model_of_other_shapes_is_refused(is_bound):
    first, second = make_model(4), make_model(5)
    clip = ClipGradByAdaGC()
    if is_bound:
        clip.bind(first)
    else:
        step(first, clip)
    num_steps = clip.num_steps
    where = r"in the model given to bind\(\)" if is_bound else "in an earlier"
    with pytest.raises(ValueError, match=rf"has the shape \[3, 5\].*{where}"):
        step(second, clip)
    assert clip.num_steps == num_steps


@pytest.mark.parametrize("is_bound", [True, False])
def test_another_model_of_the_same_shapes_is_named_once(is_bound, recwarn):
    first, second = make_model(), make_model()
    clip = ClipGradByAdaGC()
    if is_bound:
        clip.bind(first)
    step(first, clip)
    step(first, clip)
    assert not recwarn.list
    with pytest.warns(UserWarning, match="2 parameters .* are other objects"):
        step(second, clip)
    step(second, clip)
    assert not recwarn.list


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        pytest.param(
            lambda clip: pickle.loads(pickle.dumps(clip)),
            marks=pytest.mark.skipif(
                paddle.__version__ == "3.1.0",
                reason="its tensors cannot be pickled",
            ),
        ),
    ],
)
def test_a_copy_of_a_clip_goes_to_another_model(copied):
    first, second = make_model(), make_model()
    clip = ClipGradByAdaGC()
    clip.bind(first)
    step(first, clip)
    step(second, copied(clip))


def test_an_unknown_attribute_names_the_nearest(tmp_path):
    clip = ClipGradByAdaGC()
    with pytest.raises(AttributeError, match="did you mean 'lambda_rel'"):
        clip.lamda_rel = 2.0
    with pytest.raises(AttributeError, match="no attribute 'xyz'"):
        clip.xyz = 1
    with pytest.raises(AttributeError, match=r"max_grad_norm.*is lambda_abs"):
        clip.max_grad_norm = 1.0
    clip.lambda_rel = 2.0
    assert clip.lambda_rel == 2.0
    model = make_model()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    record = Record(tmp_path, optimizer, model)
    with pytest.raises(AttributeError, match="did you mean 'should_stop'"):
        record.shuold_stop = "x"
    record.close()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("overrides", [None, {"bias": None}])
def test_frozen_clipping_costs_no_look_up(overrides):
    """A parameter with need_clip=False from the start: as one set later."""
    model = make_model()
    model.bias.need_clip = overrides is not None
    clip = ClipGradByAdaGC(t_start=0, overrides=overrides)
    clip.bind(model)
    for _ in range(3):
        step(model, clip)
    assert [*clip.metrics()["tensors"]] == ["weight"]
    if overrides is None:
        model.bias.need_clip = True
        step(model, clip)
        assert [*clip.metrics()["tensors"]] == ["weight", "bias"]
