# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaddleFormers' ``ernie_pretrain`` with a clip of this package.

PaddleFormers 1.2.0 takes every clip for Paddle's ``ClipGradByGlobalNorm``;
three places break on another one:

- ``Trainer._wrap_distributed_optimizer`` replaces the clip's ``_global_norm``;
- ``PretrainingTrainer._new_gradclip`` replaces its ``_comm_and_clip``;
- ``MoeLoggingCallback`` copies its ``stat``, a mapping, into the log.

The first two look at ``max_grad_norm``, 0 here: PaddleFormers then makes no
clip of its own and leaves this one alone. The third finds a ``stat``,
:class:`ClipStat`.

Its callback counts the tokens of every expert and then leaves the routers'
correction biases as they are; :class:`CorrectionBiasCallback` moves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.nn.clip import ClipGradBase
from paddleformers.cli.train.ernie_pretrain.models.moe.moe_layer import MOELayer
from paddleformers.cli.train.ernie_pretrain.src.trainers import (
    PreTrainingArguments,
    PretrainingTrainer,
)
from paddleformers.trainer.trainer_callback import TrainerCallback

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.integrations.paddleformers import ClippingMixin
from paddle_adagc.lab.paddleformers.names import global_expert_names


class ClipStat(Mapping[str, float]):
    """Numbers of the clip's last step for the log; reading may wait.

    They are ``clipped_fraction`` and ``nonfinite`` of this rank's tensors, see
    :meth:`TensorScalingClip.metrics`.
    """

    _NAMES = ("clipped_fraction", "nonfinite")

    def __init__(self, clip: TensorScalingClip) -> None:
        self._clip = clip

    def __getitem__(self, name: str) -> float:
        if name not in self._NAMES:
            raise KeyError(name)
        return float(self._clip.metrics()[name])

    def __iter__(self) -> Iterator[str]:
        """None before the first step."""
        return iter(self._NAMES if self._clip.num_steps else ())

    def __len__(self) -> int:
        return len([*iter(self)])


class ClippingTrainer(ClippingMixin, PretrainingTrainer):
    """``PretrainingTrainer`` whose optimizer clips with ``clip``.

    Args:
        clip: See :class:`ClippingMixin`.
        args: ``max_grad_norm`` and ``log_global_grad_norm`` are switched off.
        **kwargs: Further arguments of both.
    """

    def __init__(
        self, *, clip: ClipGradBase, args: PreTrainingArguments, **kwargs: Any
    ) -> None:
        args.max_grad_norm = 0.0
        args.log_global_grad_norm = False
        super().__init__(clip=clip, args=args, **kwargs)
        clip.stat = (
            ClipStat(clip) if isinstance(clip, TensorScalingClip) else {}
        )

    def _bind_clip(self, clip: TensorScalingClip) -> None:
        with global_expert_names(self.model):
            clip.bind(self.model, self._units)


class CorrectionBiasCallback(TrainerCallback):
    """Balance the experts without a loss, as ERNIE-4.5 does.

    After every optimizer step a correction bias goes up by ``rate`` if its
    expert got fewer tokens than the average, and down if it got more, counted
    over all ranks with data of their own. Under sequence parallelism also
    tensor-parallel ranks route different tokens.
    """

    def __init__(self, rate: float, sequence_parallel: Any) -> None:
        super().__init__()
        self.rate = float(rate)
        self.sequence_parallel = bool(sequence_parallel)

    @paddle.no_grad()
    def on_optimizer_end(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Update the biases of this rank's layers and count anew."""
        routers = [
            layer.moe_statics
            for layer in kwargs["model"].sublayers(include_self=True)
            if isinstance(layer, MOELayer)
        ]
        if not routers:
            return
        tokens = paddle.stack([router.expert_usage for router in routers])
        for group in self._groups():
            dist.all_reduce(tokens, group=group)
        load = tokens.astype("float32")
        lack = paddle.sign(load.mean(axis=-1, keepdim=True) - load)
        for router, step in zip(routers, lack * self.rate, strict=True):
            router.e_score_correction_bias.add_(step)
            router.expert_usage.zero_()

    def _groups(self) -> list[Any]:
        hcg = fleet.get_hybrid_communicate_group()
        groups = [
            hcg.get_data_parallel_group(),
            hcg.get_sharding_parallel_group(),
        ]
        if self.sequence_parallel:
            groups.append(hcg.get_model_parallel_group())
        return [group for group in groups if group.nranks > 1]
