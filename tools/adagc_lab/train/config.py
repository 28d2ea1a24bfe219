# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A pretraining run as typed, checked settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator
from typing_extensions import Self

from adagc_lab.data.config import TEXT_KINDS, DataConfig
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
    Share,
    section,
)

_KINDS: dict[str, Any] = {
    "weight_decay": NonNegative,
    "beta1": Decay,
    "beta2": Decay,
    "epsilon": Positive,
    "momentum": Decay,
    "nesterov": Flag,
    "num_iterations": Count,
    "scaling": Literal["spectral", "rms"],
    "threshold": Positive,
    "reset_interval": Count,
    "warmup_steps": Natural,
    "clip_start": Natural,
    "form": Literal["original", "paper"],
    "lambda_rel": Positive | None,
    "lambda_abs": Positive | None,
}
ADAM = {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "adamw": ADAM,
    "lion": {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99},
    "muon": {
        **ADAM,
        "momentum": 0.95,
        "nesterov": True,
        "num_iterations": 5,
        "scaling": "spectral",
    },
    "spam": {
        **ADAM,
        "beta2": 0.999,
        "epsilon": 1e-6,
        "threshold": 5000.0,
        "reset_interval": 500,
        "warmup_steps": 150,
        "clip_start": 20,
    },
    "stable_adamw": {**ADAM, "beta2": 0.99, "epsilon": 1e-6},
    "adamw_agc": {**ADAM, "form": "original", "lambda_rel": None},
    "adamw_clippy": {
        **ADAM,
        "form": "original",
        "lambda_rel": None,
        "lambda_abs": None,
    },
}
"""Arguments of each optimizer, which its class explains (in
:mod:`adagc_lab.optimizers`), with the values of runs. Paddle is not needed to
read them."""

WITHOUT_MOMENTS = ("lion", "muon")
"""Optimizers that have not Adam's two moments of every tensor."""

WHOLE_TENSORS = (
    "muon",
    "stable_adamw",
    "adamw_agc",
    "adamw_clippy",
)
"""Optimizers that look at more than one element of a tensor at a time."""


@section
class OptimizerConfig:
    """Name and arguments of an optimizer; a subclass for each of them."""

    name: str
    weight_decay: NonNegative = 0.1
    """Decoupled weight decay; norms and biases are exempt."""

    @model_validator(mode="after")
    def _check_clip_start(self) -> Self:
        values = dataclasses.asdict(self)
        start, interval = values.get("clip_start"), values.get("reset_interval")
        if start is not None and start >= interval:
            raise ValueError(
                f"clip_start={start} must be below reset_interval={interval}: "
                "nothing would be clipped"
            )
        return self


def _optimizer_section(name: str) -> type[OptimizerConfig]:
    defaults, literal = _DEFAULTS[name], cast("Any", Literal)
    hints = {"name": literal[name], **{key: _KINDS[key] for key in defaults}}
    fields = {"name": name, **defaults, "__annotations__": hints}
    fields["__module__"] = __name__
    return section(type(f"{name}_config", (OptimizerConfig,), fields))


OPTIMIZERS = {name: _optimizer_section(name) for name in _DEFAULTS}
"""Section of each optimizer by its name."""

if TYPE_CHECKING:
    AnyOptimizerConfig = OptimizerConfig
else:
    AnyOptimizerConfig = Annotated[
        Union[tuple(OPTIMIZERS.values())],  # noqa: UP007
        Field(discriminator="name"),
    ]


@section
class ScheduleConfig:
    """Learning rate over the optimizer steps."""

    kind: Literal["constant", "cosine", "wsd"] = "cosine"
    """After the linear warm-up: ``"constant"``; ``"cosine"`` down to the
    minimum at the last step; ``"wsd"``: flat, then a decay to the minimum."""

    learning_rate: Positive = 3e-4
    """Highest rate."""

    warmup_steps: Natural = 0
    """Steps of the linear warm-up; step 0 already has a rate above 0."""

    min_ratio: Annotated[Real, Field(ge=0, le=1)] = 0.0
    """Rate at the end as a share of the highest, for cosine and wsd."""

    decay_fraction: Share = 0.1
    """Share of the steps that wsd decays over."""

    decay_shape: Literal["linear", "cosine", "sqrt"] = "linear"
    """Shape of wsd's decay; ``"sqrt"`` is 1 - sqrt(progress)."""


