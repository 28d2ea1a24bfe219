# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pretraining of the decoder on next-token prediction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.optimizer import Optimizer

from paddle_adagc.checks import check_choice
from paddle_adagc.lab.data.config import TEXT_KINDS
from paddle_adagc.lab.data.datasets import (
    DataFindings,
    TokenDataset,
    build_datasets,
    inspect_tokens,
)
from paddle_adagc.lab.faults import Fault, apply_to_batch
from paddle_adagc.lab.models.activations import stage_bytes
from paddle_adagc.lab.models.config import FLOAT8_LINEARS
from paddle_adagc.lab.models.decoder import (
    DecoderForCausalLM,
    adjust_correction_biases,
    expert_balance,
)
from paddle_adagc.lab.models.families import decoder_config
from paddle_adagc.lab.models.fp8.linear import backend
from paddle_adagc.lab.models.parallel import check_degrees
from paddle_adagc.lab.models.pipeline import (
    DecoderForCausalLMPipe,
    stage_bounds,
)
from paddle_adagc.lab.models.rank_weights import (
    initialize_weights,
    parameters_by_key,
    quantized_parameters,
)
from paddle_adagc.lab.models.shapes import (
    Degrees,
    ModelSize,
    ShardSize,
    model_size,
    parameter_shapes,
    shard_sizes,
)
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.processes import gather_names
from paddle_adagc.lab.train.task import PretrainTask, value_bytes

_LAYER = re.compile(r"\.layers\.(\d+)\.")


