# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time of whole training steps, clip against clip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import paddle
from tqdm import tqdm

from adagc_lab.benchmark.clip_step import (
    REFERENCE,
    Contender,
    format_quartiles,
    median_ratio,
    take_turns,
)
from adagc_lab.clips import make_clip
from adagc_lab.data.loading import collate_batch
from adagc_lab.markdown import markdown_table
from adagc_lab.train.config import OptimizerConfig, RunConfig
from adagc_lab.train.optimizers import make_optimizer
from adagc_lab.train.tasks import PretrainTask, make_task
from paddle_adagc.clips.adagc import ClipGradByAdaGC

CLIPS: dict[str, dict[str, Any] | None] = {
    "no clip": None,
    REFERENCE: {"name": "global_norm"},
    "AdaGC": {"name": "adagc"},
}
_T_START = 100
"""AdaGC's warm-up, not timed."""


def compare(config: RunConfig, num_steps: int) -> dict[str, list[float]]:
    """Train one copy of the model per clip, step by step in turn.

    Every copy sees the same batches; the order within a round is random. The
    run's own clip is not used, and AdaGC's warm-up is not timed. Gives name of
    the clip -> seconds of each step: forward, backward and optimizer.
    """
    task = make_task(config)
    rate = config.schedule.learning_rate
    copies = {
        name: _copy(task, config.optimizer, rate, clip)
        for name, clip in CLIPS.items()
    }
    total = _T_START + num_steps
    batches = tqdm(_batches(task, total), total=total, leave=False, unit="step")
    return take_turns(copies, batches, _T_START)


def to_markdown(seconds: Mapping[str, Sequence[float]]) -> str:
    return markdown_table(
        ["clip", "ms per step, median (quartiles)", "of GlobalGC"],
        [
            (
                name,
                format_quartiles([1e3 * s for s in mine], ".2f"),
                f"{median_ratio(mine, seconds[REFERENCE]):.3f}",
            )
            for name, mine in seconds.items()
        ],
    )


def _copy(
    task: PretrainTask,
    settings: OptimizerConfig,
    learning_rate: float,
    clip_settings: dict[str, Any] | None,
) -> Contender:
    with paddle.utils.unique_name.guard():
        model = task.build_model()
    model.train()
    clip = None if clip_settings is None else make_clip(**clip_settings)
    if isinstance(clip, ClipGradByAdaGC):
        clip.bind(model)
    optimizer = make_optimizer(
        settings,
        model,
        learning_rate,
        grad_clip=clip,
        multi_precision=False,
    )
    batch: dict[str, paddle.Tensor] = {}

    def step() -> None:
        model(**batch)[0].backward()
        optimizer.step()
        optimizer.clear_grad()

    return Contender(step, batch.update)


def _batches(
    task: PretrainTask, count: int
) -> Iterator[dict[str, paddle.Tensor]]:
    size = task.train.batch_size
    dataset, _ = task.build_datasets(count * size)
    for start in range(0, count * size, size):
        samples = [dataset[index] for index in range(start, start + size)]
        yield {
            key: paddle.to_tensor(value)
            for key, value in collate_batch(samples).items()
        }