@section
class TrainConfig:
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


@section
class RecordConfig:
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


@section
class ParallelConfig:
    """Degrees of fleet's hybrid parallelism; one process by default."""

    dp: Count = 1
    """Data-parallel ranks."""

    tp: Count = 1
    """Tensor-parallel ranks."""

    pp: Count = 1
    """Pipeline stages; micro-batches are
    ``train.gradient_accumulation_steps``."""

    sharding: Count = 1
    """Ranks that share the optimizer states (stage 1) and split the data."""

    ep: Count = 1
    """Ranks that share the experts: a multiple of ``tp`` that divides
    ``tp`` times ``sharding``."""

    sequence_parallel: Flag = False
    """Split activations along the sequence over the tensor-parallel ranks."""

    sharding_split_param: Flag = True
    """Sharding splits every tensor (V2); otherwise every tensor belongs to one
    rank (V1)."""

    @model_validator(mode="after")
    def _check_degrees(self) -> Self:
        if self.sequence_parallel and self.tp == 1:
            raise ValueError("sequence_parallel=True needs tp > 1")
        if self.ep == 1:
            return self
        if self.dp > 1:
            raise ValueError(
                f"ep={self.ep} with dp={self.dp}: use sharding instead of dp"
            )
        if self.ep % self.tp:
            raise ValueError(
                f"ep={self.ep} with tp={self.tp}: the tensor-parallel ranks "
                "are among those that share the experts, use a multiple of tp"
            )
        if self.tp * self.sharding % self.ep or not self.sharding_split_param:
            raise ValueError(
                f"ep={self.ep} with tp={self.tp}, sharding={self.sharding} and "
                f"sharding_split_param={self.sharding_split_param}: experts "
                "need sharding V2, and ep a divisor of tp x sharding"
            )
        return self

    @property
    def moe_sharding(self) -> int:
        """Number of ranks that hold the same experts."""
        return self.tp * self.sharding // self.ep

    @property
    def num_processes(self) -> int:
        """Number of processes, one per device."""
        return self.dp * self.tp * self.pp * self.sharding

    @property
    def num_data_ranks(self) -> int:
        """Number of ranks that read different data."""
        return self.dp * self.sharding


@section
class RunConfig:
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
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: AnyOptimizerConfig = dataclasses.field(
        default_factory=OPTIMIZERS["adamw"]
    )

    schedule: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    record: RecordConfig = dataclasses.field(default_factory=RecordConfig)
    faults: list[FaultConfig] = dataclasses.field(default_factory=list)
    """Faults to inject; none by default."""

    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)

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
        if self.parallel.ep > 1 and self.train.save_every:
            raise ValueError(
                f"parallel.ep={self.parallel.ep} with train.save_every="
                f"{self.train.save_every}: checkpoints hold the first rank's "
                "experts only; set it to 0"
            )
        splits_tensors = (
            self.parallel.sharding > 1 and self.parallel.sharding_split_param
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
    def sample_name(self) -> str:
        """Unit of :attr:`global_batch`."""
        return "sequences" if self.data.kind in TEXT_KINDS else "pairs"

    @property
    def num_train_samples(self) -> int:
        """Samples of the whole run."""
        return self.train.max_steps * self.global_batch

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without some defaults, as they make a run's digest."""
        values = dataclasses.asdict(self)
        # Keys that digests were made with.
        values["data"] |= {"shards": None, "tokenizer": None}
        values["data"]["shuffle_size"] = 1000
        for fault in values["faults"]:  # keys that digests were made with
            fault |= dict.fromkeys(("fraction", "stop", "token"))
        if self.parallel.num_processes == 1:
            del values["parallel"]
        return values
