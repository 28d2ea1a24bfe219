# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The same training run in one process and under fleet's layouts."""

import dataclasses
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from paddle.autograd import PyLayer
from paddle.base import core
from paddle.distributed import fleet
from paddle.distributed.fleet.base.topology import EPHybridCommunicateGroup
from paddle.distributed.fleet.meta_parallel import PipelineLayer
from paddle.distributed.fleet.utils import mix_precision_utils
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.registry import make_clip
from paddle_adagc.lab.models import attention
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.pipeline import DecoderForCausalLMPipe
from paddle_adagc.lab.models.rank_weights import (
    initialize_weights,
    parameters_by_key,
)
from paddle_adagc.lab.models.shapes import parameter_shapes
from paddle_adagc.state import load_state, save_state

NUM_STEPS = 30
T_START = 10
COMPARED_STEPS = (T_START - 1, T_START, T_START + 3, NUM_STEPS - 1)
MICRO_BATCHES = 2
BATCH = 8
LENGTH = 8
SEED = 5
ADAGC = {"name": "adagc", "t_start": T_START, "beta": 0.9, "lambda_abs": 0.5}
DENSE = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "qk_norm": True,
    "tie_word_embeddings": True,
    "initializer_range": 0.2,
}
MOE = {
    **DENSE,
    "qk_norm": False,
    "tie_word_embeddings": False,
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "moe_intermediate_size": 8,
    "moe_num_shared_experts": 1,
    "router_aux_loss_coef": 0.05,
}
DEEP = {**DENSE, "num_hidden_layers": 8}  # for virtual stages
HEADS = {**DENSE, "num_key_value_heads": 4}  # for SEP
# So many experts that some get no token on a rank, or on any.
SPARSE_MOE = {**MOE, "moe_num_experts": 16, "moe_top_k": 1}


@dataclasses.dataclass(frozen=True)
class Layout:
    """Degrees and options of fleet; one process by default."""

    dp: int = 1
    mp: int = 1
    pp: int = 1
    sharding: int = 1
    sep: int = 1
    cp: int = 1  # on ranks of the sharding group
    ep: int = 1
    split_param: bool = False
    tensor_fusion: bool = False
    fuse_optimizer: bool = True  # fleet's default, used with tensor_fusion
    sequence_parallel: bool = False
    recompute: bool = False
    virtual: int = 1  # parts of a pipeline stage
    micro_batches: int = MICRO_BATCHES  # of a pipeline, of the same rows

    is_fleet = True  # subclasses: auto-parallel, group_sharded
    binds_wrapper = False
    whole = staticmethod(paddle.Tensor.numpy)  # a tensor as an array

    def spread(self, model):
        """Place the parameters before the clip is bound."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.dp * self.mp * self.pp * self.sharding * self.sep

    def start(self) -> Any:
        """Start fleet; return the topology."""
        topology = start_fleet(
            dp=self.dp,
            mp=self.mp,
            pp=self.pp,
            sharding=self.sharding,
            sep=self.sep,
            cp=self.cp,
            ep=self.ep,
            moe_sharding=self.mp * self.sharding // self.ep,
        )
        strategy = fleet.fleet._user_defined_strategy
        shard = strategy.hybrid_configs["sharding_configs"]
        shard.split_param = self.split_param
        shard.tensor_fusion = self.tensor_fusion
        shard.fuse_optimizer = self.fuse_optimizer
        rows = BATCH * MICRO_BATCHES // self.micro_batches
        strategy.pipeline_configs = {
            "accumulate_steps": self.micro_batches,
            "micro_batch_size": rows // (self.dp * self.sharding),
            "enable_partial_send_recv": not self.sequence_parallel,
        }
        strategy.find_unused_parameters = True
        if max(self.sep, self.cp) > 1:
            attention.attend_folded = over_whole_sequences(
                attention.attend_folded, sequence_group(topology)
            )
        return topology

    def wrap(self, model, optimizer):
        """Hand both to fleet, if it has started."""
        if self.world_size == 1:
            return model, optimizer
        return (
            fleet.distributed_model(model),
            fleet.distributed_optimizer(optimizer),
        )

    def rows(self, arrays, topology):
        """This rank's part of a batch."""
        return own_rows(arrays, self, topology)

    def backward(self, model, bare, optimizer, ids, labels):
        """Loss and gradients of a batch."""
        return forward_backward(model, bare, optimizer, ids, labels, self.sep)

    def make_outlier(self, seen, parameter, factor):
        """Multiply a gradient of this step."""
        scale_gradient(parameter, factor)


