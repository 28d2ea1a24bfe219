# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""PaddleNLP's Trainer with a clip, faults, a record, and exact checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import paddle
import paddle.distributed as dist
from paddle import Tensor, nn
from paddle.io import BatchSampler, Dataset
from paddle.nn.clip import ClipGradBase
from paddlenlp.trainer import Trainer, TrainingArguments
from paddlenlp.utils.batch_sampler import DistributedBatchSampler

from adagc_lab.clips import ComparedClip
from adagc_lab.data.loading import BatchLoader, collate_batch, to_tensors
from adagc_lab.faults import Fault, apply_to_gradients, faults_at
from adagc_lab.storage import atomic_write_json
from adagc_lab.train.checkpoints import (
    complete_checkpoint,
    load_pickle,
    read_complete,
    remove_checkpoint,
    rotate_checkpoints,
)
from adagc_lab.train.config import RunConfig
from adagc_lab.train.console import Console
from adagc_lab.train.optimizers import (
    check_precision,
    make_optimizer,
    make_scheduler,
    uses_amp,
)
from adagc_lab.train.processes import (
    StopRequest,
    from_first_process,
    is_first_process,
)
from adagc_lab.train.recorder import StepRecorder
from adagc_lab.train.tasks import PretrainTask
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.integrations.clipping import TrainerClip
from paddle_adagc.integrations.paddlenlp import ClippingMixin
from paddle_adagc.optimizer import innermost

CLIP_STATE = "clip_state.json"
"""File of a checkpoint: state of a compared clip."""


