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
"""One pretraining run from its config to its record; killed runs resume."""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddlenlp

import paddle_adagc
from paddle_adagc.clips.registry import make_clip
from paddle_adagc.lab.data.manifest import check_dataset
from paddle_adagc.lab.faults import check_faults
from paddle_adagc.lab.models.cpu import use_portable_arithmetic
from paddle_adagc.lab.record.files import (
    ENDED,
    check_record,
    held,
    read_run_json,
    update_run_json,
)
from paddle_adagc.lab.record.machine import processor_facts
from paddle_adagc.lab.train.architectures import make_task
from paddle_adagc.lab.train.checkpoints import last_checkpoint, restore_run_json
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.processes import from_first_process, start_processes
from paddle_adagc.lab.train.trainer import PretrainTrainer


def run_pretraining(
    config: RunConfig, *, overwrite: bool = False, verify: bool = False
) -> str:
    """Train as ``config`` says, or resume a killed run.

    A run that has ended is not run again.

    Args:
        config: The run; it writes to ``train.output_dir`` only.
        overwrite: Start anew. The directory's earlier run is removed once the
            new one is known to be sound.
        verify: Compare all of the data, and of an ended run's record, with
            their checksums; otherwise sizes and samples.

    Returns:
        ``"finished"``, or ``"diverged"`` if the loss stopped being finite.

    Raises:
        FileExistsError: The directory holds something other than a run of
            this config on this data, or another process writes to it.
        ValueError: Settings that do not go together, or damaged files.
    """
    directory = Path(config.train.output_dir)
    use_portable_arithmetic()
    start_processes(config)
    with contextlib.ExitStack() as stack:
        from_first_process(lambda: stack.enter_context(held(directory)))
        earlier = from_first_process(
            lambda: _earlier_run(directory, config, overwrite)
        )
        if earlier.get("status") in ENDED:
            check_record(directory, earlier, verify=verify)
            return str(earlier["status"])
        if verify:
            from_first_process(lambda: _check_data(config))
        # Paddle's automatic names, by which it saves the optimizer, start anew.
        stack.enter_context(paddle.utils.unique_name.guard())
        trainer = build_trainer(config)
        facts = _facts(config, trainer)
        checkpoint = from_first_process(
            lambda: _start(directory, earlier, facts, overwrite)
        )
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        return trainer.finish()


def _check_data(config: RunConfig) -> None:
    """Compare memory-mapped data with all of its checksums."""
    data = config.data
    for prefix in filter(None, (data.prefix, data.validation_prefix)):
        check_dataset(prefix, verify=True)


def build_trainer(config: RunConfig) -> PretrainTrainer:
    """Build the model, the data and the clip of a run in their trainer.

    Raises:
        ValueError: An unknown option of the model or of the clip, or data
            or faults that do not fit the model.
    """
    task = make_task(config)
    num_samples = config.train.max_steps * config.global_batch
    train_dataset, eval_dataset = task.build_datasets(num_samples)
    clip = make_clip(**config.clip)
    model = task.build_model()
    check_faults(config.faults, model, task.num_words)
    return PretrainTrainer(task, model, clip, train_dataset, eval_dataset)


def _earlier_run(
    directory: Path, config: RunConfig, overwrite: bool
) -> dict[str, Any]:
    """Read ``run.json`` of the same run to resume; empty if there is none."""
    if not overwrite:
        restore_run_json(directory)
    if not (directory / "run.json").exists():
        if any(directory.iterdir()):
            raise FileExistsError(
                f"{directory} is not empty and holds no run: choose another "
                "train.output_dir"
            )
        return {}
    if overwrite:
        return {}
    run = read_run_json(directory)
    differing = _differing(run.get("config"), _as_json(config))
    if "train.keep_checkpoints" in differing:  # no result depends on it
        differing.remove("train.keep_checkpoints")
    if differing:
        raise FileExistsError(
            f"{directory} holds a run with another config ("
            f"{', '.join(differing)}): choose another train.output_dir, or "
            "give --overwrite to replace it"
        )
    return run


def _start(
    directory: Path,
    earlier: dict[str, Any],
    facts: dict[str, Any],
    overwrite: bool,
) -> Path | None:
    """Write the run's facts; return the checkpoint to resume from."""
    if overwrite:
        _empty(directory)
    checkpoint = last_checkpoint(directory)
    old, new = earlier.get("data", {}), facts["data"]
    if checkpoint is not None and any(new.get(k) != old[k] for k in old):
        raise FileExistsError(
            f"{directory} holds a run on other data ({old}, now {new}): put "
            "the data back, or give --overwrite to start anew"
        )
    update_run_json(directory, **facts, status="running")
    return checkpoint


def _empty(directory: Path) -> None:
    """Empty a directory; the directory itself, and its lock, stay."""
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _as_json(config: RunConfig) -> dict[str, Any]:
    values = json.loads(json.dumps(config.to_dict()))
    del values["train"]["output_dir"]  # a run may be moved
    return values


def _differing(old: Any, new: Any, where: str = "") -> list[str]:
    """Return the dotted keys whose values differ."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [where]
    return [
        name
        for key in {**old, **new}
        for name in _differing(
            old.get(key), new.get(key), f"{where}.{key}".lstrip(".")
        )
    ]


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
