# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""A pretraining run as typed, checked settings."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from paddle_adagc.checks import (
    check_choice,
    check_integer,
    check_positive,
    check_real,
)
from paddle_adagc.lab.data.config import TEXT_KINDS, DataConfig
from paddle_adagc.lab.faults.config import FaultConfig
from paddle_adagc.lab.train.optimizer_config import (
    NEED_WHOLE_TENSORS,
    AdamWConfig,
    OptimizerConfig,
)

PRECISIONS = ("float32", "bfloat16", "float16", "float8")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate over the optimizer steps."""

    kind: Literal["constant", "cosine", "wsd"] = "cosine"
    """After the linear warm-up: ``"constant"``; ``"cosine"`` down to the
    minimum at the last step; ``"wsd"``: flat, then a decay to the minimum."""

    learning_rate: float = 3e-4
    """Highest rate."""

    warmup_steps: int = 0
    """Steps of the linear warm-up; step 0 already has a rate above 0."""

    min_ratio: float = 0.0
    """Rate at the end as a share of the highest, for cosine and wsd."""

    decay_fraction: float = 0.1
    """Share of the steps that wsd decays over."""

    decay_shape: Literal["linear", "cosine", "sqrt"] = "linear"
    """Shape of wsd's decay; ``"sqrt"`` is 1 - sqrt(progress)."""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("constant", "cosine", "wsd"))
        check_choice(
            "decay_shape", self.decay_shape, ("linear", "cosine", "sqrt")
        )
        check_positive("learning_rate", self.learning_rate)
        check_integer("warmup_steps", self.warmup_steps, 0)
        if not 0 <= check_real("min_ratio", self.min_ratio) <= 1:
            raise ValueError(f"min_ratio={self.min_ratio}: not in [0, 1]")
        if not 0 < check_real("decay_fraction", self.decay_fraction) <= 1:
            raise ValueError(
                f"decay_fraction={self.decay_fraction}: not in (0, 1]"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length, batch, precision, evaluation and checkpoints."""

    output_dir: str
    """Directory of the run: logs, record, checkpoints."""

    max_steps: int
    """Optimizer steps."""

    batch_size: int = 32
    """Sequences per device and forward pass."""

    gradient_accumulation_steps: int = 1
    """Forward passes per optimizer step."""

    seed: int = 0
    """Seed of the initialisation and of the faults; also of the data, unless
    ``data.seed`` is given."""

    expert_bias_rate: float = 0.0
    """Step by which the router's correction bias follows the load of the
    experts after every optimizer step (auxiliary-loss-free balancing, as
    ERNIE-4.5's); needs ``model.moe_correction_bias``."""

    precision: Literal["float32", "bfloat16", "float16", "float8"] = "float32"
    """``"bfloat16"`` and ``"float16"`` mean AMP O2 with float32 master weights
    and gradients; they need a GPU. ``"float8"`` multiplies in block-wise FP8
    (:mod:`paddle_adagc.lab.models.fp8.linear`) in the linear maps of
    ``model.float8_linears``, by default attention, MLPs and experts; the rest
    is bfloat16 as above, on CPUs float32."""

    log_every: int = 10
    """Steps between two lines of the progress log. The record has every step
    in any case; its values are read from the device this often."""

    eval_every: int = 0
    """Steps between two evaluations; 0: only after the last step."""

    save_every: int = 0
    """Steps between two checkpoints; 0: none."""

    keep_checkpoints: int = 1
    """Number of checkpoints kept; older ones are removed once a newer one is
    complete."""

    visualdl: bool = True
    """Write VisualDL logs to ``output_dir/visualdl``."""

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, PRECISIONS)
        for name, minimum in (
            ("max_steps", 1),
            ("batch_size", 1),
            ("gradient_accumulation_steps", 1),
            ("seed", 0),
            ("log_every", 1),
            ("eval_every", 0),
            ("save_every", 0),
            ("keep_checkpoints", 1),
        ):
            check_integer(name, getattr(self, name), minimum)
        if check_real("expert_bias_rate", self.expert_bias_rate) < 0:
            raise ValueError(
                f"expert_bias_rate={self.expert_bias_rate} is negative"
            )
        if not self.output_dir:
            raise ValueError("output_dir is empty: name a directory")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """What is recorded per tensor at every step (waits for the device)."""

    tensors: bool = False
    """Norm before and after the clip, and gamma, of every tensor."""

    moments: bool = False
    """Norms of the optimizer's moments of every tensor; needs ``tensors``."""

    def __post_init__(self) -> None:
        if self.moments and not self.tensors:
            raise ValueError("record.moments needs record.tensors: true")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Degrees of fleet's hybrid parallelism; one process by default."""

    dp: int = 1
    """Data-parallel ranks."""

    tp: int = 1
    """Tensor-parallel ranks."""

    pp: int = 1
    """Pipeline stages; micro-batches are
    ``train.gradient_accumulation_steps``."""

    sharding: int = 1
    """Ranks that share the optimizer states (stage 1) and split the data."""

    ep: int = 1
    """Ranks that share the experts: a divisor of ``sharding``."""

    sequence_parallel: bool = False
    """Split activations along the sequence over the tensor-parallel ranks."""

    sharding_split_param: bool = True
    """Sharding splits every tensor (V2), rather than giving each to one rank
    (V1)."""

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "sharding", "ep"):
            check_integer(name, getattr(self, name), 1)
        if self.sequence_parallel and self.tp == 1:
            raise ValueError("sequence_parallel=True needs tp > 1")
        if self.ep == 1:
            return
        if self.sharding % self.ep or not self.sharding_split_param:
            raise ValueError(
                f"ep={self.ep} with sharding={self.sharding} and "
                f"sharding_split_param={self.sharding_split_param}: experts "
                "need sharding V2 over a multiple of ep ranks"
            )
        if max(self.dp, self.tp) > 1:
            raise ValueError(
                f"ep={self.ep} with dp={self.dp} and tp={self.tp}: use "
                "sharding instead of dp, and no tensor parallelism"
            )

    @property
    def num_processes(self) -> int:
        """Number of processes, one per device."""
        return self.dp * self.tp * self.pp * self.sharding

    @property
    def num_data_ranks(self) -> int:
        """Number of ranks with data of their own."""
        return self.dp * self.sharding


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run."""

    model: dict[str, Any]
    """``architecture``, ``decoder`` if it is left out, or ``clip``; and fields
    of :class:`~paddle_adagc.lab.models.config.DecoderConfig`, or of
    :class:`~paddle_adagc.lab.models.vision_text.config.CLIPConfig`. With
    ``preset`` the named preset's values come first."""

    clip: dict[str, Any]
    """``name`` of the clip (see :mod:`paddle_adagc.clips.registry`) and its
    arguments."""

    train: TrainConfig
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=AdamWConfig)
    """AdamW by default, see :mod:`paddle_adagc.lab.train.optimizer_config`."""

    schedule: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    record: RecordConfig = dataclasses.field(default_factory=RecordConfig)
    faults: list[FaultConfig] = dataclasses.field(default_factory=list)
    """Faults to inject; none by default."""

    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        if "float8_linears" in self.model and self.train.precision != "float8":
            raise ValueError(
                f"model.float8_linears={self.model['float8_linears']} with "
                f"train.precision={self.train.precision!r}: set that to "
                "'float8'"
            )
        if self.record.moments and not isinstance(self.optimizer, AdamWConfig):
            raise ValueError(
                f"record.moments with optimizer.name={self.optimizer.name!r}: "
                "they are Adam's; set it to false"
            )
        if self.parallel.num_processes == 1:
            return
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
                f"train.save_every={self.train.save_every} with "
                f"parallel.ep={self.parallel.ep}: PaddleNLP's checkpoints "
                "would hold the experts of one rank only; set it to 0"
            )
        splits_tensors = (
            self.parallel.sharding > 1 and self.parallel.sharding_split_param
        )
        if self.optimizer.name in NEED_WHOLE_TENSORS and splits_tensors:
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
        """What :attr:`global_batch` counts."""
        return "sequences" if self.data.kind in TEXT_KINDS else "pairs"

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts and lists, as YAML and JSON hold them.

        ``parallel`` is left out where it is one process.
        """
        values = dataclasses.asdict(self)
        if self.parallel.num_processes == 1:
            del values["parallel"]
        return values