_V2 = {"split_param": True}
LAYOUTS = {
    "tp2": Layout(mp=2),
    "sp with tp2": Layout(mp=2, sequence_parallel=True),
    "pp2": Layout(pp=2),
    # Paddle wants more than 2 stages, and plans other steps from 2 x pp
    # micro-batches on.
    "pp4 x 2 virtual stages": Layout(pp=4, virtual=2, micro_batches=8),
    "pp4 x 2 virtual stages, forward then backward": Layout(
        pp=4, virtual=2, micro_batches=4
    ),
    "dp2": Layout(dp=2),
    "v1 x2": Layout(sharding=2),
    "v1 x2 with tensor_fusion": Layout(
        sharding=2, tensor_fusion=True, fuse_optimizer=False
    ),
    "v1 x2 with fuse_optimizer": Layout(sharding=2, tensor_fusion=True),
    "v2 x2": Layout(sharding=2, **_V2),
    "sep2": Layout(sep=2),
    "tp2 x sep2": Layout(mp=2, sep=2),
    "ep2 x cp2 x v2": Layout(ep=2, cp=2, sharding=4, **_V2),
    "v2 x2 with recompute": Layout(sharding=2, recompute=True, **_V2),
    "tp2 x dp2": Layout(mp=2, dp=2),
    "tp2 x pp2": Layout(mp=2, pp=2),
    "sp with tp2 x pp2": Layout(mp=2, pp=2, sequence_parallel=True),
    "tp2 x v1": Layout(mp=2, sharding=2),
    "tp2 x v2": Layout(mp=2, sharding=2, **_V2),
    "pp2 x v2": Layout(pp=2, sharding=2, **_V2),
    "ep2": Layout(ep=2, sharding=2, **_V2),
    "ep4": Layout(ep=4, sharding=4, **_V2),
    "ep2 x v2 x4": Layout(ep=2, sharding=4, **_V2),
    "tp2 x ep2": Layout(mp=2, ep=2),
    "tp2 x ep2 x v2": Layout(mp=2, ep=2, sharding=2, **_V2),
    "sp with tp2 x ep4 x v2": Layout(
        mp=2, ep=4, sharding=2, sequence_parallel=True, **_V2
    ),
    "pp2 x ep2": Layout(pp=2, ep=2, sharding=2, **_V2),
    "tp2 x pp2 x v2": Layout(mp=2, pp=2, sharding=2, **_V2),
    "tp2 x ep4 x v2 x4": Layout(mp=2, ep=4, sharding=4, **_V2),
    "tp2 x pp2 x ep2 x v2": Layout(mp=2, pp=2, ep=2, sharding=2, **_V2),
}


class Exchange(PyLayer):
    """Give every rank a part of one axis, for the whole of another.

    PaddleNLP's `ReshardLayer` calls ``alltoall`` as Paddle 2 had it.
    """

    @staticmethod
    def forward(ctx, x, group, split_axis, joined_axis):
        ctx.group, ctx.axes = group, (joined_axis, split_axis)
        return _exchange(x, group, split_axis, joined_axis)

    @staticmethod
    def backward(ctx, grad):
        return _exchange(grad, ctx.group, *ctx.axes)


def _exchange(x, group, split_axis, joined_axis):
    parts = [
        part.contiguous() for part in paddle.split(x, group.nranks, split_axis)
    ]
    received = [paddle.empty_like(part) for part in parts]
    dist.alltoall(received, parts, group=group)
    return paddle.concat(received, axis=joined_axis)


def sequence_group(topology):
    """Ranks that share a sequence, of fleet's topology."""
    if isinstance(topology, EPHybridCommunicateGroup):
        return topology.get_context_parallel_group()
    return topology.get_sep_parallel_group()


def over_whole_sequences(attend, group):
    """Let `attend` see all positions of some of the heads.

    Args:
        attend: Takes queries, keys and values, [batch, length, heads, width],
            and options; gives the same shape.
        group: Ranks that share a sequence.
    """

    def call(query, key, value, *options):
        heads = [Exchange.apply(x, group, 2, 1) for x in (query, key, value)]
        return Exchange.apply(attend(*heads, *options), group, 1, 2)

    return call


