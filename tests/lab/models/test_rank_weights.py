# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Initial weights that no layout changes, and whole tensors."""

import numpy as np
import paddle
import pytest

from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.rank_weights import (
    initialize_weights,
    load_weights,
    parameters_by_key,
)

OPTIONS = {
    "dense, tied": {"tie_word_embeddings": True, "qk_norm": True},
    "moe": {"moe_num_experts": 4, "moe_num_shared_experts": 1},
    "wesar": {"moe_num_experts": 4, "initialization": "wesar"},
}


def config(name):
    return DecoderConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, **OPTIONS[name]
    )


def arrays(model):
    return {k: p.numpy() for k, p in parameters_by_key(model).items()}


@pytest.mark.parametrize("name", OPTIONS)
def test_weights_are_those_of_building_the_model_with_the_seed(name):
    paddle.seed(3)
    built = DecoderForCausalLM(config(name))
    after = paddle.rand([2]).numpy()
    other = DecoderForCausalLM(config(name))
    initialize_weights(other, config(name), seed=3)
    np.testing.assert_array_equal(paddle.rand([2]).numpy(), after)
    expected = arrays(built)
    assert expected.keys() == arrays(other).keys()
    for key, array in arrays(other).items():
        np.testing.assert_array_equal(array, expected[key], err_msg=key)


def test_weights_are_loaded_by_name():
    model, other = (DecoderForCausalLM(config("moe")) for _ in range(2))
    load_weights(other, {**arrays(model), "unused": np.zeros(3)})
    for key, array in arrays(other).items():
        np.testing.assert_array_equal(array, arrays(model)[key])
    weights = arrays(model)
    del weights["lm_head.weight"]
    with pytest.raises(KeyError, match="lm_head"):
        load_weights(other, weights)
