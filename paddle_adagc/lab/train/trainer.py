# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaddleNLP's Trainer with a clip, faults, and a record of every step."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.io import Dataset
from paddle.nn.clip import ClipGradBase
from paddlenlp.utils.batch_sampler import DistributedBatchSampler

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.measured import MeasuredClip
from paddle_adagc.integrations.trainer import innermost, put_into_optimizer
from paddle_adagc.lab.data.datasets import collate_batch
from paddle_adagc.lab.faults import (
    REPEATED_BATCH,
    Fault,
    FaultSchedule,
    activation_fault,
    apply_to_gradients,
    repeated_samples,
)
from paddle_adagc.lab.train.arguments import training_arguments, uses_amp
from paddle_adagc.lab.train.console import Console
from paddle_adagc.lab.train.optimizers import make_optimizer
from paddle_adagc.lab.train.recorder import StepRecorder
from paddle_adagc.lab.train.resumable import ResumableTrainer
from paddle_adagc.lab.train.optimizers import make_scheduler
from paddle_adagc.lab.train.stopping import StopRequest
from paddle_adagc.lab.train.task import PretrainTask


def _fill_missing_gradients(model: paddle.nn.Layer) -> None:
    """Give every trainable parameter a gradient, 0 for now.

    Paddle clears gradients to zeros, so an expert that got tokens once takes
    optimizer steps without tokens too. With this function every parameter does,
    from the first step on and after a resume.
    """
    for parameter in model.parameters():
        if not parameter.stop_gradient and parameter.grad is None:
            parameter.grad = paddle.zeros_like(parameter)