class SeenClip(ClipGradBase):
    """Keeps what another clip makes of gradients, and what it communicates."""

    def __init__(self, clip, as_array):
        super().__init__()
        self.clip, self.as_array = clip, as_array
        self.keeps, self.clipped = True, {}
        self.outlier = None, 1.0  # of the next step: name, factor
        self.calls = []  # per step: what is sent, and how

    def _dygraph_clip(self, params_grads):
        (name, factor), self.outlier = self.outlier, (None, 1.0)
        for parameter, gradient in params_grads:
            if parameter.name.removeprefix("slice@") == name:
                gradient.scale_(factor)
        self.calls.append([])
        native = core.reshard, dist.all_reduce
        core.reshard, dist.all_reduce = map(self._counted, native)
        try:
            pairs = self.clip(params_grads)
        finally:
            core.reshard, dist.all_reduce = native
        if self.keeps:
            self.clipped = {
                p.name: self.as_array(g) for p, g in pairs if g is not None
            }
        return pairs

    def _counted(self, function):
        def call(tensor, *args, **options):
            self.calls[-1].append((function.__name__, list(tensor.shape)))
            return function(tensor, *args, **options)

        return call


def batch(step, seed=0):
    """Tokens and labels of a step, each [micro-batches, batch, length]."""
    draw = np.random.default_rng([seed, step])
    shape = (MICRO_BATCHES, BATCH, LENGTH + 1)
    tokens = draw.integers(0, DENSE["vocab_size"], shape)
    return tokens[..., :-1], tokens[..., 1:]


def outlier(step, config):
    """Key of the tensor whose gradient is an outlier in this step, and factor.

    Every third step, another tensor each time; one in the warm-up is so large
    that the other steps outvote it. In other steps the key is None.
    """
    keys = sorted(parameter_shapes(config))
    key = keys[(step * 7) % len(keys)] if step % 3 == 1 else None
    return key, 1e6 if step == 4 else 30.0


def on_ranks(layout, runs, timeout=None):
    """What each rank gave back, for every run of `train`."""
    ranks = run_on_ranks(
        train_all,
        layout.world_size,
        timeout=timeout or 60.0 * layout.world_size,
        layout=layout,
        runs=runs,
    )
    return list(zip(*ranks, strict=True))


_ALONE: dict[str, dict] = {}


def alone(**arguments):
    """`train_alone` with these arguments, once."""
    key = repr(sorted(arguments.items()))
    if key not in _ALONE:
        _ALONE[key] = train_alone(**arguments)
    return _ALONE[key]


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