class PretrainTrainer(ClippingMixin, Trainer):
    """Trains a model as a task and its config say.

    Gradient accumulation, AMP, evaluation and logs are the Trainer's own. A
    checkpoint holds all that a killed run needs to have the same losses (the
    state of the clip and of the alarms too), in its own layout; the caller
    loads the weights. ``starts_afresh`` names what takes no state from
    it, of ``"clip"`` and ``"optimizer"``; ``stopped_by`` is the signal that
    ended the training, or 0.
    """

    recorder: StepRecorder
    """From the beginning of the training on."""

    def __init__(
        self,
        config: RunConfig,
        task: PretrainTask,
        model: nn.Layer,
        clip: ClipGradBase,
        train_dataset: Dataset,
        eval_dataset: Dataset,
    ) -> None:
        self.config, self.task = config, task
        super().__init__(
            clip=clip,
            record=False,  # the recorder's has more numbers
            model=model,
            args=training_arguments(config),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
        )
        self._adagc.load = self._load_clip  # type: ignore[method-assign]
        self.label_names = [*task.label_names]
        self.add_callback(Console(task, config.global_batch))
        self.stopped_by = 0
        self.starts_afresh: frozenset[str] = frozenset()
        self._stop = StopRequest(config.train.log_every)
        self._made = {"step": 0, "wall_seconds": 0.0}  # by earlier processes

    def create_scheduler(self, num_training_steps: int) -> Any:
        """Make the config's schedule, stepped once per optimizer step."""
        self.lr_scheduler = make_scheduler(
            self.config.schedule, num_training_steps
        )
        return self.lr_scheduler

    def create_optimizer(self, lr_scheduler: Any = None) -> Any:
        if isinstance(self.clip, ComparedClip):
            self.clip.bind(self.model)
        self.optimizer = make_optimizer(
            self.config.optimizer,
            self.model,
            learning_rate=lr_scheduler or self.lr_scheduler,
            grad_clip=self.clip,
            multi_precision=uses_amp(self.config.train),
        )
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

    def get_train_dataloader(self) -> BatchLoader:
        return self._loader(self.train_dataset, self._get_train_sampler())

    def get_eval_dataloader(
        self, eval_dataset: Dataset | None = None
    ) -> BatchLoader:
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        return self._loader(dataset, self._get_eval_sampler(dataset))

    def _loader(self, dataset: Dataset, sampler: BatchSampler) -> BatchLoader:
        return BatchLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=collate_batch,
            num_workers=self.args.dataloader_num_workers,
        )

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """Train, from a checkpoint of this class if one is given."""
        if resume_from_checkpoint is not None:
            self._made = read_complete(Path(resume_from_checkpoint))
        if not uses_amp(self.config.train):
            _fill_missing_gradients(self.model)
        with self._stop:
            try:
                return super().train(
                    resume_from_checkpoint=resume_from_checkpoint, **kwargs
                )
            except BaseException as error:
                if "recorder" in vars(self):
                    self.recorder.record.leave(error)
                raise

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Train; by now the optimizer has fleet's clip for GlobalGC's."""
        made = int(self._made["step"]), self._made["wall_seconds"]
        self.recorder = StepRecorder(
            self.config, self.model, self.optimizer, *made
        )
        return super()._inner_training_loop(*args, **kwargs)

    def finish(self) -> str:
        unstopped = "diverged" if self.recorder.has_diverged else "finished"
        status = "stopped" if self.stopped_by else unstopped
        self.recorder.close(status)
        return status

    def training_step(
        self, model: Any, inputs: dict[str, Any], step_control: int = 0
    ) -> Tensor:
        """Forward and backward pass of one micro-batch, with its faults."""
        step = self.state.global_step
        faults = faults_at(self.config.faults, step, self.config.train.seed)
        if step_control == 0:
            self.recorder.begin_step(step)
        for fault in faults:
            if fault.target == "batch":
                if fault.kind == "repeated_batch":
                    inputs = self._repeated_batch(fault, step_control)
                else:
                    inputs = self.task.corrupt(inputs, fault, step_control)
                self.recorder.add_fault(fault)
        loss = super().training_step(model, inputs)
        is_last = step_control + 1 == self.args.gradient_accumulation_steps
        for fault in faults if is_last else ():
            if fault.target == "gradient":
                names = apply_to_gradients(fault, model.named_parameters())
                self.recorder.add_fault(fault, names)
        self.recorder.add_loss(self.model.last_loss)
        return loss

    def _repeated_batch(self, fault: Fault, part: int) -> dict[str, Tensor]:
        """Return the same micro-batch of the burst's first step."""
        self.recorder.set_samples(fault.burst)
        train = self.config.train
        part += fault.burst * train.gradient_accumulation_steps
        samples = range(part * train.batch_size, (part + 1) * train.batch_size)
        return to_tensors(
            collate_batch([self.train_dataset[i] for i in samples])
        )

    def _check_loss_valid(self, loss: Tensor) -> None:
        """Do nothing: the record checks losses without waiting."""

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """End a step; the Trainer calls this for the last one twice."""
        if not self.recorder.is_in_step:
            return
        measures = {}
        if self.config.record.tensors:
            measures = self.task.step_measures(self.model)
        self.task.after_step(self.model, innermost(self.optimizer))
        control, step = self.control, self.state.global_step
        last = step >= self.state.max_steps
        if last:
            control.should_save = self.config.train.save_every > 0
        else:
            self.stopped_by = self._stop.agreed(step)
        if self.stopped_by:
            control.should_save = control.should_training_stop = True
        if last or control.should_evaluate:
            measures |= self._validate()
        self.recorder.end_step(**measures)
        if last or control.should_save or control.should_log:
            self.recorder.flush()
            self._stop_if_diverged()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _validate(self) -> dict[str, float]:
        """Evaluate before the step is recorded, not after its log."""
        is_logged = self.control.should_log  # the evaluation's log ends it
        loss = self.evaluate()["eval_loss"]
        self.control.should_log, self.control.should_evaluate = is_logged, False
        measures = self.task.validate(self.model, self.eval_dataset)
        return {"eval_loss": loss, **measures}

    def _stop_if_diverged(self) -> bool:
        if self.recorder.has_diverged:
            self.control.should_training_stop = True
            self.stopped_by = 0  # nothing is saved for the signal
        return self.recorder.has_diverged

    def log(self, logs: dict[str, Any], **kwargs: Any) -> None:
        """Log the recorded loss, which is the same in every layout."""
        if "loss" in logs:
            logs |= self.recorder.logs()
        super().log(logs, **kwargs)

    def _load_clip(self, checkpoint: Any) -> None:
        if checkpoint:
            self.recorder.load_shadow(Path(checkpoint))
        if "clip" not in self.starts_afresh:
            TrainerClip.load(self._adagc, checkpoint)
            if checkpoint and isinstance(self.clip, ComparedClip):
                state = Path(checkpoint, CLIP_STATE).read_text("utf-8")
                self.clip.set_state_dict(json.loads(state))
        elif isinstance(self.clip, ClipGradByAdaGC):
            self.clip.restart_warmup()

    def _load_from_checkpoint(self, resume_from_checkpoint: Any = None) -> None:
        """Do nothing: the weights are loaded before a run is changed."""

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        """Load them; the rate follows this run's schedule from here on."""
        if checkpoint is None:
            return
        if "optimizer" not in self.starts_afresh:
            super()._load_optimizer_and_scheduler(checkpoint)
        else:
            schedule = load_pickle(f"{checkpoint}/scheduler.pdparams")
            self.lr_scheduler.set_state_dict(schedule)
        self.lr_scheduler.step(self.lr_scheduler.last_epoch)

    def _save_checkpoint(self, model: Any, metrics: Any = None) -> None:
        """Save all parts, then mark the checkpoint complete, then rotate.

        Weights that are not finite end the run, and are not saved.
        """
        self.recorder.check_weights()
        if self._stop_if_diverged():
            return
        directory, step = Path(self.args.output_dir), self.state.global_step
        checkpoint = directory / f"checkpoint-{step}"
        from_first_process(lambda: remove_checkpoint(checkpoint))
        super()._save_checkpoint(model, metrics=metrics)
        self.recorder.save_shadow(checkpoint)
        if isinstance(self.clip, ComparedClip) and is_first_process():
            atomic_write_json(checkpoint / CLIP_STATE, self.clip.state_dict())
        self.recorder.sync()
        if dist.get_world_size() > 1:
            dist.barrier()
        if not is_first_process():
            return
        facts = {"step": step, "wall_seconds": self.recorder.seconds}
        complete_checkpoint(checkpoint, facts)
        rotate_checkpoints(directory, step, self.config.train.keep_checkpoints)

    def _rotate_checkpoints(
        self, use_mtime: bool = False, output_dir: Any = None
    ) -> None:
        """Do nothing: ``_save_checkpoint`` rotates at its end."""


