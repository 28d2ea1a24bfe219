# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Trainer: callbacks, checkpoints, logs, an AdamW with GlobalNorm."""

import json
import time
import types
from pathlib import Path

import numpy as np
import paddle


class Trainer:
    """Trains ``model`` on noise, the same in every run."""

    def __init__(
        self, model=None, args=None, callbacks=(), optimizers=(None, None)
    ):
        self.args, self.model = args, model or paddle.nn.Linear(4, 1)
        self.optimizer, self.lr_scheduler = optimizers
        self.state = types.SimpleNamespace(
            global_step=0, is_world_process_zero=True, trial_params=None
        )
        self.callback_handler = types.SimpleNamespace(callbacks=[*callbacks])
        self.control = types.SimpleNamespace(
            should_save=False, should_training_stop=False
        )

    def add_callback(self, callback):
        self.callback_handler.callbacks.append(callback)

    def create_optimizer_and_scheduler(self, num_training_steps):
        self.create_scheduler(num_training_steps)
        self.create_optimizer(self.lr_scheduler)

    def create_scheduler(self, num_training_steps):
        self.lr_scheduler = self.args.learning_rate

    def create_optimizer(self, lr_scheduler=None):
        if self.optimizer is None:
            self.optimizer = paddle.optimizer.AdamW(
                learning_rate=lr_scheduler,
                parameters=self.model.parameters(),
                grad_clip=paddle.nn.ClipGradByGlobalNorm(
                    self.args.max_grad_norm
                )
                if (self.args.max_grad_norm or 0) > 0
                else None,
            )
        return self.optimizer

    def train(self, resume_from_checkpoint=None):
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        self.create_optimizer_and_scheduler(self.args.max_steps)
        return self._inner_training_loop(self.args, resume_from_checkpoint)

    def _inner_training_loop(self, args, resume_from_checkpoint):
        self.state.global_step = 0
        if resume_from_checkpoint:
            path = Path(resume_from_checkpoint, "trainer_state.json")
            vars(self.state).update(json.loads(path.read_text()))
        objects = {"model": self.model, "optimizer": self.optimizer}
        for callback in self.callback_handler.callbacks:
            if hasattr(callback, "on_train_begin"):
                callback.on_train_begin(
                    args, self.state, self.control, **objects
                )
        while self.state.global_step < args.max_steps:
            self.training_step(self.model)
            self.state.global_step += 1
            is_due = self.state.global_step % args.save_steps == 0
            self.control.should_save = is_due
            self._tell("on_step_end")
            time.sleep(args.seconds_per_step)
            if self.state.global_step % args.logging_steps == 0:
                self.log({"loss": 1.0})
            if self.control.should_save:
                self._save_checkpoint(self.model)

        clip = self.optimizer._grad_clip
        shown = [type(clip).__name__]
        if hasattr(clip, "t_start"):
            shown += [f"lambda_abs={clip.lambda_abs}"]
            shown += [f"t_start={clip.t_start}"]
        print("trained with", *shown, flush=True)

    def training_step(self, model):
        noise = np.random.default_rng(self.state.global_step)
        inputs = paddle.to_tensor(noise.normal(size=[8, 4]), "float32")
        (model(inputs) ** 2).mean().backward()
        self.optimizer.step()
        self.optimizer.clear_grad()

    def predict(self):
        return self.model(paddle.ones([1, 4])).item()

    def log(self, logs):
        print(logs, flush=True)

    def _save_checkpoint(self, model, metrics=None):
        name = f"checkpoint-{self.state.global_step}"
        folder = Path(self.args.output_dir, name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scheduler.pdparams").touch()
        text = json.dumps(vars(self.state))
        (folder / "trainer_state.json").write_text(text)

    def _tell(self, event):
        for callback in self.callback_handler.callbacks:
            if hasattr(callback, event):
                getattr(callback, event)(self.args, self.state, self.control)


def get_last_checkpoint(folder):
    """Return the newest checkpoint of a folder."""
    found = Path(folder).glob("checkpoint-*")
    return max(found, key=lambda path: int(path.name[11:]), default=None)