def train(
    layout,
    topology,
    options,
    num_steps=NUM_STEPS,
    state=None,
    first_step=0,
    main_grad=False,
    clip_settings=ADAGC,
    make_optimizer=None,
    prepare=None,
    units=None,
    load_from=None,
    save_to=None,
):
    """Train on this rank.

    Gives losses, the clip's full state, pieces of the final weights and of the
    clipped gradients of some steps, what the clip sends, and how many tensors
    have a state of the optimizer here. ``prepare`` changes the model before
    the clip is bound.
    """
    config = DecoderConfig(
        **options,
        tensor_parallel_degree=layout.mp if layout.is_fleet else 1,
        sequence_parallel=layout.sequence_parallel,
        virtual_pp_degree=layout.virtual,
    )
    if layout.pp > 1:
        model = DecoderForCausalLMPipe(config)
    else:
        model = DecoderForCausalLM(config)
        model.model.enable_recompute = layout.recompute
    initialize_weights(model, config, SEED)
    layout.spread(model)
    if prepare is not None:
        prepare(model)
    clip = make_clip(**clip_settings)
    is_ours = isinstance(clip, TensorScalingClip)
    if is_ours:
        clip.bind(model, units)
    seen = SeenClip(clip, layout.whole)
    make_optimizer = make_optimizer or make_adamw
    optimizer = inner = make_optimizer(model, grad_clip=seen)
    bare = model
    if main_grad:
        mix_precision_utils.MixPrecisionLayer(model, dtype="bfloat16")
        optimizer = mix_precision_utils.MixPrecisionOptimizer(optimizer)
    of_units = units_by_key(clip, model) if units else {}
    model, optimizer = layout.wrap(model, optimizer)
    if layout.binds_wrapper:
        clip.bind(model)
    if load_from is not None:
        layout.load(load_from, model, optimizer)
        assert clip.num_steps == 0
    if state is not None:
        clip.set_state_dict(state)
    model.train()
    parameters = parameters_by_key(bare)
    if layout.is_fleet and not main_grad:
        for parameter in parameters.values():  # as the Trainer does
            if parameter.grad is None:
                parameter.grad = paddle.zeros_like(parameter)
    losses, clipped = [], {}
    for step in range(first_step, first_step + num_steps):
        ids, labels = layout.rows(batch(step), topology)
        losses.append(layout.backward(model, bare, optimizer, ids, labels))
        key, factor = outlier(step, config)
        if key in of_units:
            parameter, unit = of_units[key]
            gradient = unit.view(parameter.grad)
            paddle.assign(gradient * factor, gradient)
        elif key in parameters:
            layout.make_outlier(seen, parameters[key], factor)
        seen.keeps = step in COMPARED_STEPS
        optimizer.step()
        if seen.keeps:
            arrays = seen.clipped
            if layout.tensor_fusion and layout.fuse_optimizer:
                arrays = views_of_buffers(optimizer, topology)
            clipped[step] = pieces(parameters, arrays, optimizer, topology)
        optimizer.clear_grad()
    if save_to is not None:
        layout.save(save_to, model, optimizer)
    if hasattr(model, "get_all_parameters"):  # stage 3
        model.get_all_parameters()
    fused = {p.name for p, _ in of_units.values()}
    weights = {
        key: [(*place(p, topology), 0, layout.whole(p).reshape(-1))]
        for key, p in parameters.items()
        if p.name not in fused
    }
    for key, (p, unit) in of_units.items():
        where = (*place(p, topology)[:2], unit.shape, 0)
        weights[key] = [(*where, unit.view(p).numpy().reshape(-1))]
    return {
        "losses": losses,
        "state": plain(clip.full_state_dict()) if is_ours else {},
        "summary": clip.summary() if is_ours else {},
        "weights": weights,
        "clipped": clipped,
        "calls": seen.calls,
        "num_states": max(len(held) for held in inner._accumulators.values()),
    }


def units_by_key(clip, model):
    """Parameters with units: key of a unit -> the parameter, the unit."""
    return {
        unit.key: (parameter, unit)
        for parameter in model.parameters()
        for unit in clip._table.units.get(clip._table.slots([parameter])[0], ())
    }


def make_adamw(model, grad_clip):
    """Of large epsilon: else rounding decides where gradients are tiny."""
    return paddle.optimizer.AdamW(
        1e-3, parameters=model.parameters(), epsilon=1e-2, grad_clip=grad_clip
    )


def own_rows(arrays, layout, topology):
    """This rank's rows and positions of each micro-batch, as tensors."""
    rank, size = 0, 1
    if topology is not None:
        shards = topology.get_sharding_parallel_world_size()
        size = topology.get_data_parallel_world_size() * shards
        rank = (
            topology.get_data_parallel_rank() * shards
            + topology.get_sharding_parallel_rank()
        )
        rank, size = rank // layout.cp, size // layout.cp
        if max(layout.sep, layout.cp) > 1:
            group = sequence_group(topology)
            arrays = [
                np.split(array, group.nranks, axis=2)[group.rank]
                for array in arrays
            ]
    return [
        paddle.to_tensor(np.split(array, size, axis=1)[rank])
        for array in arrays
    ]


def forward_backward(model, bare, optimizer, ids, labels, num_sep_ranks=1):
    """Loss of all micro-batches, their gradients accumulated."""
    if isinstance(bare, PipelineLayer):
        data = model._prepare_training(
            [ids.flatten(0, 1), labels.flatten(0, 1)], optimizer, None
        )
        loss = float(model.forward_backward_pipeline(data, scaler=None))
        is_last = model.is_pipeline_last_stage(ignore_virtual=True)
        assert bool(bare.take_losses()) == is_last
        return loss
    total = 0.0
    # Fleet adds up the gradients of sep ranks.
    num_parts = MICRO_BATCHES * num_sep_ranks
    for micro in range(MICRO_BATCHES):
        last = micro + 1 == MICRO_BATCHES
        if isinstance(model, paddle.DataParallel) and not last:
            with model.no_sync():
                loss = model(ids[micro], labels[micro])[0]
                (loss / num_parts).backward()
        else:
            loss = model(ids[micro], labels[micro])[0]
            (loss / num_parts).backward()
        total += float(loss) / MICRO_BATCHES
    return total


