# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lines that describe a run: layout, shards, batches, schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from paddle_adagc.clips.overrides import Overrides
from paddle_adagc.lab.data.config import TEXT_KINDS
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.models.shards import ShardSize
from paddle_adagc.lab.train.config import ParallelConfig, RunConfig
from paddle_adagc.lab.train.optimizers import learning_rate


def check_validation(config: RunConfig) -> None:
    """Refuse a validation set of less than one batch.

    PaddleNLP drops a batch that is not complete, and evaluates nothing then.

    Raises:
        ValueError: The set is too small for the ranks.
    """
    train, parallel = config.train, config.parallel
    needed = train.batch_size * parallel.num_data_ranks
    if parallel.pp > 1:
        needed *= train.gradient_accumulation_steps
    if config.data.validation_size < needed:
        raise ValueError(
            f"data.validation_size={config.data.validation_size} is less than "
            f"the {needed} samples that all ranks evaluate at once"
        )


def layout_lines(parallel: ParallelConfig) -> list[str]:
    """Describe the ranks along every axis and what they share."""
    lines = [
        f"{parallel.num_processes} processes = DP {parallel.dp} x sharding "
        f"{parallel.sharding} x TP {parallel.tp} x PP {parallel.pp}"
    ]
    if parallel.ep > 1:
        axes = "sharding and TP" if parallel.tp > 1 else "sharding"
        lines.append(f"EP {parallel.ep}: inside of the {axes} ranks")
    if parallel.sequence_parallel:
        lines.append("activations split along the sequence over the TP ranks")
    states = "with the tensors"
    if parallel.sharding > 1:
        states = "each tensor's at one of the sharding ranks (stage 1, V1)"
        if parallel.sharding_split_param:
            states = "split over the sharding ranks (stage 1, V2)"
    return [*lines, f"optimizer's states: {states}"]


def shard_lines(shards: Sequence[ShardSize]) -> list[str]:
    """Describe what a rank of every pipeline stage and expert rank holds."""
    if not shards:
        return []
    rows = [
        [str(stage), _span(ranks), *(f"{count:,}" for count in counts)]
        for stage, ranks, *counts in shards
    ]
    head = ["stage", "EP rank", "layers", "tensors", "parameters a TP rank"]
    return markdown_table(head, rows, left=0, pad=True).splitlines()


def batch_lines(config: RunConfig) -> list[str]:
    """Describe batches, tokens and steps."""
    train, parallel = config.train, config.parallel
    samples = config.global_batch
    unit = config.sample_name
    lines = [
        f"{samples:,} {unit} a step = {train.batch_size} a device x "
        f"{train.gradient_accumulation_steps} accumulated x "
        f"{parallel.num_data_ranks} data-parallel ranks"
    ]
    if config.data.kind not in TEXT_KINDS:
        total = train.max_steps * samples
        return [*lines, f"{train.max_steps:,} steps: {total:,} {unit}"]
    tokens = samples * config.data.seq_length
    return [
        *lines,
        f"{tokens:,} tokens a step (sequences of {config.data.seq_length:,})",
        f"{train.max_steps:,} steps: {train.max_steps * tokens:,} tokens",
    ]


def schedule_lines(config: RunConfig) -> list[str]:
    """Give the learning rate at the steps where its course changes."""
    schedule, last = config.schedule, config.train.max_steps - 1
    marks = {0, min(max(schedule.warmup_steps - 1, 0), last), last // 2, last}
    rates = ", ".join(
        f"{learning_rate(schedule, step, last + 1):.3g} at {step:,}"
        for step in sorted(marks)
    )
    warmup = f"{schedule.warmup_steps:,} warm-up steps"
    return [f"{schedule.kind}, {warmup}; rate {rates}"]


def optimizer_lines(config: RunConfig) -> list[str]:
    """Describe optimizer and clip with their arguments."""
    clip = {k: v for k, v in config.clip.items() if k != "overrides"}
    return [
        _call(dataclasses.asdict(config.optimizer)),
        _call(clip),
        f"precision {config.train.precision}",
    ]


def override_lines(
    overrides: Overrides, keys: Sequence[str] | None
) -> list[str]:
    """Describe the clip's values of single tensors, a line per pattern.

    Args:
        overrides: The clip's.
        keys: Of the whole model's tensors; None: unknown.

    Raises:
        ValueError: A pattern matches no tensor, or two match the same.
    """
    if keys is not None:
        overrides.refuse_unused(keys)
    counts = overrides.num_tensors(keys or ())
    lines = []
    for pattern, values in overrides.settings.items():
        number = counts[pattern]
        unit = "tensor" if number == 1 else "tensors"
        count = f" ({number} {unit})" if keys is not None else ""
        text = "not clipped" if values is None else _arguments(values)
        lines.append(f"clip {pattern}{count}: {text}")
    return lines


def _span(ranks: Sequence[int]) -> str:
    if len(ranks) == ranks[-1] - ranks[0] + 1 and len(ranks) > 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


def _call(settings: Mapping[str, object]) -> str:
    arguments = {k: v for k, v in settings.items() if k != "name"}
    return f"{settings.get('name')}: {_arguments(arguments) or 'defaults'}"


def _arguments(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())
