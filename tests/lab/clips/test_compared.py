# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compared clips against their twins, starts by hand, state, refusals."""

import json

import numpy as np
import paddle
import pytest
from adagc_lab.clips import CLIPS, make_clip
from adagc_lab.clips.starts import STARTS
from core.parallel.ranks import run_on_ranks
from helpers import assert_equal, clip_arrays, make_parameters
from lab.train.runs import make_values, run_whole_and_cut
from paddle.distributed import fleet
from reference.clips import TWINS, agc

SHAPES = [[5, 4], [4], [2, 3, 2, 2], [1]]
ADAGC = {"lambda_rel": 1.1, "beta": 0.9, "lambda_abs": 3.0, "t_start": 5}
ZCLIP = {"alpha": 0.9, "warmup_steps": 10}
CASES = [
    *((name, {}) for name in CLIPS if name != "adagc"),
    ("zclip", {**ZCLIP, "z_thres": 2.0, "max_grad_norm": None}),
    ("zclip", {**ZCLIP, "z_thres": 2.5, "max_grad_norm": 1.5}),
    ("agc", {"lambda_rel": 0.3, "epsilon": 1e-2}),
    ("global_adagc", ADAGC),
    ("tensor_wise", {"lambda_abs": 2.0}),
    ("skip_step", {"sigma": 1.0, "window": 8}),
    ("skip_step", {"window": 4, "max_grad_norm": None}),
    ("gradient_stabilizer", {"gamma1": 0.9, "gamma2": 0.99}),
]


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=str)
def test_rule_equals_its_twin(name, arguments):
    clip, twin = make_clip(name, **arguments), TWINS[name](**arguments)
    parameters = make_parameters(SHAPES)
    rng = np.random.default_rng(0)
    for parameter in parameters:
        values = rng.normal(size=parameter.shape).astype("float32")
        values[..., 0] *= 1e-4  # some units are close to 0
        parameter.set_value(values)
    weights = [p.numpy().astype("float64") for p in parameters]
    num_clipped = 0
    for step in range(130):
        scale = 30.0 if step % 17 == 16 else 0.05
        grads = [
            (scale * rng.normal(size=s)).astype("float32").astype("float64")
            for s in SHAPES
        ]
        grads[step % 4] *= 50 if step % 7 == 3 else 1
        expected = twin(weights, grads)
        got = clip_arrays(clip, parameters, grads)
        assert_equal(got, expected, rtol=2e-5, atol=1e-9)
        num_clipped += not np.array_equal(expected[0], grads[0])
    assert num_clipped or name == "none"


def test_agc_knows_a_bound_model_s_embeddings_and_its_head():
    model = paddle.nn.Sequential(
        ("embed", paddle.nn.Embedding(6, 4)),
        ("lm_head", paddle.nn.Linear(4, 3, bias_attr=False)),
    )
    clip = make_clip("agc", lambda_rel=0.01)
    clip.bind(model)
    parameters = model.parameters()
    weights = [p.numpy().astype("float64") for p in parameters]
    grads = [np.full(p.shape, 9.0) for p in parameters]
    got = clip_arrays(clip, parameters, grads)
    expected = agc(0.01, embeddings=(0,))(weights, grads)
    assert_equal(got, [expected[0], grads[1]], rtol=1e-5)


HALVES = {"lambda_rel": 2.0, "beta": 0.5}


