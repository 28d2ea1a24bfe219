# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Trainer: callbacks, logs, an AdamW with GlobalNorm."""

from types import SimpleNamespace

import paddle


class Trainer:
    """Trains ``model`` on the same row in every step."""

    def __init__(self, model=None, args=None, optimizers=(None, None)):
        self.args, self.model = args, model or paddle.nn.Linear(4, 1)
        self.optimizer = optimizers[0]
        self.state = SimpleNamespace(global_step=0, is_world_process_zero=True)
        self.callback_handler = SimpleNamespace(callbacks=[])
        self.control = SimpleNamespace(should_training_stop=False)

    def add_callback(self, callback):
        self.callback_handler.callbacks.append(callback)

    def create_optimizer_and_scheduler(self, num_training_steps):
        self.create_optimizer()

    def create_optimizer(self, lr_scheduler=None):
        if self.optimizer is None:
            norm = self.args.max_grad_norm
            clip = paddle.nn.ClipGradByGlobalNorm(norm) if norm else None
            self.optimizer = paddle.optimizer.AdamW(
                0.01, parameters=self.model.parameters(), grad_clip=clip
            )
        return self.optimizer

    def train(self, resume_from_checkpoint=None):
        self.create_optimizer_and_scheduler(self.args.max_steps)
        return self._inner_training_loop(self.args, resume_from_checkpoint)

    def _inner_training_loop(self, args, resume_from_checkpoint):
        self.state.global_step = 0
        self._tell("on_train_begin")
        while self.state.global_step < args.max_steps:
            (self.model(paddle.ones([1, 4])) ** 2).mean().backward()
            self.optimizer.step()
            self.optimizer.clear_grad()
            self.state.global_step += 1
            self._tell("on_step_end")
        self.log({"loss": 1.0})
        clip = self.optimizer._grad_clip
        shown = [type(clip).__name__]
        if hasattr(clip, "t_start"):
            shown += [
                f"lambda_abs={clip.lambda_abs}",
                f"t_start={clip.t_start}",
            ]
        print("trained with", *shown, flush=True)

    def predict(self):
        return self.model(paddle.ones([1, 4])).item()

    def log(self, logs):
        print(logs, flush=True)

    def _tell(self, event):
        objects = {"model": self.model, "optimizer": self.optimizer}
        for callback in self.callback_handler.callbacks:
            getattr(callback, event)(
                self.args, self.state, self.control, **objects
            )
