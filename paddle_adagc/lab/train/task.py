# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The interface of one kind of model and its data to pretraining."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from paddle import Tensor, nn
from paddle.io import Dataset
from paddle.optimizer import Optimizer

from paddle_adagc.lab.data.datasets import DataFindings
from paddle_adagc.lab.faults import Fault
from paddle_adagc.lab.models.shapes import ModelSize, ShardSize
from paddle_adagc.lab.train.config import RunConfig, TrainConfig


class PretrainTask(abc.ABC):
    """A model, its data, and what differs between kinds of models.

    The rest of a run (optimizer, clip, schedule, record, checkpoints, faults
    of gradients and activations) is the same for all of them.

    Args:
        config: The run.

    Raises:
        ValueError: A setting that this kind of model does not support, or an
            unknown option of the model.

    Attributes:
        label_names: Entries of a batch that PaddleNLP's Trainer needs to
            evaluate a loss.
    """

    label_names: tuple[str, ...] = ("labels",)

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @abc.abstractmethod
    def build_datasets(self, num_train_samples: int) -> tuple[Any, Any]:
        """Build the training and the validation dataset.

        Both are map-style and in the order of training. A sample is a
        dictionary of arrays: the model's arguments by name, each of one shape.
        The training dataset has a ``fingerprint`` for the run's record.

        Raises:
            ValueError: The data does not fit the model.
        """

    @abc.abstractmethod
    def build_model(self) -> nn.Layer:
        """Build the model; its initial weights are the same in every layout."""

    @property
    @abc.abstractmethod
    def num_words(self) -> int:
        """Number of token ids, from 0, that a fault may put into a batch."""

    @abc.abstractmethod
    def corrupt(
        self, inputs: dict[str, Tensor], fault: Fault, part: int
    ) -> dict[str, Tensor]:
        """Return the batch with a fault in it.

        Args:
            inputs: The batch, tensors by name; not changed.
            fault: A fault whose target is the batch.
            part: Index of the micro-batch in its step.
        """

    @abc.abstractmethod
    def take_losses(self, model: Any) -> list[Tensor]:
        """Return the losses to record since the last call.

        There is one for each micro-batch. A pipeline computes those of all
        micro-batches at once, on its last stage.
        """

    @abc.abstractmethod
    def after_step(self, model: nn.Layer, optimizer: Optimizer) -> None:
        """Change the model after an optimizer step.

        Args:
            model: The model.
            optimizer: Its innermost optimizer, without fleet's wrappers.
        """

    def step_measures(self, model: nn.Layer) -> dict[str, float]:
        """Measures of the step that just ended; may wait for the device."""
        return {}

    @abc.abstractmethod
    def model_size(self) -> ModelSize:
        """Count the whole model's parameters and tensors."""

    @abc.abstractmethod
    def tensor_keys(self) -> list[str]:
        """Keys of the whole model's tensors, as a bound clip knows them."""

    @abc.abstractmethod
    def model_lines(self) -> list[str]:
        """Describe the model's size and shape, a line each."""

    @property
    @abc.abstractmethod
    def sample_length(self) -> str:
        """Length of a sample in tokens, for people."""

    @property
    def num_tokens(self) -> int | None:
        """Tokens of a sample, for rates; None: count samples."""
        return None

    @abc.abstractmethod
    def activation_bytes(
        self, stage: int, keys: Sequence[str], *, recompute: bool = False
    ) -> int:
        """Return the bytes that a rank keeps for the backward pass, at most.

        Args:
            stage: Pipeline stage, from 0.
            keys: Structured names of the rank's tensors.
            recompute: Every layer keeps only its input.
        """

    @property
    def is_mean_of_samples(self) -> bool:
        """Whether the loss of a batch is the mean over any parts of it."""
        return True

    def check_layout(self) -> None:
        """Refuse a layout that cannot share out the model or its batches.

        Raises:
            ValueError: The layout does not fit; the message names the sizes.
        """
        return

    def shard_sizes(self) -> list[ShardSize]:
        """Count what the ranks hold; empty for a model whole on every rank."""
        return []

    @abc.abstractmethod
    def inspect_data(self) -> DataFindings:
        """Look for the data on this machine.

        Raises:
            ValueError: The data is broken or does not fit the model.
        """

    def validate(self, model: nn.Layer, dataset: Dataset) -> dict[str, float]:
        """Return validation measures besides the loss, for the record."""
        return {}

    def facts(self, model: nn.Layer) -> dict[str, Any]:
        """Return entries for ``run.json``; every process calls this."""
        return {}


def value_bytes(train: TrainConfig) -> int:
    """Return the bytes of an activation's value."""
    return 4 if train.precision == "float32" else 2
