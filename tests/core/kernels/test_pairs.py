# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One pass in C over the pairs, against the passes in Python."""

import gc
import itertools
import sys

import backends
import numpy as np
import paddle
import pytest
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips import step as clip_step
from paddle_adagc.kernels import host, pairs
from paddle_adagc.kernels.pairs import PairReader

pytestmark = pytest.mark.skipif(
    host.load_library() is None
    or not hasattr(paddle.Tensor, "__dlpack_c_exchange_api__"),
    reason="Paddle before 3.3, or no compiler",
)
SHAPES = [[3], [2, 4], [], [5], [0, 3]]


def known(shapes=SHAPES):
    """A reader, and pairs whose parameters it knows."""
    parameters = make_parameters(shapes)
    reader = PairReader()
    reader.remember(zip(parameters, range(len(shapes)), strict=True))
    gradients = [paddle.full(s, i + 1.0) for i, s in enumerate(shapes)]
    return reader, [*zip(parameters, gradients, strict=True)]


def sparse():
    layer = paddle.nn.Embedding(4, 2, sparse=True)
    layer(paddle.to_tensor([1, 1])).sum().backward()
    return layer.weight.grad


@pytest.mark.parametrize(
    "other",
    [
        lambda p, g: (*make_parameters([[3]]), g),  # unknown
        lambda p, g: (p, sparse()),
        lambda p, g: (p, "no tensor"),
        lambda p, g: (p,),
        lambda p, g: [p, g],
        lambda p, g: p,
    ],
)
def test_other_pairs_are_left_to_python(other):
    reader, listed = known()
    for place in range(5):
        wrong = [*listed]
        wrong[place] = other(*wrong[place])
        assert reader.read(wrong, None, 5) is None
    assert reader.read([*listed, listed[0]], None, 5) is None  # twice
    assert reader.read(listed, None, 5).indexes == [0, 1, 2, 3, 4]


def test_without_one_of_its_parts_there_is_no_pass(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(host, "load_library", lambda: None)
        assert pairs._reader.__wrapped__() is None
    monkeypatch.setattr(paddle.Tensor, "__dlpack_c_exchange_api__", None)
    assert pairs._reader.__wrapped__() is None


@pytest.mark.parametrize("is_read", [True, False])
def test_a_new_tensor_with_an_old_identity_is_not_known(is_read):
    reader, [(parameter, gradient)] = known([[3]])
    identity, reused = id(parameter), None
    del parameter
    for _ in range(100):
        (reused,) = make_parameters([[3]])
        if id(reused) == identity:
            break
    else:
        pytest.skip("Python gave the identity to no new tensor")
    if is_read:
        assert reader.read([(reused, gradient)], None, 1) is None
    reader.remember([(reused, 0)])
    assert reader.read([(reused, gradient)], None, 1).indexes == [0]


def test_dead_parameters_are_forgotten_and_others_are_not():
    reader, listed = known()
    del listed[1:3]
    gc.collect()
    assert reader.read(listed, None, 5).indexes == [0, 3, 4]
    assert len(reader._known) == 3  # and none is kept alive


def test_writing_is_told_on_a_gpu_only(monkeypatch):
    reader, listed = known()

    def versions():
        reader.read(listed, None, 5)
        return [gradient.inplace_version for _, gradient in listed]

    before = versions()
    assert versions() == before
    monkeypatch.setattr(host, "CUDA", host.CPU)
    assert versions() == [version + 1 for version in before]


def test_references_are_given_back():
    reader, listed = known()
    things = [None, False, *itertools.chain(*listed)]
    counts = [*map(sys.getrefcount, things)]
    for _ in range(50):
        reader.read(listed, None, 5)
        reader.read([*listed, listed[0]], None, 5)
    for thing, count in zip(things, counts, strict=True):
        assert abs(sys.getrefcount(thing) - count) < 25


@pytest.mark.parametrize("backend", ["cuda", "host", "operators"])
@pytest.mark.parametrize("has_units", [False, True])
def test_clips_step_as_without_the_pass(monkeypatch, backend, has_units):
    """With gaps, groups of changing order, and a change of need_clip.

    One parameter comes late, and one is never clipped.
    """
    backends.use(backend, monkeypatch)
    # Other tests of this process may have made meshes.
    monkeypatch.setattr(clip_step, "get_unique_process_mesh_map", dict)
    shapes = [[4, 6], [3, 2, 2], [7], [2], [5]]
    model = paddle.nn.ParameterList(make_parameters(shapes))
    model[4].need_clip = False
    clips = [ClipGradByAdaGC(t_start=2) for _ in range(2)]
    for clip in clips:
        units = {"^0$": {"parts": ["q", "k"]}, "^1$": "experts"}
        clip.bind(model, units=units if has_units else None)
    looked_up, look_up = [], clip_step.look_up

    def counted(*arguments):
        looked_up.append(step)
        return look_up(*arguments)

    monkeypatch.setattr(clip_step, "look_up", counted)
    for step in range(8):
        rng = np.random.default_rng(step)
        values = [rng.normal(size=shape) * 2.0**step for shape in shapes]
        values[0] = None if step == 6 else values[0]
        values[3] = None if step == 0 else values[3]
        model[2].need_clip = step != 5
        order = rng.permutation(5).tolist()
        parameters = [model[i] for i in order]
        results = []
        for clip in clips:
            with monkeypatch.context() as patch:
                if clip is clips[1]:
                    patch.setattr(pairs, "_reader", lambda: None)
                found = clip_arrays(
                    clip, parameters, [values[i] for i in order]
                )
            gamma = clip.state_dict()["gamma"]
            results.append((found, gamma, clip.metrics()))
        np.testing.assert_equal(*results)
    # Where there is a pass, once, and once more for what came late.
    assert looked_up == [0, 0, 1, *range(1, 8)]