@pytest.mark.parametrize(
    ("arguments", "norms", "clipped"),
    [
        (
            {"init": "min_no_warmup", "t_start": 2, "lambda_rel": 1.0},
            [[30.0], [10.0], [20.0]],
            [[30.0], [10.0], [10.0]],
        ),
        (
            {"init": "constant", "init_value": 0.5, **HALVES},
            [[3.0, 0.25], [1.5, 1.0]],
            [[1.0, 0.25], [1.5, 0.75]],
        ),
        (
            {"init": "lambda_abs", "lambda_abs": 0.5, "t_start": 2} | HALVES,
            [[3.0, 4.0], [1e6, 1e-6], [0.25, 4.0], [0.25, 0.0]],
            [[0.3, 0.4], [0.5, 5e-13], [0.25, 1.0], [0.25, 0.0]],
        ),
        (
            {"init": "threshold", "t_start": 2, "lambda_rel": 1.0},
            [[0.25, 0.01], [3.0, 0.05], [3.0, 0.05]],
            [[0.25, 0.01], [3.0, 0.05], [0.1, 0.05]],
        ),
    ],
)
def test_starts_by_hand(arguments, norms, clipped):
    clip = make_clip("adagc", **arguments)
    parameters = make_parameters([[1]] * len(norms[0]))
    for row, expected in zip(norms, clipped, strict=True):
        got = clip_arrays(clip, parameters, [np.array([x]) for x in row])
        np.testing.assert_allclose(np.ravel(got), expected, rtol=1e-6)


COMPARED = [
    *({"name": name} for name in CLIPS if name not in ("adagc", "value")),
    *({"name": "adagc", "init": init, "t_start": 4} for init in STARTS),
]


@pytest.mark.parametrize("clip", COMPARED, ids=str)
def test_a_cut_run_resumes_with_the_same_record(clip, tmp_path):
    values = make_values("", clip=clip, save_every=4, max_steps=8)
    run_whole_and_cut(values, tmp_path, at=6)


@pytest.mark.parametrize("name", ["zclip", "gradient_stabilizer"])
def test_inf_becomes_zero_and_is_no_observation(name):
    clip, parameters = make_clip(name), make_parameters([[2], [3]])
    clip_arrays(clip, parameters, [np.ones(2), np.ones(3)])
    before = json.loads(json.dumps(clip.state_dict()))["state"]
    got = clip_arrays(clip, parameters, [np.array([np.inf, 1]), np.zeros(3)])
    np.testing.assert_array_equal(np.concatenate(got), np.zeros(5))
    after = clip.state_dict()["state"]
    assert after == before
    with pytest.raises(RuntimeError, match="several parameter groups"):
        clip_arrays(clip, make_parameters([[2]]), [np.ones(2)])
    with pytest.raises(ValueError, match="another clip's"):
        make_clip("skip_step").set_state_dict(clip.state_dict())


def clip_on_ranks(degrees):
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = degrees
    fleet.init(is_collective=True, strategy=strategy)
    clip = make_clip("global_adagc", t_start=0)
    grads = [np.full(4, 3.0), np.full(2, 1.0)]
    try:
        clip_arrays(clip, make_parameters([[4], [2]]), grads)
    except ValueError as error:
        return str(error)
    return clip.state_dict()["state"]["gamma"]


@pytest.mark.slow
def test_data_parallel_ranks_are_taken_and_others_refused_by_name():
    ranks = run_on_ranks(clip_on_ranks, 2, degrees={"dp_degree": 2})
    assert ranks == [[pytest.approx(38**0.5)]] * 2
    degrees = {"dp_degree": 1, "mp_degree": 2}
    for text in run_on_ranks(clip_on_ranks, 2, degrees=degrees):
        assert "under tensor parallelism over 2 ranks" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "clip has no name"),
        ({"name": "adgc"}, "did you mean 'adagc'"),
        ({"name": "GlobalGC"}, "it is called global_norm here"),
        ({"name": "adagc", "lamda_rel": 1.1}, "mean 'lambda_rel'"),
        ({"name": "zclip", "alpha": 1.0}, r"alpha .*1\.0"),
        (
            {"name": "adagc", "init": "min_no_warmup", "init_value": 1.0},
            "init_value=1.0 has no meaning",
        ),
        ({"name": "adagc", "init": "threshold", "t_start": 0}, "t_start .*0"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_clip(**arguments)
