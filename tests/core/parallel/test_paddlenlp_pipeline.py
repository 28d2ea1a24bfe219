# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip's state in PaddleNLP's own pipeline models."""

import paddle
import pytest
from core.parallel.ranks import run_on_ranks, start_fleet
from paddlenlp.transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForCausalLMPipe,
)

from paddle_adagc import ClipGradByAdaGC


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
    state = clip.full_state_dict()
    state["gamma"] = {key: float(g) for key, g in state["gamma"].items()}
    return state


@pytest.mark.slow
def test_tied_head_has_the_embedding_s_key_on_every_stage():
    whole = clip_of_tied_llama(False)
    assert len(whole["gamma"]) == 1 + 2 * 9 + 1
    for state in run_on_ranks(clip_of_tied_llama, 2, is_pipeline=True):
        assert state["gamma"] == whole["gamma"]
    loaded = run_on_ranks(clip_of_tied_llama, 2, is_pipeline=True, state=whole)
    assert [state["gamma"] for state in loaded] == [whole["gamma"]] * 2
