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
"""The clip in PaddleNLP's own model and Trainer, as its users have them."""

import numpy as np
import paddle
from paddlenlp.trainer import Trainer, TrainingArguments
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.data.config import DataConfig
from paddle_adagc.data.datasets import build_datasets, collate_batch


class TrainerWithAdaGC(Trainer):
    """What a user writes: one method."""

    def create_optimizer(self, lr_scheduler=None):
        self.clip = ClipGradByAdaGC(t_start=5)
        self.clip.bind(self.model)
        self.optimizer = paddle.optimizer.AdamW(
            learning_rate=lr_scheduler,
            parameters=self.model.parameters(),
            grad_clip=self.clip,
        )
        return self.optimizer


def test_llama_trains_in_paddlenlp_s_trainer(tmp_path):
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    paddle.seed(0)
    train, _ = build_datasets(DataConfig(seq_length=32), 20 * 8)
    trainer = TrainerWithAdaGC(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=20,
            per_device_train_batch_size=8,
            learning_rate=3e-3,
            logging_steps=20,
            report_to=[],
            save_strategy="no",
            device="cpu",
        ),
        data_collator=collate_batch,
        train_dataset=train,
    )
    loss = trainer.train().metrics["train_loss"]
    assert loss < np.log(256)
    assert trainer.clip.num_steps == 20
    metrics = trainer.clip.metrics()
    assert len(metrics["tensors"]) == len(trainer.model.parameters())
    gamma = [tensor["gamma"] for tensor in metrics["tensors"].values()]
    assert np.isfinite(gamma).all()
