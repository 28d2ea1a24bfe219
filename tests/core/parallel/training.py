# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The same training run in one process and under every layout."""

import dataclasses
import functools
import pickle
from typing import Any

import numpy as np
import paddle
import pytest
from core.parallel.layouts import (
    BATCH,
    MICRO_BATCHES,
    Layout,
    gradient_of,
)
from core.parallel.net import whole_keys
from core.parallel.ranks import run_on_ranks
from core.parallel.sizes import VOCABULARY
from core.parallel.stages import make_net, parameters_by_key
from helpers import indexes_of
from paddle.distributed.fleet.utils import mix_precision_utils
from paddle.nn.clip import ClipGradBase

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.parallel.meshes import local_value
from paddle_adagc.state_file import load_state, save_state

NUM_STEPS = 20
T_START = 10
COMPARED_STEPS = (T_START - 1, T_START, T_START + 3, NUM_STEPS - 1)
LENGTH = 8
ADAGC = {"t_start": T_START, "beta": 0.9, "lambda_abs": 0.5}


class SeenClip(ClipGradBase):
    """Keeps what another clip makes of gradients."""

    def __init__(self, clip, as_array):
        super().__init__()
        self.clip, self.as_array = clip, as_array
        self.keeps, self.clipped = True, {}
        self.outlier = None, 1.0  # of the next step: name, factor

    def _dygraph_clip(self, params_grads):
        (name, factor), self.outlier = self.outlier, (None, 1.0)
        for parameter, gradient in params_grads:
            if parameter.name.removeprefix("slice@") == name:
                local_value(gradient).scale_(factor)
        pairs = self.clip(params_grads)
        if self.keeps:
            self.clipped = {
                p.name: self.as_array(g) for p, g in pairs if g is not None
            }
        return pairs


def batch(step, seed=0):
    """Tokens and labels of a step, each [micro-batches, batch, length]."""
    draw = np.random.default_rng([seed, step])
    shape = (MICRO_BATCHES, BATCH, LENGTH + 1)
    tokens = draw.integers(0, VOCABULARY, shape)
    return tokens[..., :-1], tokens[..., 1:]


def outlier(step, options):
    """Key of the tensor whose gradient is an outlier in this step, and factor.

    Every third step, another tensor each time; one in the warm-up is so large
    that the other steps outvote it. In other steps the key is None.
    """
    keys = whole_keys(options)
    key = keys[(step * 7) % len(keys)] if step % 3 == 1 else None
    return key, 1e6 if step == 4 else 30.0


def on_ranks(layout, runs, timeout=None):
    """What each rank gave back, for every run of `train`."""
    ranks = run_on_ranks(
        train_all,
        layout.world_size,
        timeout=timeout or 300.0 * layout.world_size,
        layout=layout,
        runs=runs,
    )
    return list(zip(*ranks, strict=True))


@functools.cache
def _alone(key):
    result = train(Layout(), None, **pickle.loads(key))
    result["weights"] = merge([result["weights"]])
    result["clipped"] = {
        step: merge([held]) for step, held in result["clipped"].items()
    }
    return result


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


