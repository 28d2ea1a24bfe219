# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pretraining of CLIP on images with captions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.io import Dataset
from paddle.optimizer import Optimizer

from paddle_adagc.checks import check_choice
from paddle_adagc.lab.data.config import IMAGE_TEXT_KINDS
from paddle_adagc.lab.data.datasets import DataFindings, collate_batch
from paddle_adagc.lab.data.image_text import (
    PairFormat,
    build_image_text_datasets,
    inspect_pairs,
)
from paddle_adagc.lab.faults import Fault, apply_to_pairs
from paddle_adagc.lab.models.activations import pair_batch_bytes
from paddle_adagc.lab.models.shapes import (
    ModelSize,
    model_size,
    parameter_shapes,
)
from paddle_adagc.lab.models.vision_text.config import PRESETS, CLIPConfig
from paddle_adagc.lab.models.vision_text.model import CLIP
from paddle_adagc.lab.models.vision_text.zero_shot import retrieval_accuracy
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.task import PretrainTask, value_bytes

NUM_RETRIEVED = 1024
"""Most validation pairs that the retrieval accuracy compares."""


class ImageTextTask(PretrainTask):
    """CLIP on pairs, under data parallelism and sharding.

    The record's loss is the contrastive loss; a validation adds
    ``retrieval_accuracy``, see
    :func:`paddle_adagc.lab.models.vision_text.zero_shot.retrieval_accuracy`.
    """

    label_names = ("input_ids",)

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        check_choice("data.kind with clip", config.data.kind, IMAGE_TEXT_KINDS)
        _refuse_unsupported(config)
        self.model_config = CLIPConfig.from_fields(config.model, PRESETS)

    def build_datasets(self, num_train_samples: int) -> tuple[Any, Any]:
        """Build pairs of the model's image size and vocabulary."""
        model, config = self.model_config, self.config
        wanted = PairFormat(
            image_size=model.image_size,
            context_length=model.context_length,
            vocab_size=model.vocab_size,
            end_token=model.end_token,
            batch_size=config.train.batch_size,
            num_ranks=config.parallel.num_data_ranks,
        )
        return build_image_text_datasets(config.data, num_train_samples, wanted)

    def build_model(self) -> CLIP:
        """Build CLIP, whole on every rank."""
        paddle.seed(self.config.train.seed)
        return CLIP(self.model_config)

    @property
    def num_words(self) -> int:
        """Number of token ids below a caption's end token."""
        return min(self.model_config.vocab_size, self.model_config.end_token)

    def corrupt(
        self, inputs: dict[str, Tensor], fault: Fault, part: int
    ) -> dict[str, Tensor]:
        """See :func:`paddle_adagc.lab.faults.apply_to_pairs`."""
        captions = apply_to_pairs(
            fault,
            inputs["input_ids"].numpy(),
            vocab_size=self.model_config.vocab_size,
            end_token=self.model_config.end_token,
        )
        return {**inputs, "input_ids": paddle.to_tensor(captions)}

    def take_losses(self, model: CLIP) -> list[Tensor]:
        """Return the contrastive loss of this rank's pairs."""
        assert model.last_loss is not None
        return [model.last_loss]

    def after_step(self, model: nn.Layer, optimizer: Optimizer) -> None:
        """Clamp the logits' scale to CLIP's bounds."""
        model.clamp_logit_scale(optimizer)

    def model_size(self) -> ModelSize:
        """See :func:`paddle_adagc.lab.models.shapes.model_size`."""
        return model_size(self.model_config)

    def tensor_keys(self) -> list[str]:
        """Keys of both towers."""
        return [*parameter_shapes(self.model_config)]

    def model_lines(self) -> list[str]:
        """Return counts, and the widths of both towers."""
        model, size = self.model_config, self.model_size()
        return [
            f"{size.parameters:,} parameters in {size.tensors:,} tensors, "
            "whole on every rank",
            f"images of {model.image_size} pixels in {model.num_patches} "
            f"patches: {model.vision_layers} layers, width "
            f"{model.vision_width}, {model.vision_heads} heads; patch dropout "
            f"{model.patch_dropout}",
            f"captions of {model.context_length} tokens of "
            f"{model.vocab_size:,}: {model.text_layers} layers, width "
            f"{model.text_width}, {model.text_heads} heads",
        ]

    @property
    def sample_length(self) -> str:
        """Lengths of both towers' sequences."""
        model = self.model_config
        return f"{model.num_patches} patches and {model.context_length}"

    def activation_bytes(
        self, stage: int, keys: Sequence[str], *, recompute: bool = False
    ) -> int:
        """See :mod:`paddle_adagc.lab.models.activations`."""
        return pair_batch_bytes(
            self.model_config,
            self.config.train.batch_size,
            self.config.parallel.num_data_ranks,
            value_bytes(self.config.train),
            recompute=recompute,
        )

    def inspect_data(self) -> DataFindings:
        """Look for shards; build the datasets if nothing is missing."""
        findings = inspect_pairs(self.config.data)
        if not findings.missing:
            self.build_datasets(self.config.train.batch_size)
        return findings

    def validate(self, model: nn.Layer, dataset: Dataset) -> dict[str, float]:
        """Measure the retrieval accuracy, see :data:`NUM_RETRIEVED`."""
        batches = self._batches(dataset)
        return {"retrieval_accuracy": retrieval_accuracy(model, batches)}

    def _batches(
        self, dataset: Dataset
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        size = self.config.train.batch_size
        count = min(len(dataset), NUM_RETRIEVED)
        for first in range(0, count, size):
            numbers = range(first, min(first + size, count))
            batch = collate_batch([dataset[i] for i in numbers])
            yield batch["pixel_values"], batch["input_ids"]


def _refuse_unsupported(config: RunConfig) -> None:
    parallel, train = config.parallel, config.train
    for name in ("tp", "pp", "ep"):
        if getattr(parallel, name) > 1:
            raise ValueError(
                f"parallel.{name}={getattr(parallel, name)} with clip: it is "
                "whole on every rank; use dp or sharding"
            )
    if train.gradient_accumulation_steps > 1:
        raise ValueError(
            "train.gradient_accumulation_steps="
            f"{train.gradient_accumulation_steps} with clip: pairs of one "
            "forward pass are told apart, so this is not a larger batch; use "
            "more ranks or a larger train.batch_size"
        )
    if train.expert_bias_rate:
        raise ValueError(
            f"train.expert_bias_rate={train.expert_bias_rate} with clip: it "
            "has no experts; leave it out"
        )
    if train.precision == "float8":
        raise ValueError(
            "train.precision='float8' with clip: its linear maps have no FP8; "
            "use bfloat16"
        )