@paddle.no_grad()
def scale_gradient(parameter, factor):
    """Multiply a gradient in place."""
    gradient = getattr(parameter, "main_grad", None)
    if gradient is None:
        gradient = parameter.grad
    gradient.scale_(factor)


def views_of_buffers(optimizer, topology):
    """Clipped gradients of this rank's parameters, where the clip saw buffers.

    The parameters' own gradients are views into the buffers.
    """
    mine = optimizer._rank2params[topology.get_sharding_parallel_rank()]
    return {p.name: getattr(p, "main_grad", p.grad).numpy() for p in mine}


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
        out[key] = [(*place(parameter, topology), offset, flat)]
    return out


def plain(state):
    """A clip's state with floats for tensors."""
    kept = {
        name: {key: float(np.asarray(value)) for key, value in values.items()}
        for name, values in state.items()
        if name not in ("step", "config")
    }
    return {**state, **kept}


def merge(ranks):
    """Whole tensors from all ranks' pieces.

    Ranks that hold the same elements have to agree on them.
    """
    found: dict[str, dict] = {}
    for rank in ranks:
        for key, parts in rank.items():
            for tp_rank, axis, shape, offset, flat in parts:
                local, _ = found.setdefault(key, {}).setdefault(
                    tp_rank, (np.full(np.prod(shape), np.nan), (axis, shape))
                )
                target = local[offset : offset + flat.size]
                known = ~np.isnan(target)
                np.testing.assert_allclose(
                    flat[known], target[known], rtol=1e-5, atol=1e-7
                )
                target[:] = flat
    return {key: _whole(parts) for key, parts in found.items()}


def _whole(parts):
    arrays = [
        parts[rank][0].reshape(parts[rank][1][1]) for rank in sorted(parts)
    ]
    axis = parts[0][1][0]
    return arrays[0] if axis is None else np.concatenate(arrays, axis=axis)


def train_alone(options, **arguments):
    """The run of one process with the whole model."""
    result = train(Layout(), None, options, **arguments)
    result["weights"] = merge([result["weights"]])
    result["clipped"] = {
        step: merge([held]) for step, held in result["clipped"].items()
    }
    return result


def tolerance(key):
    """Of a tensor's largest element.

    The gradient of a scale of WeSaR is one sum over all that its matrix gives,
    whose terms nearly cancel here.
    """
    return 5e-3 if key.endswith("alpha") else 1e-5


def assert_close(whole, expected, what):
    """Equal to 1e-5 of each tensor's largest element."""
    assert whole.keys() == expected.keys(), what
    for key, value in expected.items():
        assert whole[key].shape == value.shape, (what, key)
        error = np.abs(whole[key] - value).max()
        limit = tolerance(key) * np.abs(value).max()
        assert error <= limit, (what, key, error)


def assert_same_summary(mine, theirs):
    """To 1e-5 relative, counts and names exactly."""
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert mine[name] == pytest.approx(value, rel=1e-5, abs=1e-9), name


def assert_same_run(ranks, expected):
    """Losses, states, clipped gradients and weights, to 1e-5 relative."""
    losses = np.mean([rank["losses"] for rank in ranks], axis=0)
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-5)
    for rank in ranks:
        assert rank["state"] == ranks[0]["state"]
        assert rank["summary"] == ranks[0]["summary"]
    if not any(key.endswith("alpha") for key in expected["weights"]):
        assert_same_summary(ranks[0]["summary"], expected["summary"])
    mine, theirs = ranks[0]["state"], expected["state"]
    assert mine.keys() == theirs.keys()
    assert mine.get("step") == theirs.get("step")
    for kept in mine.keys() - {"step", "config"}:
        for key, value in theirs[kept].items():
            limit = tolerance(key) * value  # both may be inf
            assert mine[kept][key] == pytest.approx(value, abs=limit), key
    for step, clipped in expected["clipped"].items():
        assert_close(
            merge([rank["clipped"][step] for rank in ranks]),
            clipped,
            f"clipped gradients of step {step}",
        )
    assert_close(
        merge([rank["weights"] for rank in ranks]),
        expected["weights"],
        "weights",
    )
