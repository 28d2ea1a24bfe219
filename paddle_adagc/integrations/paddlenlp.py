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
"""A clip in PaddleNLP's ``Trainer``, and in what derives from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.state import load_state, save_state

if TYPE_CHECKING:
    from paddlenlp.trainer import Trainer
else:
    Trainer = object


class ClippingMixin(Trainer):
    """Let a ``Trainer`` clip with ``clip``; stands before its class.

    The optimizer stays the one that the Trainer makes from its arguments, with
    ``clip`` in place of ``ClipGradByGlobalNorm``. The clip is told the model
    before fleet wraps anything. Its state for the whole model is saved in every
    checkpoint, in a file of its own (:mod:`paddle_adagc.state`), and
    ``train(resume_from_checkpoint=...)`` resumes from it; every process reads
    that file. It is written first: a checkpoint that the Trainer has finished
    has it.

    Args:
        *args: Of the Trainer.
        clip: One of this package's, or any ``ClipGradBase`` but
            ``ClipGradByGlobalNorm``, which fleet replaces by its own. Other
            clips have no state here.
        **kwargs: Of the Trainer; ``model`` as built, not wrapped.
    """

    def __init__(self, *args: Any, clip: ClipGradBase, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clip = clip
        if isinstance(clip, TensorScalingClip):
            self._bind_clip(clip)

    def _bind_clip(self, clip: TensorScalingClip) -> None:
        clip.bind(self.model)

    def create_optimizer(self, lr_scheduler: Any = None) -> Any:
        """The Trainer's optimizer, with the clip."""
        optimizer = super().create_optimizer(lr_scheduler)
        optimizer._grad_clip = self.clip
        for group in optimizer._param_groups:
            if isinstance(group, dict):
                group["grad_clip"] = self.clip
        return optimizer

    def train(
        self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train; from a checkpoint the clip resumes as well.

        Raises:
            FileNotFoundError: The checkpoint holds no state of a clip.
            ValueError: It holds another model's, or another clip's.
        """
        if resume_from_checkpoint and isinstance(self.clip, TensorScalingClip):
            self.clip.set_state_dict(load_state(resume_from_checkpoint))
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _save_checkpoint(self, model: Any, metrics: Any = None) -> None:
        if isinstance(self.clip, TensorScalingClip):
            state = self.clip.full_state_dict()
            if dist.get_rank() == 0:
                name = f"checkpoint-{self.state.global_step}"
                save_state(state, Path(self.args.output_dir) / name)
        super()._save_checkpoint(model, metrics=metrics)
