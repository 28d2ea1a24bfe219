# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The kinds of models that a run can name, each with its data: tasks."""

from __future__ import annotations

import abc
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.io import Dataset
from paddle.optimizer import Optimizer

from adagc_lab.data.config import IMAGE_TEXT_KINDS, TEXT_KINDS
from adagc_lab.data.images import PairFormat, build_image_text_datasets
from adagc_lab.data.loading import collate_batch
from adagc_lab.data.text import (
    DataFindings,
    TokenDataset,
    build_datasets,
    inspect_tokens,
)
from adagc_lab.faults import Fault, apply_to_batch
from adagc_lab.models import shapes
from adagc_lab.models.config import FLOAT8_LINEARS, DecoderConfig
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.models.families import decoder_config
from adagc_lab.models.moe import adjust_correction_biases, expert_balance
from adagc_lab.models.vision_text import (
    CLIP,
    PRESETS,
    CLIPConfig,
    retrieval_accuracy,
)
from adagc_lab.train.config import RunConfig
from paddle_adagc.checks import check_choice

_SHARED_WIDTHS = (
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "moe_intermediate_size",
)
NUM_RETRIEVED = 1024
"""Most validation pairs that the retrieval accuracy compares."""


class PretrainTask(abc.ABC):
    """A model, its data, and what differs between kinds of models.

    It refuses settings that this kind of model does not have.
    """

    label_names: tuple[str, ...] = ("labels",)
    """Entries of a batch that PaddleNLP's Trainer needs to evaluate a loss."""

    num_tokens: int | None = None  # of a sample, for rates; None: count samples
    model_config: Any
    """What the model is built from, and its sizes are counted from."""

    def __init__(self, config: RunConfig) -> None:
        self.data, self.train = config.data, config.train
        self.parallel, self.faults = config.parallel, config.faults
        self.model_config = self.read_model(config.model)

    @abc.abstractmethod
    def read_model(self, model: Mapping[str, Any]) -> Any:
        """Return what the model is built from; refuse other sections' misfits.

        ``model`` is that section of the config.
        """

    @abc.abstractmethod
    def build_datasets(self, num_train_samples: int) -> tuple[Any, Any]:
        """Build the training and the validation dataset, in training's order.

        A sample is a dictionary of arrays: the model's arguments by name. The
        training dataset has a ``fingerprint`` for the run's record.
        """

    @abc.abstractmethod
    def inspect_data(self, num_train_samples: int) -> DataFindings:
        """Look for the data on this machine; refuse broken data."""

    @abc.abstractmethod
    def build_model(self) -> nn.Layer:
        """Build the model; its initial weights are the same in every layout."""

    def corrupt(
        self, inputs: dict[str, Tensor], fault: Fault, part: int
    ) -> dict[str, Tensor]:
        """Return a copy of the batch, micro-batch ``part``, with a fault."""
        raise NotImplementedError(fault.kind)

    @abc.abstractmethod
    def after_step(self, model: nn.Layer, optimizer: Optimizer) -> None:
        """Change the model after a step of its innermost optimizer."""

    def step_measures(self, model: nn.Layer) -> dict[str, float]:
        """Measures of the step that just ended; may wait for the device."""
        return {}

    def validate(self, model: nn.Layer, dataset: Dataset) -> dict[str, float]:
        """Return validation measures besides the loss, for the record."""
        return {}

    def model_size(self) -> shapes.ModelSize:
        return shapes.model_size(self.model_config)

    def tensor_shapes(self) -> dict[str, shapes.Shape]:
        """Shapes of the whole model's tensors by the keys of a bound clip."""
        return shapes.parameter_shapes(self.model_config)

    def check_layout(self) -> None:
        """Refuse a layout that cannot share out the model or its batches."""
        return


