# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The net over the stages of a pipeline; and the net of any layout."""

import dataclasses
import functools

import numpy as np
import paddle
from core.parallel.experts import HIDDEN
from core.parallel.net import (
    VOCABULARY,
    Block,
    Net,
    Norm,
    embedding,
    linear,
    loss_of,
    tied_logits,
)
from paddle import nn
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import (
    LayerDesc,
    PipelineLayer,
    SharedLayerDesc,
)

from paddle_adagc.parallel.layout import read_layout, unwrap
from paddle_adagc.parallel.topology import read_topology

SEED, SPREAD = 5, 0.2  # of the initial weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What differs between models."""

    num_hidden_layers: int = 3
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    moe_num_experts: int = 0
    moe_top_k: int = 2


class Start(nn.Layer):
    def __init__(self):
        super().__init__()
        self.embed_tokens = embedding()

    @property
    def weight(self):
        """What a tied head shares."""
        return self.embed_tokens.weight

    def forward(self, ids):
        return self.embed_tokens(ids)


class Head(nn.Layer):
    def __init__(self):
        super().__init__()
        self.lm_head = linear(HIDDEN, VOCABULARY, "columns")

    def forward(self, x):
        return self.lm_head(x)


class Pipe(PipelineLayer):
    """The net over the stages of a pipeline.

    It says the names of its tensors in the whole net as PaddleNLP's models do.
    """

    def __init__(self, options):
        self.num_losses = 0
        count, stages = options.num_hidden_layers, read_topology().pipe.size
        start, head = LayerDesc(Start), LayerDesc(Head)
        self.prefixes = ["model", *(f"model.layers.{i}" for i in range(count))]
        self.prefixes += ["model.norm", ""]
        if options.tie_word_embeddings:
            share = functools.partial(
                SharedLayerDesc,
                key="embed_tokens",
                layer_func=Start,
                shared_weight_attr="weight",
            )
            start = share()
            head = share(
                forward_func=lambda layer, x: tied_logits(x, layer.weight)
            )
        blocks = [LayerDesc(Block, options) for _ in range(count)]
        # Stages begin at these of [embedding, blocks, norm, head].
        bounds = [1 + i * count // stages for i in range(1, stages)]
        super().__init__(
            layers=[start, *blocks, LayerDesc(Norm, HIDDEN), head],
            loss_fn=self.loss,
            topology=fleet.get_hybrid_communicate_group().topology(),
            seg_method=[0, *bounds, count + 3],
        )
        self._pp_to_single_mapping = None  # state_dict() has the whole's names

    def state_dict(self, *args, **kwargs):
        held = super().state_dict(*args, **kwargs)
        return {self.key(name.split(".")): held[name] for name in held}

    def key(self, parts):
        """Name in the whole net of a tensor of a stage."""
        if "embed_tokens" in parts:  # shared ones have names of their own
            return "model.embed_tokens.weight"
        prefix = self.prefixes[int(parts[0])]
        return ".".join(filter(None, [prefix, *parts[1:]]))

    def loss(self, logits, labels):
        self.num_losses += 1
        return loss_of(logits, labels)


def parameters_by_key(model):
    """This rank's parameters by their names in the whole net."""
    layout = read_layout(model)
    return {layout[p.name].key: p for p in unwrap(model).parameters()}


@paddle.no_grad()
def initialize(model):
    """Give matrices values that do not depend on the layout."""
    axis = read_topology().model
    for key, parameter in parameters_by_key(model).items():
        if parameter.ndim == 1:
            continue
        shape, split = list(parameter.shape), None
        if getattr(parameter, "is_distributed", False):
            split = parameter.split_axis
            shape[split] *= axis.size
        draw = np.random.default_rng([SEED, *key.encode()])
        value = draw.normal(0.0, SPREAD, shape)
        if split is not None:
            value = np.split(value, axis.size, split)[axis.rank]
        parameter.set_value(value.astype("float32"))


def make_net(options, layout):
    """The net on a layout, with the same weights on each."""
    options = Options(**options)
    model = Pipe(options) if layout.pp > 1 else Net(options)
    initialize(model)
    return model
