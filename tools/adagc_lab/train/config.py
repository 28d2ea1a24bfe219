# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A pretraining run as typed, checked settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator
from typing_extensions import Self

from adagc_lab.data.config import DataConfig
from adagc_lab.faults import FaultConfig
from adagc_lab.section import (
    Count,
    Decay,
    Flag,
    Natural,
    NonNegative,
    PathText,
    Positive,
    Real,
    Section,
)

WITHOUT_MOMENTS = ("lion", "muon")
"""Optimizers that have not Adam's two moments of every tensor."""

WHOLE_TENSORS = ("muon", "stable_adamw", "adamw_agc", "adamw_clippy")
"""Optimizers that look at more than one element of a tensor at a time."""


class OptimizerConfig(Section):
    """Name and arguments of an optimizer; a subclass for each of them.

    The optimizer's class, in :mod:`adagc_lab.optimizers`, explains them.
    """

    name: str
    weight_decay: NonNegative = 0.1
    """Decoupled weight decay; norms and biases are exempt."""


class AdamW(OptimizerConfig):
    """Paddle's AdamW."""

    name: Literal["adamw"] = "adamw"
    beta1: Decay = 0.9
    beta2: Decay = 0.95
    epsilon: Positive = 1e-8


class LionConfig(OptimizerConfig):
    """:class:`adagc_lab.optimizers.Lion`."""

    name: Literal["lion"] = "lion"
    beta1: Decay = 0.9
    beta2: Decay = 0.99


class MuonConfig(AdamW):
    """:class:`adagc_lab.optimizers.Muon`; AdamW's for what is no matrix."""

    name: Literal["muon"] = "muon"  # type: ignore[assignment]
    momentum: Decay = 0.95
    nesterov: Flag = True
    num_iterations: Count = 5
    scaling: Literal["spectral", "rms"] = "spectral"


class SPAMConfig(AdamW):
    """:class:`adagc_lab.optimizers.SPAM`."""

    name: Literal["spam"] = "spam"  # type: ignore[assignment]
    beta2: Decay = 0.999
    epsilon: Positive = 1e-6
    threshold: Positive = 5000.0
    reset_interval: Count = 500
    warmup_steps: Natural = 150
    clip_start: Natural = 20

    @model_validator(mode="after")
    def _check_clip_start(self) -> Self:
        if self.clip_start >= self.reset_interval:
            raise ValueError(
                f"clip_start={self.clip_start} must be below reset_interval="
                f"{self.reset_interval}: nothing would be clipped"
            )
        return self


class StableAdamWConfig(AdamW):
    """:class:`adagc_lab.optimizers.StableAdamW`."""

    name: Literal["stable_adamw"] = "stable_adamw"  # type: ignore[assignment]
    beta2: Decay = 0.99
    epsilon: Positive = 1e-6


class AGCConfig(AdamW):
    """AdamW whose update AGC clips."""

    name: Literal["adamw_agc"] = "adamw_agc"  # type: ignore[assignment]
    form: Literal["original", "paper"] = "original"
    lambda_rel: Positive | None = None


class ClippyConfig(AdamW):
    """AdamW whose update Clippy clips."""

    name: Literal["adamw_clippy"] = "adamw_clippy"  # type: ignore[assignment]
    form: Literal["original", "paper"] = "original"
    lambda_rel: Positive | None = None
    lambda_abs: Positive | None = None


AnyOptimizer = (
    AdamW
    | LionConfig
    | MuonConfig
    | SPAMConfig
    | StableAdamWConfig
    | AGCConfig
    | ClippyConfig
)
OPTIMIZERS: dict[str, type[OptimizerConfig]] = {
    kind.model_fields["name"].default: kind for kind in get_args(AnyOptimizer)
}
"""Section of each optimizer by its name."""


