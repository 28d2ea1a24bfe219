# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The same training run in one process and under every layout."""

import functools
import pickle
import zlib

import numpy as np
import paddle
import pytest
from core.parallel.layouts import BATCH, MICRO_BATCHES, Layout, gradient_of
from core.parallel.net import VOCABULARY
from core.parallel.ranks import run_on_ranks
from core.parallel.stages import make_net, parameters_by_key
from paddle.distributed.fleet.utils import mix_precision_utils

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.meshes import local_value
from paddle_adagc.parallel.topology import read_topology
from paddle_adagc.state_file import load_state, save_state

NUM_STEPS = 20
T_START = 10
LENGTH = 8
ADAGC = {"t_start": T_START, "beta": 0.9, "lambda_abs": 0.5}


def batch(step, seed=0):
    """Tokens and labels of a step, each [micro-batches, batch, length]."""
    draw = np.random.default_rng([seed, step])
    shape = (MICRO_BATCHES, BATCH, LENGTH + 1)
    tokens = draw.integers(0, VOCABULARY, shape)
    return tokens[..., :-1], tokens[..., 1:]


def outlier(step, key):
    """Factor of a tensor's gradient: some are outliers in every third step.

    Those in the warm-up are so large that the other steps outvote them.
    """
    is_hit = step % 3 == 1 and zlib.crc32(f"{key} {step}".encode()) % 8 == 0
    return (1e6 if step == 4 else 30.0) if is_hit else 1.0


def on_ranks(layout, runs):
    """What each rank gave back, for every run of `train`."""
    ranks = run_on_ranks(
        train_all,
        layout.world_size,
        timeout=300.0 * layout.world_size,
        layout=layout,
        runs=runs,
    )
    return list(zip(*ranks, strict=True))


@functools.cache
def _alone(key):
    result = train(Layout(), None, **pickle.loads(key))
    return {**result, "weights": joined([result])}


def alone(**arguments):
    """`train` in one process with the whole model, once for its arguments."""
    return _alone(pickle.dumps(arguments))


def continued(state, folder):
    """Arguments of a short run that goes on from a saved state."""
    save_state(state, folder)
    return {
        "state": load_state(folder),
        "first_step": T_START,
        "num_steps": 5,
    }


def train_all(layout, runs):
    """Several runs of `train` on this rank, one after the other."""
    topology = layout.start()
    return [train(layout, topology, **arguments) for arguments in runs]


class Run:
    """A training on this rank."""

    def __init__(self, layout, options):
        options, self.layout = dict(options), layout
        main_grad = options.pop("main_grad", False)
        self.bare = bare = make_net(options, layout)  # without fleet's wrappers
        layout.spread(bare)
        self.parameters = parameters_by_key(bare)
        self.clip = ClipGradByAdaGC(**ADAGC)
        self.clip.bind(bare)
        # Of large epsilon: else rounding decides where gradients are tiny.
        optimizer = paddle.optimizer.AdamW(
            1e-3,
            parameters=bare.parameters(),
            epsilon=1e-2,
            grad_clip=self.clip,
        )
        if main_grad:
            mix_precision_utils.MixPrecisionLayer(bare, dtype="bfloat16")
            optimizer = mix_precision_utils.MixPrecisionOptimizer(optimizer)
        self.model, self.optimizer = layout.wrap(bare, optimizer)
        if layout.binds_wrapper:
            self.clip.bind(self.model)
        if layout.is_fleet and not main_grad:
            for parameter in self.parameters.values():  # as the Trainer does
                if parameter.grad is None:
                    parameter.grad = paddle.zeros_like(parameter)

    @paddle.no_grad()
    def make_outliers(self, step):
        """Scale what this rank has of some gradients."""
        for key, parameter in self.parameters.items():
            factor = outlier(step, key)
            slice_of_stage_3 = getattr(parameter, "bw_storage", None)
            for gradient in (gradient_of(parameter), slice_of_stage_3):
                if factor != 1 and gradient is not None:
                    local_value(gradient).scale_(factor)

    def weights(self):
        """Key -> split axis, tensor-parallel rank, this rank's part."""
        if hasattr(self.model, "get_all_parameters"):  # stage 3
            self.model.get_all_parameters()
        found = {}
        for key, p in self.parameters.items():
            is_split = getattr(p, "is_distributed", False)
            axis = getattr(p, "split_axis", None) if is_split else None
            rank = 0 if axis is None else read_topology().model.rank
            found[key] = axis, rank, self.layout.whole(p)
        return found


def train(
    layout, topology, options, num_steps=NUM_STEPS, state=None, first_step=0
):
    """Train on this rank.

    Gives losses, the clip's full state, and this rank's part of the weights.
    """
    run = Run(layout, options)
    if state is not None:
        run.clip.set_state_dict(state)
    run.model.train()
    losses = []
    for step in range(first_step, first_step + num_steps):
        data = layout.rows(batch(step), topology)
        loss = layout.backward(run.model, run.bare, run.optimizer, *data)
        losses.append(loss)
        run.make_outliers(step)
        run.optimizer.step()
        run.optimizer.clear_grad()
    return {
        "losses": losses,
        "state": plain(run.clip.full_state_dict()),
        "summary": run.clip.summary(),
        "weights": run.weights(),
    }


def plain(state):
    """A clip's state with floats for tensors."""
    kept = {
        name: {key: float(np.asarray(value)) for key, value in values.items()}
        for name, values in state.items()
        if name not in ("step", "config")
    }
    return {**state, **kept}


def joined(ranks):
    """Whole weights from the parts of ranks, of which copies have to agree."""
    found = {}
    for rank in ranks:
        for key, (axis, tp_rank, part) in rank["weights"].items():
            _, parts = found.setdefault(key, (axis, {}))
            known = parts.setdefault(tp_rank, part)
            np.testing.assert_allclose(part, known, rtol=1e-5, atol=1e-7)
    return {
        key: parts[0]
        if axis is None
        else np.concatenate([parts[i] for i in sorted(parts)], axis)
        for key, (axis, parts) in found.items()
    }


def assert_same_run(ranks, expected):
    """Losses, states and weights, to 1e-5 relative."""
    losses = np.mean([rank["losses"] for rank in ranks], axis=0)
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-5)
    assert_same_clip(ranks, expected)
    weights = joined(ranks)
    assert weights
    for key, found in weights.items():
        wanted = expected["weights"][key]
        limit = 1e-5 * np.abs(wanted).max()
        np.testing.assert_allclose(found, wanted, 0, limit, err_msg=key)


def assert_same_clip(ranks, expected):
    """State and summary of the clip, to 1e-5 relative."""
    first = ranks[0]
    for rank in ranks:
        for what in ("state", "summary"):
            assert rank[what] == first[what]
    assert first["summary"].keys() == expected["summary"].keys()
    for name, value in expected["summary"].items():
        close = pytest.approx(value, rel=1e-5, abs=1e-9)
        assert first["summary"][name] == close, name
    mine, theirs = first["state"], expected["state"]
    assert mine.keys() == theirs.keys()
    assert mine["step"] == theirs["step"]
    for kept in mine.keys() - {"step", "config"}:
        for key, value in theirs[kept].items():
            limit = 1e-5 * value  # both may be inf
            assert mine[kept][key] == pytest.approx(value, abs=limit), key
