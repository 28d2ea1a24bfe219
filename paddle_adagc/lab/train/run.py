# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One pretraining run from its config to its record; killed runs resume."""

from __future__ import annotations

import contextlib
import gc
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddlenlp

import paddle_adagc
from paddle_adagc.clips.registry import make_clip
from paddle_adagc.lab.data.manifest import check_dataset
from paddle_adagc.lab.faults import check_faults
from paddle_adagc.lab.record.files import check_record, held
from paddle_adagc.lab.record.machine import processor_facts
from paddle_adagc.lab.train import checkpoints
from paddle_adagc.lab.train.architectures import make_task
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.fork import Fork
from paddle_adagc.lab.train.processes import (
    from_first_process,
    is_first_process,
    start_processes,
)
from paddle_adagc.lab.train.resume import (
    Request,
    find_start,
    read_earlier,
    write_start,
)
from paddle_adagc.lab.train.rollback import (
    Rollback,
    read_rollbacks,
    roll_back,
    undo_end,
)
from paddle_adagc.lab.train.skips import Skips
from paddle_adagc.lab.train.stopping import Stopped
from paddle_adagc.lab.train.trainer import PretrainTrainer
from paddle_adagc.stability.alarms import Alarm


def run_pretraining(
    config: RunConfig,
    *,
    overwrite: bool = False,
    change_data: bool = False,
    rollback: bool = False,
    fork: Fork | None = None,
    verify: bool = False,
    add_checksums: bool = False,
) -> str:
    """Train as ``config`` says, or resume a killed run.

    A run that has ended is not run again, unless ``train.max_steps`` grew.
    After an alarm of ``monitor.rollback_on`` it resumes from the checkpoint
    before, with a new trainer.

    Args:
        config: The run; it writes to ``train.output_dir`` only. What may differ
            from a run that is resumed: :mod:`paddle_adagc.lab.train.changes`.
        overwrite: Start anew. The directory's earlier run is removed once the
            new one is known to be sound.
        change_data: Resume with other data.
        rollback: Roll back the run, which diverged or was ended by an alarm.
        fork: Checkpoint of another run, from which this one starts.
        verify: Compare all of the data, and of an ended run's record, with
            their checksums; otherwise sizes and samples.
        add_checksums: Trust checkpoints of an earlier version, which have no
            checksums, as they are now.

    Returns:
        ``"finished"``, or ``"diverged"`` if the loss stopped being finite.

    Raises:
        FileExistsError: The directory holds something other than a run of
            this config on this data, or another process writes to it.
        FileNotFoundError: There is no checkpoint to fork or to extend.
        Stopped: A signal ended the run, after a checkpoint.
        ValueError: Settings that do not go together, or damaged files.
    """
    directory = Path(config.train.output_dir)
    request = Request(overwrite, change_data, rollback, fork)
    start_processes(config)
    with contextlib.ExitStack() as stack:
        from_first_process(lambda: stack.enter_context(held(directory)))
        if add_checksums:
            source = fork.source if fork else directory
            from_first_process(lambda: checkpoints.add_checksums(source))
        while True:
            ended = _run_once(config, request, verify=verify)
            if isinstance(ended, str):
                return ended
            trainer = ended
            saved = trainer.state.global_step
            if alarm := trainer.recorder.watcher.rolls_back_for:
                done = _try_rollback(config, alarm)
                if done is None:
                    trainer.stopped_by = 0  # nothing is saved for the signal
                    break
                saved = done.checkpoint
            if alarm is None or trainer.stopped_by:
                break
            trainer.recorder.stop()
            del trainer, ended
            gc.collect()  # the next trainer needs its memory
            request = Request(change_data=change_data)
        status = trainer.finish()
    if trainer.stopped_by:
        last = directory / f"checkpoint-{saved}"
        raise Stopped(trainer.stopped_by, last)
    return status


