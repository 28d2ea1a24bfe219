# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Trainer's arguments, in a module that is imported after it."""

import dataclasses


@dataclasses.dataclass
class TrainingArguments:
    """Those that a short run needs."""

    output_dir: str = "out"
    max_steps: int = 6
    max_grad_norm: float = 1.0
