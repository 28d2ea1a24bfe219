# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Clips on distributed gradients that lie on several meshes, on real ranks.

Paddle's CPU build cannot run a model over several meshes in one program, so
the gradients are made here instead of by a backward pass.
"""

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel import test_clips
from core.parallel.ranks import run_on_ranks
from core.parallel.test_auto_parallel import MeshLayout
from core.parallel.training import T_START, SeenClip, plain
from helpers import clip_arrays, make_parameters
from paddle.distributed.auto_parallel.api import dtensor_from_local

from paddle_adagc.clips.registry import make_clip
from paddle_adagc.parallel import reduce as auto

NUM_STEPS = 30
whole = MeshLayout.whole
ROWS, COLUMNS, COPY = dist.Shard(0), dist.Shard(1), dist.Replicate()
SUMMANDS = dist.Partial()
STAGES = {  # two pipeline stages, or experts on sub-meshes
    "first": ([0], [COPY]),
    "second": ([1], [COPY]),
}
WHOLE = {"dense": None, "copies": ([0, 1], [COPY])}
TWO_RANKS = {
    **WHOLE,
    **STAGES,
    "rows": ([0, 1], [ROWS]),
    "columns": ([0, 1], [COLUMNS]),
    "summands": ([0, 1], [SUMMANDS]),
}
GRID = [[0, 1], [2, 3]]
FOUR_RANKS = {
    "dense": None,
    "copies": (GRID, [COPY, COPY]),
    "tp": (GRID, [COPY, COLUMNS]),
    "stage 3": (GRID, [ROWS, COPY]),
    "tp and stage 1": (GRID, [COLUMNS, ROWS]),
    "twice": (GRID, [ROWS, ROWS]),
    "summands over dp": (GRID, [SUMMANDS, ROWS]),
    "summands": (GRID, [SUMMANDS, SUMMANDS]),
    "tp of stage 0": ([0, 1], [COLUMNS]),
    "tp of stage 1": ([2, 3], [ROWS]),
    "expert of ranks 1 and 3": ([1, 3], [COPY]),
    "expert of rank 2": ([2], [COPY]),
}
SHAPE = [8, 7]  # 7 columns do not divide evenly


def gradients(step, shapes):
    """Whole gradients by key; every third step has an outlier."""
    draw = np.random.default_rng(step)
    found = {
        key: draw.normal(size=shape).astype("float32")
        for key, shape in shapes.items()
    }
    if step % 3 == 1:
        found[[*shapes][(step * 7) % len(shapes)]] *= 30
    return found


def distribute(array, place, is_gradient=True):
    """The array as a distributed tensor at ``place``; None: a dense one."""
    if place is None:
        return paddle.to_tensor(array)
    ranks, placements = place
    names = [f"dimension{i}" for i in range(np.ndim(ranks))]
    mesh = dist.ProcessMesh(ranks, dim_names=names)
    copies = [COPY if p.is_partial() else p for p in placements]
    tensor = dist.shard_tensor(array, mesh, copies)
    if not is_gradient or copies == placements:
        return tensor
    share = 1.0  # of this rank, so that the ranks' summands add up
    for axis, placement in enumerate(placements):
        if placement.is_partial():
            index = int(
                np.argwhere(np.array(ranks) == dist.get_rank())[0][axis]
            )
            share *= (0.25, 0.75)[index]
    return dtensor_from_local(tensor._local_value() * share, mesh, placements)


def clip_on_ranks(places, settings):
    """Thirty steps of each clip on this rank."""
    return [clip_on_rank(places, **values) for values in settings]


def clip_on_rank(places, **settings):
    parameters = {}
    for key, place in places.items():
        (parameter,) = make_parameters([SHAPE])
        parameters[key] = parameter
        if place is not None:
            zeros = np.zeros(SHAPE, "float32")
            parameters[key] = distribute(zeros, place, is_gradient=False)
            parameters[key].name = parameter.name
    clip, shapes = make_clip(**settings), dict.fromkeys(places, SHAPE)
    counting = SeenClip(clip, as_array=id)
    history = []
    for step in range(NUM_STEPS):
        pairs = [
            (parameters[key], distribute(gradient, places[key]))
            for key, gradient in gradients(step, shapes).items()
        ]
        counting(pairs)
        history.append(
            {
                key: MeshLayout.whole(gradient)
                if places[key]
                else gradient.numpy()
                for key, (_, gradient) in zip(places, pairs, strict=True)
                if not places[key]
                or dist.get_rank() in np.ravel(places[key][0])
            }
        )
    return {
        "history": history,
        "state": plain(clip.full_state_dict()),
        "summary": clip.summary(),
        "calls": counting.calls,
    }


def alone(keys, **settings):
    """The same on one process."""
    clip = make_clip(**settings)
    with paddle.utils.unique_name.guard():
        parameters = make_parameters([SHAPE] * len(keys))
    history = []
    for step in range(NUM_STEPS):
        arrays = [*gradients(step, dict.fromkeys(keys, SHAPE)).values()]
        clipped = clip_arrays(clip, parameters, arrays)
        history.append(dict(zip(keys, clipped, strict=True)))
    return {
        "history": history,
        "state": plain(clip.full_state_dict()),
        "summary": clip.summary(),
    }


def assert_same(ranks, expected):
    for rank in ranks:
        for mine, theirs in zip(
            rank["history"], expected["history"], strict=True
        ):
            for key, array in mine.items():
                np.testing.assert_allclose(
                    array, theirs[key], rtol=1e-5, atol=1e-7, err_msg=key
                )
        for kept in expected["state"].keys() - {"step", "config"}:
            mine, theirs = (run["state"][kept] for run in (rank, expected))
            assert [*mine.values()] == pytest.approx(
                [*theirs.values()], rel=1e-5
            )
        assert rank["state"]["step"] == NUM_STEPS
        for name, value in expected["summary"].items():
            if name != "lowest_h":
                assert rank["summary"][name] == pytest.approx(value, rel=1e-5)


def refused_on_rank():
    """Messages of what a clip does not do."""
    messages = []
    clip = make_clip("agc")
    (parameter,) = make_parameters([SHAPE])
    gradient = distribute(np.ones(SHAPE, "float32"), ([0, 1], [COLUMNS]))
    with pytest.raises(ValueError, match="needs whole tensors") as refused:
        clip([(parameter, gradient)])
    messages.append(str(refused.value))
    np.testing.assert_array_equal(gradient._local_value().numpy(), 1)
    messages.append(refusal_in_a_static_graph())
    return messages


def refusal_in_a_static_graph():
    mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
    model = paddle.nn.Linear(2, 2)
    for name, parameter in [*model.named_parameters()]:
        setattr(model, name, dist.shard_tensor(parameter, mesh, [COPY]))
    optimizer = dist.shard_optimizer(
        paddle.optimizer.AdamW(
            parameters=model.parameters(), grad_clip=make_clip("adagc")
        )
    )
    data = paddle.io.TensorDataset([paddle.ones([4, 2]), paddle.ones([4, 2])])
    loader = dist.shard_dataloader(
        paddle.io.DataLoader(data, batch_size=2), meshes=[mesh]
    )
    try:
        static = dist.to_static(model, loader, paddle.nn.MSELoss(), optimizer)
        with pytest.raises(RuntimeError) as refused:
            static.train()
    finally:
        paddle.disable_static()
    return str(refused.value)


@pytest.mark.slow
def test_refusals():
    for messages in run_on_ranks(refused_on_rank, 2):
        assert "ClipGradByAGC needs whole tensors" in messages[0]
        assert "leave paddle.enable_static() and dist.to_static" in messages[1]


def settings_of(names):
    return [{**test_clips.SETTINGS.get(n, {}), "name": n} for n in names]


SCALING = [name for name in test_clips.NAMES if name != "value"]


@pytest.mark.parametrize(
    ("places", "num_ranks", "names"),
    [
        pytest.param(
            TWO_RANKS,
            2,
            [n for n in SCALING if n != "agc"],
            marks=pytest.mark.slow,
        ),
        pytest.param({**WHOLE, **STAGES}, 2, ["agc"], marks=pytest.mark.slow),
        pytest.param(
            FOUR_RANKS,
            4,
            [n for n in SCALING if n != "agc"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["2 ranks", "whole tensors", "4 ranks"],
)
def test_clips_act_as_on_one_process(places, num_ranks, names):
    settings = settings_of(names)
    ranks = run_on_ranks(
        clip_on_ranks, num_ranks, places=places, settings=settings
    )
    for values, runs in zip(settings, zip(*ranks, strict=True), strict=True):
        assert_same(runs, alone([*places], **values))
    if places is TWO_RANKS:
        assert names[0] == "adagc"
        for run in ranks:
            assert_few_collectives(run[0]["calls"])


def assert_few_collectives(calls):
    """Of AdaGC: the summands, a vector of two norms, in the warm-up 3 sums."""
    summands, vector = ("reshard", SHAPE), ("reshard", [2])
    for step, sent in enumerate(calls):
        total = [("all_reduce", [3])] if step < T_START else []
        assert sent == [summands, vector, *total]


FUSED_SHAPES = {"a": [20, 30], "b": [30], "c": [40, 10], "d": [7]}


class Tensors(paddle.nn.Layer):
    """A parameter for each shape."""

    def __init__(self, mesh=None):
        super().__init__()
        for key, shape in FUSED_SHAPES.items():
            parameter = self.create_parameter(shape)
            paddle.assign(paddle.full(shape, 0.1), parameter)
            if mesh is not None:
                parameter = dist.shard_tensor(parameter, mesh, [COPY])
            setattr(self, key, parameter)


def step_with_tensor_fusion():
    """Steps of Paddle's optimizer on slices of its buffers, on this rank."""
    mesh = dist.ProcessMesh([0, 1], dim_names=["dp"])
    dist.auto_parallel.set_mesh(mesh)
    model = Tensors(mesh)
    clip = make_clip(**test_clips.SETTINGS["adagc"])
    clip.bind(model)
    optimizer = dist.shard_optimizer(
        paddle.optimizer.AdamW(
            1e-2, parameters=model.parameters(), grad_clip=clip
        ),
        dist.ShardingStage1("dp", mesh),
    )
    optimizer._enable_tensor_fusion()
    parameters = dict(model.named_parameters())
    share = (0.25, 0.75)[dist.get_rank()]
    for step in range(NUM_STEPS):
        pairs = []
        for key, gradient in gradients(step, FUSED_SHAPES).items():
            mine = paddle.to_tensor(gradient * share)
            parameter = parameters[key]
            if step:  # a view into the buffer
                paddle.assign(mine, parameter.main_grad._local_value())
            else:
                parameter.main_grad = dtensor_from_local(mine, mesh, [SUMMANDS])
            pairs.append((parameter, parameter.main_grad))
        optimizer._apply_optimize(None, None, pairs)
    return {
        "state": plain(clip.full_state_dict()),
        "summary": clip.summary(),
        "weights": {k: p._local_value().numpy() for k, p in parameters.items()},
    }


