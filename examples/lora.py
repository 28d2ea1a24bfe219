# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC when a LoRA adapter is fine-tuned: only its tensors are clipped."""

import numpy as np
import paddle
from paddlenlp.peft import LoRAConfig, LoRAModel
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

from paddle_adagc import ClipGradByAdaGC

if __name__ == "__main__":
    paddle.seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    model = LoRAModel(
        LlamaForCausalLM(config),
        LoRAConfig(target_modules=[".*q_proj.*", ".*v_proj.*"], r=4),
    )
    model.mark_only_lora_as_trainable()
    # Gradients of lora_A begin at 0: the paper's start, a minimum, is too low.
    clip = ClipGradByAdaGC(t_start=5, init="warmup_ema")
    clip.bind(model)  # after the adapter is there
    trainable = [p for p in model.parameters() if not p.stop_gradient]
    optimizer = paddle.optimizer.AdamW(
        1e-2, parameters=trainable, grad_clip=clip
    )
    text = np.frombuffer(b"to clip or not to clip; " * 4, np.uint8)
    for step in range(20):
        window = paddle.to_tensor(text[step:][:33].astype("int64")[None])
        loss = model(window[:, :-1], labels=window[:, 1:])[0]
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    print(f"loss {float(loss):.3f}", clip.summary())
