# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train for some steps and print the bits of losses and weights.

With the argument ``no-avx512`` the processor is taken for one without.
"""

import hashlib
import sys

import paddle

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.lab.models import cpu
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.record.machine import processor_facts

if "no-avx512" in sys.argv:
    fields = cpu.processor_fields()
    kept = [f for f in fields["flags"].split() if not f.startswith("avx512")]
    fields["flags"] = " ".join(kept)
cpu.use_portable_arithmetic()
paddle.seed(0)
model = DecoderForCausalLM(
    DecoderConfig(
        vocab_size=256,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        moe_num_experts=4,
        moe_top_k=2,
        moe_intermediate_size=24,
    )
)
optimizer = paddle.optimizer.AdamW(
    3e-3, parameters=model.parameters(), grad_clip=ClipGradByAdaGC(t_start=3)
)
digest = hashlib.sha256()
for _ in range(6):
    tokens = paddle.randint(0, 256, [4, 17])
    loss, _ = model(tokens[:, :-1], labels=tokens[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    digest.update(loss.numpy().tobytes())
for weight in model.parameters():
    digest.update(weight.numpy().tobytes())
print(processor_facts()["adamw"], digest.hexdigest())