class PretrainTrainer(ResumableTrainer):
    """Trains a model as a task and its config say.

    Gradient accumulation, AMP, evaluation and logs are the Trainer's own.

    Attributes:
        stopped_by: Signal that ended the training; 0: none did.
    """

    def __init__(
        self,
        task: PretrainTask,
        model: nn.Layer,
        clip: ClipGradBase,
        train_dataset: Dataset,
        eval_dataset: Dataset,
    ) -> None:
        config = task.config
        self.task = task
        self.fault_schedule = FaultSchedule(config.faults, config.train.seed)
        super().__init__(
            config,
            StepRecorder(config, model),
            clip=clip,
            model=model,
            args=training_arguments(config),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            data_collator=collate_batch,
        )
        self.label_names = [*task.label_names]
        self.add_callback(Console(task))
        self.stopped_by = 0
        self._stop = StopRequest(config.train.log_every)
        self._ended_step: int | None = None
        self._measured: MeasuredClip | None = None
        if not (isinstance(clip, TensorScalingClip) or config.record.tensors):
            self._measured = MeasuredClip(clip, self._is_summarized)
            self._measured.bind(model)

    def create_scheduler(self, num_training_steps: int) -> Any:
        """Make the config's schedule, stepped once per optimizer step."""
        self.lr_scheduler = make_scheduler(
            self.config.schedule, num_training_steps
        )
        return self.lr_scheduler

    def create_optimizer(self, lr_scheduler: Any = None) -> Any:
        """Make the config's optimizer with the clip."""
        self.optimizer = make_optimizer(
            self.config.optimizer,
            self.model,
            learning_rate=lr_scheduler or self.lr_scheduler,
            grad_clip=self.recorder.observed(self.clip),
            multi_precision=uses_amp(self.config.train),
        )
        self.recorder.optimizer = self.optimizer
        return self.optimizer

    def _get_train_sampler(self) -> DistributedBatchSampler:
        """Return a sampler in the dataset's order, which is random already."""
        return DistributedBatchSampler(
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            shuffle=False,
            num_replicas=self.args.dataset_world_size,
            rank=self.args.dataset_rank,
            drop_last=True,
        )

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """Train, from a checkpoint of this class if one is given."""
        self._open_record(resume_from_checkpoint)
        if not uses_amp(self.config.train):
            _fill_missing_gradients(self.model)
        with self._stop:
            try:
                return super().train(
                    resume_from_checkpoint=resume_from_checkpoint, **kwargs
                )
            except BaseException as error:
                self.recorder.flight.write_crash(error)
                raise

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Train; by now the optimizer has fleet's clip for GlobalGC's."""
        if self._measured is not None:
            self._measured.clip = innermost(self.optimizer)._grad_clip
            put_into_optimizer(self.optimizer, self._measured)
        return super()._inner_training_loop(*args, **kwargs)

    def _is_summarized(self) -> bool:
        """Tell whether the step in progress is logged, saved or the last."""
        train, step = self.config.train, self.state.global_step + 1
        return (
            step % train.log_every == 0
            or step == self.state.max_steps
            or bool(train.save_every and step % train.save_every == 0)
        )

    def finish(self) -> str:
        """Close the record.

        Returns:
            The run's status, ``"finished"``, ``"diverged"`` or ``"stopped"``.
        """
        status = "diverged" if self.recorder.has_diverged else "finished"
        if self.stopped_by or self.recorder.watcher.stopped_by:
            status = "stopped"
        self.recorder.close(status=status, wall_seconds=self._wall_seconds())
        return status

    def training_step(
        self, model: Any, inputs: dict[str, Any], step_control: int = 0
    ) -> Tensor:
        """Forward and backward pass of one micro-batch, with its faults."""
        step = self.state.global_step
        faults = self.fault_schedule.at(step)
        if step_control == 0:
            self.recorder.begin_step(step, self._get_learning_rate())
        if not faults:
            loss = super().training_step(model, inputs)
        else:
            loss = self._faulty_step(model, inputs, faults, step_control)
        for recorded in self.task.take_losses(self.model):
            self.recorder.add_loss(recorded)
        return loss

    def _faulty_step(
        self,
        model: Any,
        inputs: dict[str, Any],
        faults: list[Fault],
        part: int,
    ) -> Tensor:
        with contextlib.ExitStack() as around:
            for fault in faults:
                if fault.target == "batch":
                    if fault.kind == REPEATED_BATCH:
                        inputs = self._repeated_batch(fault, part)
                    else:
                        inputs = self.task.corrupt(inputs, fault, part)
                    self.recorder.add_fault(fault)
                elif fault.target == "activation":
                    names = around.enter_context(activation_fault(fault, model))
                    self.recorder.add_fault(fault, names)
            loss = super().training_step(model, inputs)
        if part + 1 == self.args.gradient_accumulation_steps:
            for fault in faults:
                if fault.target == "gradient":
                    names = apply_to_gradients(fault, model.named_parameters())
                    self.recorder.add_fault(fault, names)
        return loss

    def _repeated_batch(self, fault: Fault, part: int) -> dict[str, Tensor]:
        """Return the batch of the burst's first step."""
        self.recorder.set_samples(fault.burst)
        samples = repeated_samples(
            fault,
            self.config.train.batch_size,
            self.config.train.gradient_accumulation_steps,
            part,
        )
        batch = collate_batch([self.train_dataset[i] for i in samples])
        return {key: paddle.to_tensor(array) for key, array in batch.items()}

    def _check_loss_valid(self, loss: Tensor) -> None:
        """Do nothing: the recorder checks losses without waiting."""

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """End a step; the Trainer calls this for the last one twice."""
        if self.state.global_step == self._ended_step:
            return
        self._ended_step = self.state.global_step
        measures = {}
        if self.config.record.tensors:
            measures = self.task.step_measures(self.model)
        self.recorder.end_step(**measures)
        self.task.after_step(self.model, self.recorder.optimizer)
        last = self.state.global_step >= self.state.max_steps
        if last:
            self.control.should_evaluate = True
            self.control.should_save = self.config.train.save_every > 0
        else:
            self.stopped_by = self._stop.agreed(self.state.global_step)
        if self.stopped_by:
            self.control.should_save = True
            self.control.should_training_stop = True
            name = signal.Signals(self.stopped_by).name
            self.recorder.flight.write("signal", name)
        is_logged = self.state.global_step % self.args.logging_steps == 0
        if not is_logged and (last or self.control.should_save):
            self._clip_summary()
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if last or is_logged:
            self.recorder.flush()
            self._stop_if_unsound()

    def _stop_if_unsound(self) -> bool:
        """End the run if it diverged, or an alarm is to end it."""
        alarm = self.recorder.watcher.stopped_by
        unsound = self.recorder.has_diverged or alarm is not None
        if unsound:
            self.control.should_training_stop = True
            self.stopped_by = 0  # nothing is saved for the signal
        return unsound

    def log(self, logs: dict[str, Any], **kwargs: Any) -> None:
        """Log the recorded loss, which is the same in every layout."""
        if "loss" in logs:
            logs |= self.recorder.log_line()
        super().log(logs, **kwargs)

    def _clip_summary(self) -> dict[str, Any]:
        if self._measured is not None:
            summary = self._measured.summary(tensors=True)
        else:
            summary = super()._clip_summary()
        return self.recorder.add_summary(summary)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate, and enter the validation loss in the step's record."""
        metrics = super().evaluate(*args, **kwargs)
        measures = self.task.validate(self.model, self.eval_dataset)
        self.recorder.add_evaluation(metrics["eval_loss"], **measures)
        return {**metrics, **measures}

    def _save_checkpoint(self, model: Any, metrics: Any = None) -> None:
        """Save, unless an alarm or weights that are not finite end the run."""
        self.recorder.flush()
        if not self.recorder.weights_are_finite():
            self.recorder.has_diverged = True
        if not self._stop_if_unsound():
            super()._save_checkpoint(model, metrics=metrics)
