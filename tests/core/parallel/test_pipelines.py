# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline: the keys of a clip's state, and what stages share."""

import importlib.util

import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from core.parallel.training import plain
from paddle.distributed import fleet
from paddle.distributed.fleet import model as fleet_model
from paddle.distributed.fleet.meta_parallel import (
    pipeline_parallel,
)
from paddle.distributed.fleet.meta_parallel.parallel_layers import pp_layers
from paddlenlp.transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForCausalLMPipe,
)

from paddle_adagc import ClipGradByAdaGC

NUM_STEPS = 8
BATCH, LENGTH, VOCABULARY, HIDDEN = 8, 3, 6, 4
KEYS = {
    "shared_layers.embed.weight": "embed.weight",
    "shared_layers.embed.scale": "embed.scale",
    "1.weight": "middle.weight",
    "1.bias": "middle.bias",
}


class Embed(paddle.nn.Layer):
    """An embedding, and a scale that only its use as a head needs."""

    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([VOCABULARY, HIDDEN])
        self.scale = self.create_parameter([VOCABULARY])

    def forward(self, tokens):
        """Embed tokens."""
        return paddle.nn.functional.embedding(tokens, self.weight)


def head(layer, hidden):
    """Logits by the embedding's weight."""
    return paddle.matmul(hidden, layer.weight, transpose_y=True) * layer.scale


def loss_of(logits, labels):
    return paddle.nn.functional.cross_entropy(logits, labels)


class Whole(paddle.nn.Layer):
    """What the pipeline computes."""

    def __init__(self):
        super().__init__()
        self.embed = Embed()
        self.middle = paddle.nn.Linear(HIDDEN, HIDDEN)

    def forward(self, tokens):
        """Logits."""
        return head(self.embed, self.middle(self.embed(tokens)))


def set_weights(model):
    """The same weights whatever a parameter's key is here."""
    for key, parameter in model.named_parameters():
        seed = sum(map(ord, KEYS.get(key, key)))
        draw = np.random.default_rng(seed).normal(size=parameter.shape)
        parameter.set_value(draw.astype("float32"))


def batch(step):
    draw = np.random.default_rng([7, step])
    shape = (BATCH, LENGTH)
    return [draw.integers(0, VOCABULARY, shape) for _ in range(2)]


def make_optimizer(model):
    clip = ClipGradByAdaGC(t_start=3, beta=0.9)
    clip.bind(model)
    return clip, paddle.optimizer.AdamW(
        0.05, parameters=model.parameters(), grad_clip=clip
    )


def numbers_of(clip):
    """Gammas and norms of the whole model."""
    norms = clip.full_metrics()["tensors"]
    return (
        plain(clip.full_state_dict())["gamma"],
        {key: values["norm"] for key, values in norms.items()},
    )


def pipeline_classes(is_foreign):
    """Paddle's classes, or others like them, as PaddleFleet has its own."""
    if not is_foreign:
        return pp_layers
    name = f"{pp_layers.__package__}.foreign"
    spec = importlib.util.spec_from_file_location(name, pp_layers.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not issubclass(module.PipelineLayer, pp_layers.PipelineLayer)
    for user in (pipeline_parallel, fleet_model):
        user.PipelineLayer = module.PipelineLayer
    return module


def train_pipeline(is_foreign=False):
    """Losses, gammas and the summary's tensors on this rank."""
    classes = pipeline_classes(is_foreign)
    topology = start_fleet(
        pp=2,
        sharding=2,
        num_micro_batches=2,
        micro_batch_size=BATCH // 4,
        sharding_configs={"split_param": True},
    )
    model = classes.PipelineLayer(
        [
            classes.SharedLayerDesc(
                "embed", Embed, shared_weight_attr="weight"
            ),
            classes.LayerDesc(paddle.nn.Linear, HIDDEN, HIDDEN),
            classes.SharedLayerDesc(
                "embed", Embed, forward_func=head, shared_weight_attr="weight"
            ),
        ],
        num_stages=2,
        topology=topology._topo,
        loss_fn=loss_of,
    )
    set_weights(model)
    clip, optimizer = make_optimizer(model)
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(optimizer)
    rank, losses = topology.get_sharding_parallel_rank(), []
    for step in range(NUM_STEPS):
        rows = [np.split(x, 2)[rank] for x in batch(step)]
        data = [paddle.to_tensor(x) for x in rows]
        losses.append(float(model.train_batch(data, optimizer)))
    return losses, *numbers_of(clip)


def train_alone():
    model = Whole()
    set_weights(model)
    clip, optimizer = make_optimizer(model)
    losses = []
    for step in range(NUM_STEPS):
        tokens, labels = map(paddle.to_tensor, batch(step))
        loss = loss_of(model(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses, *numbers_of(clip)


@pytest.mark.slow
@pytest.mark.parametrize("is_foreign", [False, True])
def test_pp2_x_v2_is_one_process(is_foreign):
    """The first stage's copy of the scale never has a gradient."""
    ranks = run_on_ranks(train_pipeline, 4, is_foreign=is_foreign)
    losses, gamma, norms = train_alone()
    # Losses are of a sharding rank's own rows.
    mean = np.mean([ranks[0][0], ranks[1][0]], axis=0)
    np.testing.assert_allclose(mean, losses, rtol=1e-5)
    for _, found, measured in ranks:
        assert {KEYS[key]: x for key, x in found.items()} == pytest.approx(
            gamma, rel=1e-5
        )
        assert {KEYS[key]: x for key, x in measured.items()} == pytest.approx(
            norms, rel=1e-4
        )


def clip_of_tied_llama(is_pipeline, state=None):
    """Gammas of the whole model after a step, or after loading a state."""
    if is_pipeline:
        start_fleet(pp=2)
    kind = LlamaForCausalLMPipe if is_pipeline else LlamaForCausalLM
    model = kind(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=16,
            tie_word_embeddings=True,
        )
    )
    clip = ClipGradByAdaGC(t_start=0)
    clip.bind(model)
    if state is None:
        clip([(p, paddle.ones_like(p)) for p in model.parameters()])
    else:
        clip.set_state_dict(state)
    return plain(clip.full_state_dict())


@pytest.mark.slow
def test_tied_head_has_the_embedding_s_key_on_every_stage():
    whole = clip_of_tied_llama(False)
    assert len(whole["gamma"]) == 1 + 2 * 9 + 1
    for state in run_on_ranks(clip_of_tied_llama, 2, is_pipeline=True):
        assert state["gamma"] == whole["gamma"]
    loaded = run_on_ranks(clip_of_tied_llama, 2, is_pipeline=True, state=whole)
    assert [state["gamma"] for state in loaded] == [whole["gamma"]] * 2