def _run_once(
    config: RunConfig, request: Request, *, verify: bool
) -> PretrainTrainer | str:
    """Train up to the end or to a rollback.

    Returns:
        The trainer, or how the run had ended before.
    """
    directory, values = Path(config.train.output_dir), _as_json(config)
    earlier = from_first_process(
        lambda: read_earlier(directory, values, config, request)
    )
    if request.rollback:
        done = from_first_process(lambda: undo_end(config, earlier.run))
        _say(str(done))
    elif status := earlier.status(config):
        check_record(directory, earlier.run, verify=verify)
        _say(f"{directory}: already {status}, nothing to do")
        return status
    if verify:
        from_first_process(lambda: _check_data(config))
    # Paddle's automatic names, by which it saves the optimizer, start anew.
    with paddle.utils.unique_name.guard():
        rollbacks = from_first_process(
            lambda: [] if request.overwrite else _rollbacks(directory, request)
        )
        trainer = build_trainer(config, rollbacks)
        start = from_first_process(
            lambda: find_start(directory, earlier, values, config, request)
        )
        if start.weights is not None:
            trainer.load_weights(start.weights)
        facts, names = _facts(config, trainer), trainer.recorder.tensor_names
        from_first_process(
            lambda: write_start(
                directory, earlier, request, start, facts, names
            )
        )
        trainer.starts_afresh = start.starts_afresh
        trainer.train(
            resume_from_checkpoint=start.checkpoint and str(start.checkpoint)
        )
    return trainer


def _rollbacks(directory: Path, request: Request) -> list[Rollback]:
    """Read the run's rollbacks; a new fork has those of its origin."""
    is_new = request.fork is not None and not (directory / "run.json").exists()
    source = request.fork.source if is_new and request.fork else directory
    return read_rollbacks(source)


def _try_rollback(config: RunConfig, alarm: Alarm) -> Rollback | None:
    """Roll the run back, if it may; every process calls this."""
    directory, most = (
        Path(config.train.output_dir),
        config.monitor.max_rollbacks,
    )

    def attempt() -> Rollback | str:
        if len(read_rollbacks(directory)) >= most:
            return f"no rollback after {most} (monitor.max_rollbacks)"
        found = roll_back(config, alarm)
        return found or "no rollback: no checkpoint before the event"

    done = from_first_process(attempt)
    _say(str(done))
    return done if isinstance(done, Rollback) else None


def _say(line: str) -> None:
    if is_first_process():
        print(line, flush=True)


def _check_data(config: RunConfig) -> None:
    """Compare memory-mapped data with all of its checksums."""
    data = config.data
    for prefix in filter(None, (data.prefix, data.validation_prefix)):
        check_dataset(prefix, verify=True)


def build_trainer(
    config: RunConfig, rollbacks: Sequence[Rollback] = ()
) -> PretrainTrainer:
    """Build the model, the data and the clip of a run in their trainer.

    Args:
        config: The run.
        rollbacks: Those that it has made.

    Raises:
        ValueError: An unknown option of the model or of the clip, or data
            or faults that do not fit the model.
    """
    task = make_task(config)
    skipped = (rollback.samples for rollback in rollbacks)
    num_skipped = Skips(skipped, config.global_batch).num_batches
    num_samples = (config.train.max_steps + num_skipped) * config.global_batch
    train_dataset, eval_dataset = task.build_datasets(num_samples)
    clip = make_clip(**config.clip)
    model = task.build_model()
    check_faults(config.faults, model, task.num_words)
    return PretrainTrainer(
        task, model, clip, train_dataset, eval_dataset, rollbacks
    )


def _as_json(config: RunConfig) -> dict[str, Any]:
    values = json.loads(json.dumps(config.to_dict()))
    del values["train"]["output_dir"]  # a run may be moved
    return values


def _facts(config: RunConfig, trainer: PretrainTrainer) -> dict[str, Any]:
    """Return the run's facts for ``run.json``; every process calls this."""
    return {
        "config": _as_json(config),
        "seed": config.train.seed,
        "data": trainer.train_dataset.fingerprint,
        **trainer.task.facts(trainer.model),
        "versions": {
            "paddle_adagc": paddle_adagc.__version__,
            "paddlepaddle": paddle.__version__,
            "paddlenlp": paddlenlp.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "device": paddle.device.get_device(),
            **processor_facts(),
        },
    }
