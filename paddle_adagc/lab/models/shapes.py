# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Names, shapes and counts of a model's parameters, whole and on a rank."""

import dataclasses
import functools
import json
import math
import re
from typing import NamedTuple
from unittest import mock

import paddle
from paddle.distributed import fleet
from paddle.utils import unique_name

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.moe import expert_rank
from paddle_adagc.lab.models.parallel import check_degrees
from paddle_adagc.lab.models.pipeline import stage_bounds
from paddle_adagc.lab.models.pretrained import PretrainedModel
from paddle_adagc.lab.models.vision_text.config import CLIPConfig
from paddle_adagc.lab.models.vision_text.model import CLIP

Shape = tuple[int, ...]
ModelConfig = DecoderConfig | CLIPConfig

_EMBEDDING = "model.embed_tokens."
_FINAL_NORM = "model.norm.weight"
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_SPLIT_IN_ROWS = re.compile(r"\.(embed_tokens|o_proj|down_proj)\.weight$")
_SPLIT_IN_COLUMNS = re.compile(
    r"(\.[qkv]_proj|\.gate_proj|\.up_proj|lm_head)\.weight$"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Counts of a whole model."""

    parameters: int
    """Trained values; a tied embedding counts once."""

    active_parameters: int
    """Values that take part in the product for one token."""

    tensors: int
    tensors_without_routers: int
    """The paper's count, (9 + 3E) L + 3 for ERNIE."""

    @property
    def gamma_bytes(self) -> int:
        """Bytes of the float32 reference norms of all tensors."""
        return 4 * self.tensors


class Degrees(NamedTuple):
    """Number of ranks that share the model along each axis."""

    tp: int = 1
    pp: int = 1
    ep: int = 1


class ShardSize(NamedTuple):
    """Counts of what one tensor-parallel rank holds."""

    stage: int
    """Pipeline stage, from 0."""

    expert_ranks: tuple[int, ...]
    """Expert-parallel ranks; each holds as much."""

    num_layers: int
    num_tensors: int
    num_parameters: int


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return name and shape of every parameter of the model in one piece.

    In the order of `named_parameters()`; matrices are stored [in, out]. The
    correction bias of a router is a buffer and not listed.

    They are those of the real model, built without memory; of decoder layers
    with experts, and of those without, it has one for all that are alike.
    """
    options = {name: getattr(config, name) for name in config.field_names()}
    if isinstance(config, CLIPConfig):
        return dict(_built_shapes(CLIP, json.dumps(options)))
    kinds = [config.is_moe_layer(i) for i in range(config.num_hidden_layers)]
    built = [*dict.fromkeys(kinds)]
    options["num_hidden_layers"] = len(built)
    options["moe_layers"] = [i for i, is_moe in enumerate(built) if is_moe]
    layers: list[dict[str, Shape]] = [{} for _ in built]
    others = {}
    for key, shape in _built_shapes(DecoderForCausalLM, json.dumps(options)):
        if layer := _LAYER.match(key):
            layers[int(layer[1])][key[layer.end() :]] = shape
        else:
            others[key] = shape
    shapes = {}
    for key, shape in others.items():
        if key == _FINAL_NORM:
            for index, kind in enumerate(kinds):
                for name, of_layer in layers[built.index(kind)].items():
                    shapes[f"model.layers.{index}.{name}"] = of_layer
        shapes[key] = shape
    return shapes


@functools.lru_cache(maxsize=32)
def _built_shapes(
    kind: type[PretrainedModel], options: str
) -> tuple[tuple[str, Shape], ...]:
    with (
        paddle.LazyGuard(),
        # Later parameters keep their names, and no rank splits these.
        unique_name.guard(),
        mock.patch.object(fleet.fleet, "_hcg", None, create=True),
    ):
        model = kind(kind.config_class(**json.loads(options)))
    return tuple((n, tuple(p.shape)) for n, p in model.named_parameters())


def model_size(config: ModelConfig) -> ModelSize:
    """Count the model's parameters and tensors.

    Active is what takes part in the product for one token: the head does,
    tied or not; the embedding lookup reads a single row and does not; of the
    routed experts `moe_top_k` do. This is the "A1.4B" of ERNIE 10B-A1.4B.
    """
    shapes = parameter_shapes(config)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    parameters = active = sum(sizes.values())
    is_decoder = isinstance(config, DecoderConfig)
    if is_decoder and config.moe_num_experts:
        routed = sum(v for name, v in sizes.items() if _EXPERT.search(name))
        active -= routed
        active += routed * config.moe_top_k // config.moe_num_experts
    if is_decoder and not config.tie_word_embeddings:
        active -= sizes[f"{_EMBEDDING}weight"]
    return ModelSize(
        parameters=parameters,
        active_parameters=active,
        tensors=len(shapes),
        tensors_without_routers=sum(".mlp.gate." not in n for n in shapes),
    )


def split_axis(key: str) -> int | None:
    """Return the axis along which tensor-parallel ranks split a parameter.

    None: every rank holds all of it (norms and routers). Under expert
    parallelism experts are not split, though they have an axis here.
    """
    if _SPLIT_IN_ROWS.search(key):
        return 0
    return 1 if _SPLIT_IN_COLUMNS.search(key) else None


def stage_of(key: str, config: DecoderConfig, num_stages: int) -> list[int]:
    """Return the pipeline stages that hold a parameter.

    It is one, but for an embedding that the head shares: that is on the first
    and on the last.
    """
    last = num_stages - 1
    if key.startswith(_EMBEDDING):
        is_shared = config.tie_word_embeddings and last > 0
        return [0, last] if is_shared else [0]
    layer = _LAYER.match(key)
    if layer is None:
        return [last]
    index = int(layer[1]) + 1  # the embedding comes first
    bounds = stage_bounds(config.num_hidden_layers, num_stages)
    return [sum(index >= bound for bound in bounds[1:-1])]


def local_shapes(
    config: DecoderConfig,
    degrees: Degrees,
    *,
    stage: int = 0,
    expert_parallel_rank: int = 0,
) -> dict[str, Shape]:
    """Return name and shape of every parameter that a rank holds.

    Tensor-parallel ranks hold equal shapes, data-parallel ranks the same
    tensors. Sharding splits the optimizer's states further, not these.
    """
    check_degrees(config, degrees.tp, degrees.ep)
    held = {}
    for key, shape in parameter_shapes(config).items():
        if stage not in stage_of(key, config, degrees.pp):
            continue
        expert = _EXPERT.search(key)
        if expert is not None and expert_parallel_rank != expert_rank(
            int(expert[1]), config.moe_num_experts, degrees.ep
        ):
            continue
        axis = split_axis(key)
        local = [*shape]
        if axis is not None and (expert is None or degrees.ep == 1):
            local[axis] //= degrees.tp
        held[key] = tuple(local)
    return held


def shard_sizes(config: DecoderConfig, degrees: Degrees) -> list[ShardSize]:
    """Count what the ranks of every pipeline stage hold."""
    sizes = []
    for stage in range(degrees.pp):
        shapes = local_shapes(config, degrees, stage=stage)
        layers = {match[1] for key in shapes if (match := _LAYER.match(key))}
        size = sum(map(math.prod, shapes.values()))
        ranks = tuple(range(degrees.ep))
        sizes.append(ShardSize(stage, ranks, len(layers), len(shapes), size))
    return sizes
