# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline: the keys of a clip's state, and what stages share."""

import importlib.util

import numpy as np
import paddle
import pytest
from core.parallel.layouts import Layout
from core.parallel.ranks import run_on_ranks
from core.parallel.training import plain
from helpers import TINY_LLAMA
from paddle.distributed.fleet.meta_parallel.parallel_layers import pp_layers

from paddle_adagc import ClipGradByAdaGC

VOCABULARY, HIDDEN = 6, 4
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


def clip_made(model, without=()):
    """Gammas and norms of the whole model after steps of made gradients."""
    clip = ClipGradByAdaGC(t_start=3, beta=0.9)
    clip.bind(model)
    for step in range(8):
        pairs = []
        for key, parameter in model.named_parameters():
            name = KEYS.get(key, key)
            if name not in without:
                draw = np.random.default_rng([step, *map(ord, name)])
                values = draw.normal(size=parameter.shape).astype("float32")
                pairs.append((parameter, paddle.to_tensor(values)))
        clip(pairs)
    norms = clip.summary(tensors=True)["tensors"]
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
    return module


def clip_stage(is_foreign):
    """The same on a stage; the first one's scale never has a gradient."""
    classes = pipeline_classes(is_foreign)
    topology = Layout(pp=2).start()
    tied = {"layer_func": Embed, "shared_weight_attr": "weight"}
    model = classes.PipelineLayer(
        [
            classes.SharedLayerDesc("embed", **tied),
            classes.LayerDesc(paddle.nn.Linear, HIDDEN, HIDDEN),
            classes.SharedLayerDesc("embed", **tied),
        ],
        num_stages=2,
        topology=topology._topo,
        loss_fn=paddle.nn.CrossEntropyLoss(),
    )
    without = () if topology.get_stage_id() else ("embed.scale",)
    return clip_made(model, without)


@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_bare_pipeline_is_one_process(is_foreign):
    whole = paddle.nn.Layer()
    whole.embed, whole.middle = Embed(), paddle.nn.Linear(HIDDEN, HIDDEN)
    expected = clip_made(whole)
    for found in run_on_ranks(clip_stage, 2, is_foreign=is_foreign):
        for mine, theirs in zip(found, expected, strict=True):
            mine = {KEYS[key]: x for key, x in mine.items()}
            assert mine == pytest.approx(theirs, rel=1e-5)


def clip_of_tied_llama(is_pipeline, state=None):
    """Gammas of the whole model after a step, or after loading a state."""
    from paddlenlp import transformers

    kind = transformers.LlamaForCausalLM
    if is_pipeline:
        Layout(pp=2).start()
        kind = transformers.LlamaForCausalLMPipe
    config = transformers.LlamaConfig(**TINY_LLAMA, tie_word_embeddings=True)
    model = kind(config)
    clip = ClipGradByAdaGC(t_start=0)
    clip.bind(model)
    if state is None:
        clip([(p, paddle.ones_like(p)) for p in model.parameters()])
    else:
        clip.set_state_dict(state)
    return plain(clip.full_state_dict())


@pytest.mark.slow
def test_tied_head_has_the_embedding_s_key_on_every_stage():
    pytest.importorskip("paddlenlp")
    whole = clip_of_tied_llama(False)
    assert len(whole["gamma"]) == 1 + 2 * 9 + 1
    for state in run_on_ranks(clip_of_tied_llama, 2, is_pipeline=True):
        assert state["gamma"] == whole["gamma"]
    loaded = run_on_ranks(clip_of_tied_llama, 2, is_pipeline=True, state=whole)
    assert [state["gamma"] for state in loaded] == [whole["gamma"]] * 2