class ScheduleConfig(Section):
    """Learning rate over the optimizer steps."""

    kind: Literal["constant", "cosine", "wsd"] = "cosine"
    """After the linear warm-up: ``"constant"``; ``"cosine"`` down to the
    minimum; ``"wsd"``: flat, then a decay to the minimum. The step after the
    last one would have the minimum."""

    learning_rate: Positive = 3e-4
    """Highest rate."""

    warmup_steps: Natural = 0
    """Steps of the linear warm-up; step 0 already has a rate above 0."""

    min_ratio: Annotated[Real, Field(ge=0, le=1)] = 0.0
    """Rate at the end as a share of the highest, for cosine and wsd."""

    decay_fraction: Annotated[Real, Field(gt=0, le=1)] = 0.1
    """Share of the steps that wsd decays over."""

    decay_shape: Literal["linear", "cosine", "sqrt"] = "linear"
    """Shape of wsd's decay; ``"sqrt"`` is 1 - sqrt(progress)."""


class TrainConfig(Section):
    """Length, batch, precision, evaluation and checkpoints."""

    output_dir: Annotated[PathText, Field(min_length=1)]
    """Directory of the run: logs, record, checkpoints."""

    max_steps: Count
    """Optimizer steps."""

    batch_size: Count = 32
    """Sequences per device and forward pass."""

    gradient_accumulation_steps: Count = 1
    """Forward passes per optimizer step and device."""

    seed: Natural = 0
    """Seed of the initialisation and of the faults; also of the data, unless
    ``data.seed`` is given."""

    expert_bias_rate: NonNegative = 0.0
    """Step by which the router's correction bias follows the load of the
    experts after every optimizer step (auxiliary-loss-free balancing, as
    ERNIE-4.5's); needs ``model.moe_correction_bias``."""

    precision: Literal["float32", "bfloat16", "float8"] = "float32"
    """``"bfloat16"`` means AMP O2 with float32 master weights and gradients; it
    needs a GPU. ``"float8"`` multiplies in block-wise FP8
    (:mod:`adagc_lab.models.fp8`) in the linear maps of
    ``model.float8_linears``, by default attention, MLPs and experts; the rest
    is bfloat16 as above, on CPUs float32."""

    log_every: Count = 10
    """Steps between two lines of the progress log. The record has every step
    in any case; its values are read from the device this often."""

    eval_every: Natural = 0
    """Steps between two evaluations; 0: only after the last step."""

    save_every: Natural = 0
    """Steps between two checkpoints; 0: none."""

    keep_checkpoints: Count = 2
    """Number of checkpoints kept; older ones are removed once a newer one is
    complete. If the newest is damaged, a run resumes from the one before."""

    visualdl: Flag = True
    """Write VisualDL logs to ``output_dir/logs``."""


class RecordConfig(Section):
    """Record of every tensor at every step; recording waits for the device."""

    tensors: Flag = False
    """Norm before and after the clip, and gamma, of every tensor."""

    moments: Flag = False
    """Norms of the optimizer's moments of every tensor, and of every step's
    update; needs ``tensors``."""

    @model_validator(mode="after")
    def _check_moments(self) -> Self:
        if self.moments and not self.tensors:
            raise ValueError("moments=True needs tensors=True")
        return self


class ParallelConfig(Section):
    """Degrees of fleet's hybrid parallelism; one process by default."""

    dp: Count = 1
    """Data-parallel ranks."""

    tp: Count = 1
    """Tensor-parallel ranks."""

    pp: Count = 1
    """Pipeline stages. The laboratory's trainer has one; PaddleFormers' recipes
    are checked with theirs."""

    sharding: Count = 1
    """Ranks that share the optimizer states (stage 1) and split the data."""

    ep: Count = 1
    """Ranks that share the experts, as ``pp`` for PaddleFormers alone."""

    sharding_split_param: Flag = True
    """Sharding splits every tensor (V2); otherwise every tensor belongs to one
    rank (V1)."""

    @model_validator(mode="after")
    def _check_degrees(self) -> Self:
        if self.tp * self.sharding % self.ep:
            raise ValueError(
                f"ep={self.ep} does not divide tp x sharding = "
                f"{self.tp * self.sharding}"
            )
        return self

    @property
    def num_processes(self) -> int:
        """Number of processes, one per device."""
        return self.dp * self.tp * self.pp * self.sharding

    @property
    def num_data_ranks(self) -> int:
        """Number of ranks that read different data."""
        return self.dp * self.sharding


