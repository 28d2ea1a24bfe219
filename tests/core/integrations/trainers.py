# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A Trainer of PaddleFleet's shape, where PaddleNLP is not installed."""

import json
import types
from pathlib import Path

import paddle

from paddle_adagc import ClipGradByAdaGC, load_state
from paddle_adagc.integrations.clipping import Options, attach
from paddle_adagc.integrations.trainer import ClippingMixin
from paddle_adagc.state_file import STATE_FILE


class TrainerState(types.SimpleNamespace):
    """What a Trainer saves of itself."""

    @classmethod
    def load(cls, checkpoint):
        path = Path(checkpoint or "") / "trainer_state.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        return cls(**{"global_step": 0, "is_world_process_zero": True, **known})


class Trainer:
    """A Trainer of PaddleFleet's shape; ``fetched`` is known within `train`."""

    fetched = None
    dies_after = None
    """File of a checkpoint after which a kill ends the save."""

    def __init__(self, output_dir="out", model=None, callbacks=(), **arguments):
        arguments = {"max_steps": -1, "max_grad_norm": 1.0, **arguments}
        arguments = {"logging_steps": 1, **arguments}
        self.args = types.SimpleNamespace(
            output_dir=str(output_dir),
            save_steps=4,
            local_process_index=0,
            report_to=[],
            resume_from_checkpoint=None,
            **arguments,
        )
        self.model = model or paddle.nn.Linear(2, 1)
        self.optimizer = None
        self.state = TrainerState.load(None)
        self.callback_handler = types.SimpleNamespace(callbacks=[*callbacks])
        for callback in self.callback_handler.callbacks:
            callback.on_init_end(self.args, self.state, None)

    def add_callback(self, callback):
        self.callback_handler.callbacks.append(callback)

    def call(self, event, **more):
        objects = {"model": self.model, "optimizer": self.optimizer, **more}
        for callback in self.callback_handler.callbacks:
            getattr(callback, event)(
                self.args, self.state, Control(), **objects
            )

    def _build_grad_clip(self):
        return paddle.nn.ClipGradByGlobalNorm(self.args.max_grad_norm)

    def create_optimizer(self, lr_scheduler=None):
        self.optimizer = paddle.optimizer.AdamW(
            parameters=self.model.parameters(),
            grad_clip=self._build_grad_clip(),
        )
        return self.optimizer

    def create_optimizer_and_scheduler(self, num_training_steps=None):
        self.create_optimizer()

    def train(self, resume_from_checkpoint=None):
        found = self.fetched or resume_from_checkpoint
        self.create_optimizer_and_scheduler()
        return self._inner_training_loop(1, resume_from_checkpoint=found)

    def _inner_training_loop(self, other, resume_from_checkpoint):
        self.state = TrainerState.load(resume_from_checkpoint)
        self.call("on_train_begin")
        while self.state.global_step < self.args.max_steps:
            loss = self.model(paddle.ones([1, 2])).sum()
            loss.backward()
            self.optimizer.step()
            self.state.global_step += 1
            self.call("on_step_end")
            if self.state.global_step % self.args.logging_steps == 0:
                self.log({"loss": loss.item()})
            self._save_checkpoint(self.model, metrics={"eval_loss": 2.0})
            self.call("on_save")
        self.call("on_train_end")
        return resume_from_checkpoint

    def log(self, logs):
        self.call("on_log", logs=logs)
        print(logs)
        self.logged = logs

    def _save_checkpoint(self, model, metrics=None):
        self.saved = metrics
        name = f"checkpoint-{self.state.global_step}"
        folder = Path(self.args.output_dir) / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("weights", "trainer_state.json", "scheduler.pdparams"):
            assert not (folder / STATE_FILE).exists()
            (folder / file).write_text(json.dumps(vars(self.state)))
            if self.dies_after == (self.state.global_step, file):
                raise KeyboardInterrupt


class Control:
    """Its module tells a callback which library the Trainer is of."""

    should_save = True


def get_last_checkpoint(folder):
    """Finds it as the Trainer's module does."""
    return max(map(str, Path(folder).glob("checkpoint-*")), default=None)


class Clipping(ClippingMixin, Trainer):
    pass


def clipping(output_dir, t_start=1, **arguments):
    clip = ClipGradByAdaGC(t_start=t_start)
    return Clipping(output_dir, clip=clip, **arguments)


def attached(output_dir, kind=Trainer, **arguments):
    """The same on the object, as adagc-run does it."""
    names = Options.__dataclass_fields__.keys() & arguments.keys()
    options = Options(**{name: arguments.pop(name) for name in names})
    made = kind(output_dir, **arguments)
    made.clip = ClipGradByAdaGC(t_start=1)
    attach(made, made.clip, options)
    return made


def watching(output_dir, **arguments):
    made = Trainer(output_dir, **arguments)
    attach(made, None, Options())
    return made


def gamma_of(source):
    """Gammas of a clip, or of a checkpoint."""
    is_clip = isinstance(source, ClipGradByAdaGC)
    state = source.state_dict() if is_clip else load_state(source)
    return {key: float(gamma) for key, gamma in state["gamma"].items()}
