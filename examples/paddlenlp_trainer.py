# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC in PaddleNLP's Trainer: a tiny Llama on repeating text."""

import numpy as np
import paddle
from paddlenlp.trainer import Trainer, TrainingArguments
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.integrations.paddlenlp import ClippingMixin


class ClippingTrainer(ClippingMixin, Trainer):
    """PaddleNLP's Trainer that clips with ``clip``."""


class Text(paddle.io.Dataset):
    """Windows of one sentence, as bytes."""

    def __len__(self):
        """Number of samples."""
        return 400

    def __getitem__(self, index):
        """32 tokens, and the tokens that follow them."""
        text = np.frombuffer(b"to clip or not to clip; " * 4, np.uint8)
        window = text[index % 24 :][:33].astype("int64")
        return {"input_ids": window[:-1], "labels": window[1:]}


if __name__ == "__main__":
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    trainer = ClippingTrainer(
        clip=ClipGradByAdaGC(t_start=10, init="warmup_ema"),
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir="outputs/paddlenlp_trainer",
            max_steps=40,
            per_device_train_batch_size=8,
            learning_rate=3e-3,
            logging_steps=10,  # the log has clip_clipped_fraction and more
            save_steps=20,
        ),
        train_dataset=Text(),
    )
    trainer.train()