class LanguageTask(PretrainTask):
    """A decoder on token windows, under any layout."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        check_choice("data.kind with a decoder", config.data.kind, TEXT_KINDS)
        self.model_config = decoder_config(
            _model_fields(config),
            tensor_parallel_degree=config.parallel.tp,
            sequence_parallel=config.parallel.sequence_parallel,
        )

    def build_datasets(
        self, num_train_samples: int
    ) -> tuple[TokenDataset, TokenDataset]:
        """Build token windows that the model has tokens and positions for."""
        length, config = self.config.data.seq_length, self.model_config
        if length > config.max_position_embeddings:
            raise ValueError(
                f"data.seq_length={length} is above "
                "model.max_position_embeddings="
                f"{config.max_position_embeddings}: lower it, or raise that"
            )
        datasets = build_datasets(self.config.data, num_train_samples)
        for dataset in datasets:
            if dataset.vocab_size > self.model_config.vocab_size:
                raise ValueError(
                    f"model.vocab_size={self.model_config.vocab_size}: the "
                    f"data has token {dataset.vocab_size - 1}; raise it"
                )
        return datasets

    def build_model(self) -> DecoderForCausalLM | DecoderForCausalLMPipe:
        """Build the decoder of the run's layout."""
        paddle.seed(self.config.train.seed)
        parallel = self.config.parallel
        if parallel.num_processes == 1:
            return DecoderForCausalLM(self.model_config)
        kind = DecoderForCausalLMPipe if parallel.pp > 1 else DecoderForCausalLM
        model = kind(self.model_config)
        initialize_weights(model, self.model_config, self.config.train.seed)
        return model

    @property
    def num_words(self) -> int:
        """Size of the vocabulary."""
        return self.model_config.vocab_size

    def corrupt(
        self, inputs: dict[str, Tensor], fault: Fault, part: int
    ) -> dict[str, Tensor]:
        """See :func:`paddle_adagc.lab.faults.apply_to_batch`."""
        arrays = apply_to_batch(
            fault,
            inputs["input_ids"].numpy(),
            inputs["labels"].numpy(),
            vocab_size=self.model_config.vocab_size,
            part=part,
        )
        return {
            key: paddle.to_tensor(array)
            for key, array in zip(("input_ids", "labels"), arrays, strict=True)
        }

    def take_losses(self, model: Any) -> list[Tensor]:
        """Return the language-model losses without the routers' losses."""
        if isinstance(model, DecoderForCausalLMPipe):
            losses = model.take_losses()
        else:
            losses = [model.last_losses]
        return [parts["lm_loss"] for parts in losses]

    def after_step(self, model: nn.Layer, optimizer: Optimizer) -> None:
        """Balance the load of the experts by the routers' biases."""
        if self.config.train.expert_bias_rate:
            adjust_correction_biases(model, self.config.train.expert_bias_rate)

    def step_measures(self, model: nn.Layer) -> dict[str, float]:
        """Balance of the experts, where biases follow it at every step."""
        return (
            expert_balance(model) if self.config.train.expert_bias_rate else {}
        )

    def model_size(self) -> ModelSize:
        """See :func:`paddle_adagc.lab.models.shapes.model_size`."""
        return model_size(self.model_config)

    def tensor_keys(self) -> list[str]:
        """Keys of a decoder in any layout."""
        return [*parameter_shapes(self.model_config)]

    def model_lines(self) -> list[str]:
        """Return counts, widths and experts."""
        model, size = self.model_config, self.model_size()
        lines = [
            f"{size.parameters:,} parameters in {size.tensors:,} tensors, "
            f"{size.active_parameters:,} active per token",
            f"{model.num_hidden_layers} layers, hidden {model.hidden_size}, "
            f"{model.num_attention_heads} heads with "
            f"{model.num_key_value_heads} for keys and values, vocabulary "
            f"{model.vocab_size:,}",
        ]
        if model.moe_num_experts:
            lines.append(
                f"{model.moe_num_experts} experts of width "
                f"{model.moe_intermediate_size}, {model.moe_top_k} per token, "
                f"{model.moe_num_shared_experts} shared"
            )
        return lines

    @property
    def sample_length(self) -> str:
        """Length of a token window."""
        return f"{self.config.data.seq_length:,}"

    @property
    def num_tokens(self) -> int:
        """Length of a token window."""
        return self.config.data.seq_length

    def activation_bytes(
        self, stage: int, keys: Sequence[str], *, recompute: bool = False
    ) -> int:
        """See :mod:`paddle_adagc.lab.models.activations`."""
        train, num_stages = self.config.train, self.config.parallel.pp
        layers = {int(m[1]) for key in keys if (m := _LAYER.search(key))}
        per_token = stage_bytes(
            self.model_config,
            sorted(layers),
            value_bytes(train),
            num_held=min(num_stages - stage, train.gradient_accumulation_steps),
            has_head=stage == num_stages - 1,
            recompute=recompute,
        )
        return train.batch_size * self.config.data.seq_length * per_token

    @property
    def is_mean_of_samples(self) -> bool:
        """Not with experts, which are balanced over a micro-batch."""
        return not self.model_config.moe_num_experts

    def check_layout(self) -> None:
        """Check degrees against experts and layers, and the sequence length."""
        model, config = self.model_config, self.config
        parallel, length = config.parallel, config.data.seq_length
        check_degrees(model, parallel.tp, parallel.ep)
        stage_bounds(model.num_hidden_layers, parallel.pp)
        if parallel.ep > 1 and not model.moe_num_experts:
            raise ValueError(
                f"parallel.ep={parallel.ep}: the model has no experts"
            )
        if length > model.max_position_embeddings:
            raise ValueError(
                f"data.seq_length={length} is more than "
                f"model.max_position_embeddings={model.max_position_embeddings}"
            )
        if parallel.sequence_parallel and length % parallel.tp:
            raise ValueError(
                f"data.seq_length={length} is not a multiple of the "
                f"{parallel.tp} tensor-parallel ranks that share it "
                "(parallel.sequence_parallel)"
            )

    def shard_sizes(self) -> list[ShardSize]:
        """See :func:`paddle_adagc.lab.models.shapes.shard_sizes`."""
        parallel = self.config.parallel
        degrees = Degrees(parallel.tp, parallel.pp, parallel.ep)
        return shard_sizes(self.model_config, degrees)

    def inspect_data(self) -> DataFindings:
        """See :func:`paddle_adagc.lab.data.datasets.inspect_tokens`."""
        num_samples = self.config.train.max_steps * self.config.global_batch
        return inspect_tokens(
            self.config.data, num_samples, self.model_config.vocab_size
        )

    def facts(self, model: nn.Layer) -> dict[str, Any]:
        """Name the tensors multiplied in FP8, and the kind of products."""
        if self.config.train.precision != "float8":
            return {}
        names = gather_names(parameters_by_key(model))
        quantized = gather_names(quantized_parameters(model))
        float8 = {
            "backend": backend(),
            "quantized": quantized,
            "not_quantized": [name for name in names if name not in quantized],
        }
        return {"float8": float8}


def _model_fields(config: RunConfig) -> dict[str, Any]:
    """Return the ``model`` section; by default every possible linear is FP8."""
    if config.train.precision != "float8":
        return config.model
    return {"float8_linears": FLOAT8_LINEARS, **config.model}
