# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaddleNLP's pipeline: the keys of a state, and what its stages share."""

import paddle
import pytest
from core.parallel.layouts import Layout
from core.parallel.ranks import run_on_ranks
from core.parallel.training import plain
from helpers import TINY_LLAMA

from paddle_adagc import ClipGradByAdaGC


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
