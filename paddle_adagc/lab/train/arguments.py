# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's settings as PaddleNLP's ``TrainingArguments``."""

from __future__ import annotations

from pathlib import Path

import paddle
from paddlenlp.trainer import TrainingArguments

from paddle_adagc.checks import check_installed
from paddle_adagc.lab.train.config import RunConfig, TrainConfig

_MODULES = {
    "visualdl": "visualdl",
    "tensorboard": "tensorboardX",
    "wandb": "wandb",
    "autonlp": "ray",
}
"""Module of each backend."""


def uses_amp(train: TrainConfig) -> bool:
    """Tell whether weights are in low precision with float32 masters."""
    if train.precision == "float8":
        return paddle.device.is_compiled_with_cuda()
    return train.precision != "float32"


def check_precision(train: TrainConfig) -> None:
    """Refuse low precision on a machine without a GPU.

    Raises:
        ValueError: The precision needs a GPU.
    """
    if uses_amp(train) and not paddle.device.is_compiled_with_cuda():
        raise ValueError(
            f"train.precision={train.precision}: this build of Paddle has no "
            "GPU, and its CPU kernels have no matrix product in low "
            "precision; use float32, or float8, which rounds to it"
        )


def _backends(train: TrainConfig) -> list[str]:
    """Return what the Trainer reports to; each has to be installed."""
    names = ["visualdl"] * train.visualdl + train.report_to
    for name in names:
        check_installed(_MODULES[name], "track")
    return [*dict.fromkeys(names)]


def training_arguments(config: RunConfig) -> TrainingArguments:
    """Make the Trainer's arguments.

    Raises:
        ImportError: A backend of ``train.report_to`` is not installed.
        ValueError: Low precision is asked for on a machine without a GPU.
    """
    train, parallel = config.train, config.parallel
    # A pipeline evaluates as many micro-batches at once as it trains on.
    num_eval_batches = (
        train.gradient_accumulation_steps if parallel.pp > 1 else 1
    )
    is_sharded = parallel.sharding > 1
    on_gpu = paddle.device.is_compiled_with_cuda()
    check_precision(train)
    return TrainingArguments(
        output_dir=train.output_dir,
        logging_dir=str(Path(train.output_dir) / "logs"),
        report_to=_backends(train),
        disable_tqdm=True,  # the console shows the progress
        device="gpu" if on_gpu else "cpu",
        seed=train.seed,
        do_train=True,
        do_eval=True,
        max_steps=train.max_steps,
        per_device_train_batch_size=train.batch_size,
        per_device_eval_batch_size=train.batch_size * num_eval_batches,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        learning_rate=config.schedule.learning_rate,
        max_grad_norm=0.0,
        logging_steps=train.log_every,
        evaluation_strategy="steps",
        eval_steps=train.eval_every or train.max_steps,
        save_strategy="steps" if train.save_every else "no",
        save_steps=train.save_every or train.max_steps,
        save_total_limit=train.keep_checkpoints,
        prediction_loss_only=True,
        bf16=uses_amp(train) and train.precision != "float16",
        fp16=train.precision == "float16",
        fp16_opt_level="O2" if uses_amp(train) else "O1",
        amp_master_grad=uses_amp(train),
        dataloader_drop_last=True,
        dataloader_num_workers=config.data.num_workers,
        tensor_parallel_degree=parallel.tp,
        pipeline_parallel_degree=parallel.pp,
        sequence_parallel=parallel.sequence_parallel,
        sharding="stage1" if is_sharded else "",
        sharding_parallel_degree=parallel.sharding if is_sharded else -1,
        sharding_parallel_config=(
            "split_param"
            if is_sharded and parallel.sharding_split_param
            else ""
        ),
    )
