# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One pretraining run from its config to its record; killed runs resume."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddlenlp
from paddle.nn.clip import ClipGradBase

import paddle_adagc
from adagc_lab.clips import make_clip
from adagc_lab.clips.compared import ComparedClip, refuse_layout
from adagc_lab.faults import check_faults
from adagc_lab.processor import processor_facts
from adagc_lab.record.files import lock_run
from adagc_lab.train.checkpoints import load_weights
from adagc_lab.train.config import RunConfig
from adagc_lab.train.processes import (
    Stopped,
    from_first_process,
    is_first_process,
    start_processes,
)
from adagc_lab.train.start import Fork, Start
from adagc_lab.train.tasks import PretrainTask, make_task
from adagc_lab.train.tensors import named_tensors
from adagc_lab.train.trainer import PretrainTrainer
from paddle_adagc import ClipGradByAdaGC


def run_pretraining(
    config: RunConfig,
    *,
    overwrite: bool = False,
    fork: Fork | None = None,
) -> str:
    """Train as ``config`` says, or resume a killed run.

    A run that has ended is not run again, unless ``train.max_steps`` grew. It
    writes to ``train.output_dir`` only.

    Args:
        config: The run.
        overwrite: Start anew. The directory's earlier run is removed once the
            new one, or the checkpoint of its fork, is known to be sound.
        fork: Checkpoint of another run, from which this one starts.

    Returns:
        ``"finished"``, or ``"diverged"`` if the loss stopped being finite; a
        signal raises :class:`.Stopped`.
    """
    directory = Path(config.train.output_dir)
    # Wrong values are refused first, whatever the directory holds.
    task, clip = make_task(config), make_clip(**config.clip)
    task.check_layout()
    if isinstance(clip, ComparedClip):
        refuse_layout(type(clip).__name__, config.parallel)
    start = Start(config, overwrite=overwrite, fork=fork)
    start_processes(config.parallel)
    with contextlib.ExitStack() as stack:
        from_first_process(lambda: stack.enter_context(lock_run(directory)))
        begin = from_first_process(start.read)
        if begin.ended:
            if is_first_process():
                text = f"{directory}: already {begin.ended}, nothing to do"
                print(text, flush=True)
            return begin.ended
        # Paddle's automatic names, by which it saves the optimizer, start anew.
        with paddle.utils.unique_name.guard():
            trainer = build_trainer(config, task, clip)
            trainer.starts_afresh = begin.afresh
            if (found := begin.checkpoint) is not None:
                suffix = trainer.args.weight_name_suffix
                load_weights(trainer.model, found, suffix)
            facts = _facts(trainer)
            from_first_process(lambda: start.write(facts))
            trainer.train(resume_from_checkpoint=found and str(found))
        step = trainer.state.global_step
        status = trainer.finish()
    if trainer.stopped_by:
        raise Stopped(trainer.stopped_by, directory / f"checkpoint-{step}")
    return status


def build_trainer(
    config: RunConfig, task: PretrainTask, clip: ClipGradBase
) -> PretrainTrainer:
    """Build the data and the model; put them, with the clip, in a trainer."""
    train_dataset, eval_dataset = task.build_datasets(config.num_train_samples)
    model = task.build_model()
    check_faults(config.faults, model)
    if isinstance(clip, ClipGradByAdaGC) and config.parallel.num_processes == 1:
        clip.overrides.refuse_unused([*task.tensor_shapes()])
    return PretrainTrainer(
        config, task, model, clip, train_dataset, eval_dataset
    )


def _facts(trainer: PretrainTrainer) -> dict[str, Any]:
    """Return the run's facts for ``run.json``; every process calls this."""
    has_tensors = trainer.config.record.tensors
    return {
        "seed": trainer.config.train.seed,
        "tensors": [*named_tensors(trainer.model)] if has_tensors else [],
        "data": trainer.train_dataset.fingerprint,
        "versions": {
            "paddle_adagc": paddle_adagc.__version__,
            "paddlepaddle": paddle.__version__,
            "paddlenlp": paddlenlp.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": {"device": paddle.device.get_device(), **processor_facts()},
    }