class RunConfig(Section):
    """All settings of a run."""

    model: dict[str, Any]
    """``architecture``, ``decoder`` if it is left out, or ``clip``; and fields
    of :class:`~adagc_lab.models.config.DecoderConfig`, or of
    :class:`~adagc_lab.models.vision_text.CLIPConfig`. With
    ``preset`` the named preset's values come first."""

    clip: dict[str, Any]
    """``name`` of the clip (see :mod:`adagc_lab.clips`) and its
    arguments."""

    train: TrainConfig
    data: DataConfig = DataConfig()
    optimizer: Annotated[AnyOptimizer, Field(discriminator="name")] = AdamW()

    schedule: ScheduleConfig = ScheduleConfig()
    record: RecordConfig = RecordConfig()
    faults: list[FaultConfig] = Field(default_factory=list)
    """Faults to inject; none by default."""

    parallel: ParallelConfig = ParallelConfig()

    @field_validator("clip", "optimizer", mode="before")
    @classmethod
    def _check_named(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            raise ValueError(
                f"must be a map of keys to values, got {value!r}; did you "
                f"mean {info.field_name}.name={value}?"
            )
        if info.field_name == "optimizer" and isinstance(value, Mapping):
            return {"name": "adamw", **value}
        return value

    @model_validator(mode="after")
    def _check_sections_fit(self) -> Self:
        if "float8_linears" in self.model and self.train.precision != "float8":
            raise ValueError(
                f"model.float8_linears={self.model['float8_linears']} with "
                f"train.precision={self.train.precision!r}: set that to "
                "'float8'"
            )
        if self.record.moments and self.optimizer.name in WITHOUT_MOMENTS:
            raise ValueError(
                f"record.moments with optimizer.name={self.optimizer.name!r}: "
                "only Adam has these moments; set it to false"
            )
        if self.parallel.num_processes > 1:
            self._check_parallel()
        return self

    def _check_parallel(self) -> None:
        if self.record.tensors:
            raise ValueError(
                "record.tensors with more than one process: no rank sees every "
                "tensor; set record.tensors and record.moments to false"
            )
        if self.faults:
            raise ValueError(
                f"{len(self.faults)} faults with more than one process: they "
                "are injected into whole tensors and batches; use one process"
            )
        splits_tensors = (
            self.parallel.sharding > 1 and self.parallel.sharding_split_param
        )
        if self.optimizer.name in WHOLE_TENSORS and self.parallel.tp > 1:
            raise ValueError(
                f"optimizer.name={self.optimizer.name!r} needs whole tensors, "
                f"which parallel.tp={self.parallel.tp} splits: use dp"
            )
        if self.optimizer.name in WHOLE_TENSORS and splits_tensors:
            raise ValueError(
                f"optimizer.name={self.optimizer.name!r} needs whole tensors, "
                f"which parallel.sharding={self.parallel.sharding} splits: "
                "set parallel.sharding_split_param to false"
            )

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step, over all ranks."""
        return (
            self.train.batch_size
            * self.train.gradient_accumulation_steps
            * self.parallel.num_data_ranks
        )

    @property
    def num_train_samples(self) -> int:
        """Samples of the whole run."""
        return self.train.max_steps * self.global_batch

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without some defaults, as they make a run's digest."""
        values = self.model_dump()
        # Keys that digests were made with.
        values["data"] |= {"shards": None, "tokenizer": None}
        values["data"]["shuffle_size"] = 1000
        for fault in values["faults"]:  # keys that digests were made with
            fault |= dict.fromkeys(("fraction", "stop", "token"))
        if self.parallel.num_processes == 1:
            del values["parallel"]
        return values


def with_output_dir(
    config: RunConfig, directory: str | os.PathLike[str]
) -> RunConfig:
    """Return a copy of a run's config for another directory."""
    train = config.train.model_copy(update={"output_dir": str(directory)})
    return config.model_copy(update={"train": train})