def _fill_missing_gradients(model: paddle.nn.Layer) -> None:
    """Give every trainable parameter a gradient, 0 for now.

    Paddle clears gradients to zeros, so an expert that got tokens once takes
    optimizer steps without tokens too. With this function every parameter does,
    from the first step on and after a resume.
    """
    for parameter in model.parameters():
        if not parameter.stop_gradient and parameter.grad is None:
            parameter.grad = paddle.zeros_like(parameter)


def training_arguments(config: RunConfig) -> TrainingArguments:
    train, parallel = config.train, config.parallel
    is_sharded = parallel.sharding > 1
    on_gpu = paddle.device.is_compiled_with_cuda()
    check_precision(train)
    return TrainingArguments(
        output_dir=train.output_dir,
        logging_dir=str(Path(train.output_dir) / "logs"),
        report_to=["visualdl"] * train.visualdl,
        disable_tqdm=True,  # the console shows the progress
        device="gpu" if on_gpu else "cpu",
        seed=train.seed,
        do_train=True,
        do_eval=True,
        max_steps=train.max_steps,
        per_device_train_batch_size=train.batch_size,
        per_device_eval_batch_size=train.batch_size,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        learning_rate=config.schedule.learning_rate,
        max_grad_norm=0.0,
        logging_steps=train.log_every,
        evaluation_strategy="steps",
        eval_steps=train.eval_every or train.max_steps,
        save_strategy="steps" if train.save_every else "no",
        save_steps=train.save_every or train.max_steps,
        save_total_limit=train.keep_checkpoints,
        prediction_loss_only=True,
        bf16=uses_amp(train),
        fp16_opt_level="O2" if uses_amp(train) else "O1",
        amp_master_grad=uses_amp(train),
        dataloader_drop_last=True,
        dataloader_num_workers=config.data.num_workers,
        tensor_parallel_degree=parallel.tp,
        sharding="stage1" if is_sharded else "",
        sharding_parallel_degree=parallel.sharding if is_sharded else -1,
        sharding_parallel_config=(
            "split_param"
            if is_sharded and parallel.sharding_split_param
            else ""
        ),
    )
