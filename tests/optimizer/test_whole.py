# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Which weights are Muon's, and which layouts give whole tensors."""

import pytest

from paddle_adagc.distributed.topology import Axis, Topology
from paddle_adagc.models.config import DecoderConfig
from paddle_adagc.models.decoder import DecoderForCausalLM
from paddle_adagc.optimizer import whole
from paddle_adagc.optimizer.matrices import hidden_matrices

SMALL = {
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "qk_norm": True,
}


def left_to_adamw(**options):
    model = DecoderForCausalLM(DecoderConfig(**SMALL, **options))
    is_matrix = hidden_matrices(model)
    return {key for key, p in model.named_parameters() if not is_matrix(p.name)}


def is_vector(key):
    return "norm" in key


def test_hidden_matrices_of_a_dense_decoder():
    left = {key for key in left_to_adamw() if not is_vector(key)}
    assert left == {"model.embed_tokens.weight", "lm_head.weight"}
    left = left_to_adamw(tie_word_embeddings=True)
    assert {key for key in left if not is_vector(key)} == {
        "model.embed_tokens.weight"
    }


def test_hidden_matrices_of_experts_without_their_router():
    left = left_to_adamw(
        moe_num_experts=4,
        moe_top_k=2,
        moe_intermediate_size=4,
        moe_num_shared_experts=1,
        moe_layers=[1],
    )
    assert {key for key in left if not is_vector(key)} == {
        "model.embed_tokens.weight",
        "model.layers.1.mlp.gate.weight",
        "lm_head.weight",
    }


def test_slices_and_joined_tensors_are_refused(monkeypatch):
    def check(**place):
        sharding = Axis(0, 2, object())
        topology = Topology(sharding=sharding, **place)
        monkeypatch.setattr(whole, "read_topology", lambda: topology)
        whole.check_whole_tensors("Muon", ["linear_0.w_0"])

    check()  # V1
    with pytest.raises(ValueError, match=r"Muon .*split_param to False"):
        check(splits_parameters=True)
    with pytest.raises(ValueError, match=r"Muon .*fuse_optimizer"):
        check(fuses_parameters=True)
    check()
    with pytest.raises(ValueError, match=r"slice@linear_0.*stage 3"):
        whole.check_whole_tensors("Muon", ["slice@linear_0.w_0"])