@dataclasses.dataclass
class Run:
    """A training on this rank."""

    layout: Any
    topology: Any
    bare: paddle.nn.Layer  # without fleet's wrappers
    clip: ClipGradByAdaGC
    seen: SeenClip
    units: dict  # key -> parameter and unit
    model: Any
    optimizer: Any

    def __post_init__(self):
        self.parameters = parameters_by_key(self.bare)

    def make_outlier(self, step):
        """Let the outlier's gradient be one, here or in the clip's call."""
        key, factor = outlier(step, self.bare.options)
        if key in self.units:
            parameter, unit = self.units[key]
            values = parameter.grad.numpy()
            values.reshape(-1)[indexes_of(unit)] *= factor
            paddle.assign(paddle.to_tensor(values), parameter.grad)
        elif key in self.parameters and self.layout.is_fused:
            gradient_of(self.parameters[key]).scale_(factor)
        elif key in self.parameters:
            self.seen.outlier = self.parameters[key].name, factor

    def clipped(self):
        """Pieces of the gradients that the last step clipped."""
        arrays = self.seen.clipped
        if self.layout.is_fused:
            # The clip saw buffers; gradients are views into them.
            rank = self.topology.get_sharding_parallel_rank()
            mine = self.optimizer._rank2params[rank]
            arrays = {p.name: gradient_of(p).numpy() for p in mine}
        return pieces(self.parameters, arrays, self.optimizer, self.topology)

    def weights(self):
        """Pieces of the weights; of the units for parameters with units."""
        if hasattr(self.model, "get_all_parameters"):  # stage 3
            self.model.get_all_parameters()
        fused = {p.name for p, _ in self.units.values()}
        found = {
            key: (*place(p, self.topology), 0, self.layout.whole(p).reshape(-1))
            for key, p in self.parameters.items()
            if p.name not in fused
        }
        for key, (p, unit) in self.units.items():
            where = (*place(p, self.topology)[:2], unit.shape, 0)
            found[key] = (*where, p.numpy().reshape(-1)[indexes_of(unit)])
        return found


def make_run(layout, topology, options, clip_settings, prepare, units):
    """Make model, clip and optimizer, and hand them to the layout."""
    options = dict(options)
    main_grad = options.pop("main_grad", False)
    bare = make_net(options, layout)
    layout.spread(bare)
    if prepare is not None:
        prepare(bare)
    clip = ClipGradByAdaGC(**clip_settings)
    clip.bind(bare, units)
    seen = SeenClip(clip, layout.whole)
    # Of large epsilon: else rounding decides where gradients are tiny.
    optimizer = paddle.optimizer.AdamW(
        1e-3, parameters=bare.parameters(), epsilon=1e-2, grad_clip=seen
    )
    if main_grad:
        mix_precision_utils.MixPrecisionLayer(bare, dtype="bfloat16")
        optimizer = mix_precision_utils.MixPrecisionOptimizer(optimizer)
    of_units = units_by_key(clip, bare) if units else {}
    wrapped = layout.wrap(bare, optimizer)
    run = Run(layout, topology, bare, clip, seen, of_units, *wrapped)
    if layout.binds_wrapper:
        clip.bind(run.model)
    if layout.is_fleet and not main_grad:
        for parameter in run.parameters.values():  # as the Trainer does
            if parameter.grad is None:
                parameter.grad = paddle.zeros_like(parameter)
    return run


def train(
    layout,
    topology,
    options,
    num_steps=NUM_STEPS,
    state=None,
    first_step=0,
    clip_settings=ADAGC,
    prepare=None,
    units=None,
):
    """Train on this rank.

    Gives losses, the clip's full state, pieces of the final weights and of the
    clipped gradients of some steps. ``prepare`` changes the model before the
    clip is bound.
    """
    run = make_run(layout, topology, options, clip_settings, prepare, units)
    if state is not None:
        run.clip.set_state_dict(state)
    run.model.train()
    losses, clipped = [], {}
    for step in range(first_step, first_step + num_steps):
        data = layout.rows(batch(step), topology)
        loss = layout.backward(run.model, run.bare, run.optimizer, *data)
        losses.append(loss)
        run.make_outlier(step)
        run.seen.keeps = step in COMPARED_STEPS
        run.optimizer.step()
        if run.seen.keeps:
            clipped[step] = run.clipped()
        run.optimizer.clear_grad()
    return {
        "losses": losses,
        "state": plain(run.clip.full_state_dict()),
        "summary": run.clip.summary(),
        "weights": run.weights(),
        "clipped": clipped,
    }