@pytest.mark.slow
def test_tensor_fusion_of_auto_parallel():
    model = Tensors()
    clip = make_clip(**test_clips.SETTINGS["adagc"])
    clip.bind(model)
    optimizer = paddle.optimizer.AdamW(
        1e-2, parameters=model.parameters(), grad_clip=clip
    )
    for step in range(NUM_STEPS):
        for key, gradient in gradients(step, FUSED_SHAPES).items():
            getattr(model, key).grad = paddle.to_tensor(gradient)
        optimizer.step()
    expected = clip.state_dict()["gamma"]
    for rank in run_on_ranks(step_with_tensor_fusion, 2):
        assert rank["state"]["gamma"] == pytest.approx(
            {key: float(gamma) for key, gamma in expected.items()}, rel=1e-5
        )
        assert rank["summary"]["num_tensors"] == len(FUSED_SHAPES)
        for key, parameter in model.named_parameters():
            np.testing.assert_allclose(
                rank["weights"][key].reshape(parameter.shape),
                parameter.numpy(),
                rtol=1e-5,
                atol=1e-6,
            )


def test_without_a_mesh_no_gradient_is_asked_for_one(monkeypatch):
    monkeypatch.setattr(auto, "get_unique_process_mesh_map", dict)
    pairs = [(paddle.ones([1]), None)]
    assert not auto.any_is_distributed(pairs)
    monkeypatch.setattr(auto, "get_unique_process_mesh_map", lambda: {"key": 1})
    with pytest.raises(AttributeError):
        auto.any_is_distributed(pairs)


def test_the_sums_of_a_step_are_made_once_per_number_of_tensors():
    meshes = auto.Meshes()
    three = meshes.reducer(3)
    assert meshes.reducer(3) is three
    assert meshes.reducer(4) is not three
