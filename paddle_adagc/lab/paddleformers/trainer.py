# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaddleFormers' ``ernie_pretrain`` trainer with a clip of this package.

PaddleFormers 1.2.0 takes every clip for Paddle's ``ClipGradByGlobalNorm``;
three places break on another one:

- ``Trainer._wrap_distributed_optimizer`` replaces the clip's ``_global_norm``;
- ``PretrainingTrainer._new_gradclip`` replaces its ``_comm_and_clip``;
- ``MoeLoggingCallback`` copies its ``stat``, a mapping, into the log.

The first two look at ``max_grad_norm``, 0 here: PaddleFormers then makes no
clip of its own and leaves this one alone. The third finds a ``stat``,
:class:`ClipStat`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paddle.nn.clip import ClipGradBase
from paddleformers.cli.train.ernie_pretrain.src.trainers import (
    PreTrainingArguments,
    PretrainingTrainer,
)

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
        """Read from the device."""
        if name not in self._NAMES:
            raise KeyError(name)
        return float(self._clip.metrics()[name])

    def __iter__(self) -> Iterator[str]:
        """None before the first step."""
        return iter(self._NAMES if self._clip.num_steps else ())

    def __len__(self) -> int:
        """Return the number of values."""
        return len([*iter(self)])


class ClippingTrainer(ClippingMixin, PretrainingTrainer):
    """``PretrainingTrainer`` whose optimizer clips with ``clip``.

    Args:
        clip: See :class:`ClippingMixin`.
        args: ``max_grad_norm`` and ``log_global_grad_norm`` are switched off.
        **kwargs: Further arguments of ``PretrainingTrainer``.
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
            clip.bind(self.model)
