# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Trainer's arguments."""

import dataclasses


@dataclasses.dataclass
class TrainingArguments:
    """Those that a short run needs."""

    output_dir: str = "out"
    max_steps: int = 6
    save_steps: int = 3
    logging_steps: int = 3
    learning_rate: float = 0.01
    max_grad_norm: float = 1.0
    seconds_per_step: float = 0.0
    resume_from_checkpoint: str | None = None