def units_by_key(clip, model):
    """Parameters with units: key of a unit -> the parameter, the unit."""
    return {
        unit.key: (parameter, unit)
        for parameter in model.parameters()
        for unit in clip._progress.tensors.units.get(
            clip._progress.tensors.indexes([parameter])[0], ()
        )
    }


def place(parameter, topology):
    """Tensor-parallel rank, split axis and local shape."""
    is_split = getattr(parameter, "is_distributed", False)
    axis = getattr(parameter, "split_axis", None) if is_split else None
    rank = 0 if axis is None else topology.get_model_parallel_rank()
    return rank, axis, list(parameter.shape)


def pieces(parameters, arrays, optimizer, topology):
    """What this rank holds of each gradient, and where in its local part."""
    views = {}
    for buffer in getattr(optimizer, "_comm_buffer_list", ()):
        views.update(getattr(buffer, "_sharding_param_grad_view", {}))
    out = {}
    for key, parameter in parameters.items():
        if parameter.name not in arrays:
            continue
        offset = 0
        if parameter.name in views:
            view = views[parameter.name]
            offset = view._param_begin - view._index
        flat = arrays[parameter.name].reshape(-1)
        flat = flat[: max(parameter.size - offset, 0)]  # without V2's padding
        out[key] = (*place(parameter, topology), offset, flat)
    return out


def plain(state):
    """A clip's state with floats for tensors."""
    kept = {
        name: {key: float(np.asarray(value)) for key, value in values.items()}
        for name, values in state.items()
        if name not in ("step", "config", "units")
    }
    return {**state, **kept}


def merge(ranks):
    """Whole tensors from all ranks' pieces.

    Ranks that hold the same elements have to agree on them.
    """
    found, axes = {}, {}
    for rank in ranks:
        for key, (tp_rank, axis, shape, offset, flat) in rank.items():
            axes[key] = axis
            local = found.setdefault(key, {}).setdefault(
                tp_rank, np.full(shape, np.nan)
            )
            target = local.reshape(-1)[offset : offset + flat.size]
            known = ~np.isnan(target)
            np.testing.assert_allclose(
                flat[known], target[known], rtol=1e-5, atol=1e-7
            )
            target[:] = flat
    return {
        key: parts[0]
        if axes[key] is None
        else np.concatenate([parts[i] for i in sorted(parts)], axes[key])
        for key, parts in found.items()
    }


def assert_close(whole, expected, what):
    """Equal to 1e-5 of each tensor's largest element."""
    assert whole.keys() == expected.keys(), what
    for key, value in expected.items():
        assert whole[key].shape == value.shape, (what, key)
        error = np.abs(whole[key] - value).max()
        limit = 1e-5 * np.abs(value).max()
        assert error <= limit, (what, key, error)


def assert_same_run(ranks, expected):
    """Losses, states, clipped gradients and weights, to 1e-5 relative."""
    first = ranks[0]
    losses = np.mean([rank["losses"] for rank in ranks], axis=0)
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-5)
    for rank in ranks:
        for what in ("state", "summary"):
            assert rank[what] == first[what]
    assert first["summary"].keys() == expected["summary"].keys()
    for name, value in expected["summary"].items():
        close = pytest.approx(value, rel=1e-5, abs=1e-9)
        assert first["summary"][name] == close, name
    mine, theirs = first["state"], expected["state"]
    # Which tensors are units says how the parameters lie, not what they are.
    assert mine.keys() - {"units"} == theirs.keys() - {"units"}
    assert mine.get("step") == theirs.get("step")
    for kept in mine.keys() - {"step", "config", "units"}:
        for key, value in theirs[kept].items():
            limit = 1e-5 * value  # both may be inf
            assert mine[kept][key] == pytest.approx(value, abs=limit), key
    for step, clipped in expected["clipped"].items():
        found = merge([rank["clipped"][step] for rank in ranks])
        assert_close(found, clipped, f"clipped gradients of step {step}")
    weights = merge([rank["weights"] for rank in ranks])
    assert_close(weights, expected["weights"], "weights")