class LanguageTask(PretrainTask):
    """A decoder on token windows, under any layout."""

    def read_model(self, model: Mapping[str, Any]) -> DecoderConfig:
        check_choice("data.kind with a decoder", self.data.kind, TEXT_KINDS)
        if self.train.precision == "float8":  # all that can be, by default
            model = {"float8_linears": FLOAT8_LINEARS, **model}
        config = decoder_config(model, tensor_parallel_degree=self.parallel.tp)
        kinds = {"attention", "experts" if config.moe_num_experts else "mlp"}
        chosen = config.float8_linears
        if self.train.precision == "float8" and not kinds & {*chosen}:
            raise ValueError(
                f"model.float8_linears={chosen}: this model has none of these "
                f"layers, so nothing would be in FP8; it has {sorted(kinds)}"
            )
        if self.parallel.tp > 1 and kinds & {*chosen} - {"experts"}:
            raise ValueError(
                f"train.precision='float8' with parallel.tp={self.parallel.tp}"
                ": FP8 layers are not split; use bfloat16, or parallel.dp"
            )
        if self.train.expert_bias_rate and not config.moe_correction_bias:
            raise ValueError(
                f"train.expert_bias_rate={self.train.expert_bias_rate} moves "
                "nothing: set model.moe_correction_bias, or leave it out"
            )
        self.num_tokens = self.data.seq_length
        return config

    def build_datasets(
        self, num_train_samples: int
    ) -> tuple[TokenDataset, TokenDataset]:
        """Build token windows that the model has tokens and positions for."""
        datasets = build_datasets(self.data, num_train_samples)
        for dataset in datasets:
            if dataset.vocab_size > self.model_config.vocab_size:
                raise ValueError(
                    f"model.vocab_size={self.model_config.vocab_size}: the "
                    f"data has token {dataset.vocab_size - 1}; raise it"
                )
        return datasets

    def build_model(self) -> DecoderForCausalLM:
        paddle.seed(self.train.seed)
        model = DecoderForCausalLM(self.model_config)
        if self.parallel.num_processes > 1:
            shapes.initialize_weights(model, self.model_config, self.train.seed)
        return model

    def corrupt(
        self, inputs: dict[str, Tensor], fault: Fault, part: int
    ) -> dict[str, Tensor]:
        input_ids, labels = apply_to_batch(
            fault,
            inputs["input_ids"].numpy(),
            inputs["labels"].numpy(),
            vocab_size=self.model_config.vocab_size,
            part=part,
        )
        ids = paddle.to_tensor(input_ids)
        return {"input_ids": ids, "labels": paddle.to_tensor(labels)}

    def after_step(self, model: nn.Layer, optimizer: Optimizer) -> None:
        """Balance the load of the experts by the routers' biases."""
        if self.train.expert_bias_rate:
            adjust_correction_biases(model, self.train.expert_bias_rate)

    def step_measures(self, model: nn.Layer) -> dict[str, float]:
        """Balance of the experts, where biases follow it at every step."""
        follows = self.train.expert_bias_rate > 0
        return expert_balance(model) if follows else {}

    def check_layout(self) -> None:
        """Check degrees against widths, and the sequence length."""
        model, parallel = self.model_config, self.parallel
        for name, degree, shared in (
            ("tp", parallel.tp, _SHARED_WIDTHS),
            ("ep", parallel.ep, ("moe_num_experts",)),
        ):
            for width in shared:
                if (size := getattr(model, width)) % degree:
                    raise ValueError(
                        f"model.{width}={size} is not a multiple of the "
                        f"{degree} ranks of parallel.{name} that share it"
                    )
        length, longest = self.data.seq_length, model.max_position_embeddings
        if length > longest:
            raise ValueError(
                f"data.seq_length={length} is above "
                f"model.max_position_embeddings={longest}: lower it, or raise "
                "that"
            )

    def inspect_data(self, num_train_samples: int) -> DataFindings:
        return inspect_tokens(
            self.data, num_train_samples, self.model_config.vocab_size
        )


_NOT_WITH_CLIP = {
    "parallel.tp": (1, "it is whole on every rank; use dp or sharding"),
    "train.gradient_accumulation_steps": (
        1,
        "pairs of one forward pass are told apart, so this is not a larger "
        "batch; use more ranks or a larger train.batch_size",
    ),
    "train.expert_bias_rate": (0, "it has no experts; leave it out"),
}
"""Setting -> largest value, and why it can be no larger."""


class ImageTextTask(PretrainTask):
    """CLIP on pairs, under data parallelism and sharding.

    The record's loss is the contrastive loss of a rank's pairs; a validation
    adds ``retrieval_accuracy``, of :data:`NUM_RETRIEVED` pairs at most.
    """

    label_names = ("input_ids",)

    def read_model(self, model: Mapping[str, Any]) -> CLIPConfig:
        check_choice("data.kind with clip", self.data.kind, IMAGE_TEXT_KINDS)
        for key, (largest, reason) in _NOT_WITH_CLIP.items():
            value = operator.attrgetter(key)(self)
            if value > largest:
                raise ValueError(f"{key}={value} with clip: {reason}")
        if self.train.precision == "float8":
            raise ValueError(
                "train.precision='float8' with clip: its linear maps have no "
                "FP8; use bfloat16"
            )
        for fault in self.faults:
            if fault.target == "batch" and fault.kind != "repeated_batch":
                raise ValueError(
                    f"faults of kind {fault.kind} with clip: they corrupt "
                    "tokens; use repeated_batch, or a fault of gradients"
                )
        config: CLIPConfig = CLIPConfig.from_fields(model, PRESETS)
        return config

    def build_datasets(self, num_train_samples: int) -> tuple[Any, Any]:
        model = self.model_config
        wanted = PairFormat(
            image_size=model.image_size,
            context_length=model.context_length,
            end_token=model.end_token,
        )
        return build_image_text_datasets(self.data, num_train_samples, wanted)

    def build_model(self) -> CLIP:
        paddle.seed(self.train.seed)
        return CLIP(self.model_config)

    def after_step(self, model: nn.Layer, optimizer: Optimizer) -> None:
        """Clamp the logits' scale to CLIP's bounds."""
        model.clamp_logit_scale(optimizer)

    def inspect_data(self, num_train_samples: int) -> DataFindings:
        self.build_datasets(self.train.batch_size)
        return DataFindings([], [])

    def validate(self, model: nn.Layer, dataset: Dataset) -> dict[str, float]:
        size = self.train.batch_size
        samples = range(min(len(dataset), NUM_RETRIEVED))

        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for first in samples[::size]:
                numbers = samples[first : first + size]
                batch = collate_batch([dataset[i] for i in numbers])
                yield batch["pixel_values"], batch["input_ids"]

        return {"retrieval_accuracy": retrieval_accuracy(model, batches())}


ARCHITECTURES: dict[str, type[PretrainTask]] = {
    "decoder": LanguageTask,
    "clip": ImageTextTask,
}


def make_task(config: RunConfig) -> PretrainTask:
    """Make the task of ``model.architecture``, by default a decoder's."""
    name = check_choice(
        "model.architecture",
        config.model.get("architecture", "decoder"),
        ARCHITECTURES,
    )
    return ARCHITECTURES[name](config)
