# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""As in PaddleNLP: arguments and Trainer."""

from paddlenlp.trainer.trainer import Trainer
from paddlenlp.trainer.training_args import TrainingArguments

__all__ = ["Trainer", "TrainingArguments"]
