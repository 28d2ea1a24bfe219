# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which changed settings a run accepts when it is resumed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from paddle_adagc.lab.train.architectures import make_task
from paddle_adagc.lab.train.config import RunConfig
from paddle_adagc.lab.train.parse import parse_config
from paddle_adagc.lab.train.optimizers import learning_rate

Kind = Literal["free", "length", "layout", "record", "data", "fork"]

_FREE = (
    "train.log_every",
    "train.eval_every",
    "train.save_every",
    "train.keep_checkpoints",
    "train.visualdl",
    "train.report_to",
)
_WHOLE = "clip.overrides"  # None is a value there, keys have dots
_LAYOUT = ("train.batch_size", "train.gradient_accumulation_steps")


class Change(NamedTuple):
    """A setting with another value than the run was made with."""

    key: str
    """Dotted, as on the command line."""

    old: Any
    new: Any

    @property
    def kind(self) -> Kind:
        """What it takes to accept the change."""
        if self.key in _FREE or self.key.startswith("monitor"):
            return "free"
        if self.key == "train.max_steps":
            return "length"
        if self.key in _LAYOUT or self.key.startswith("parallel"):
            return "layout"
        if self.key.startswith("record"):
            return "record"
        return "data" if self.key.startswith("data") else "fork"

    def __str__(self) -> str:
        """Key, old and new value."""
        return f"{self.key}: {self.old} -> {self.new}"


def find_changes(old: Any, new: Any, where: str = "") -> list[Change]:
    """Compare two configs as plain values."""
    are_maps = isinstance(old, Mapping) and isinstance(new, Mapping)
    if not are_maps or where == _WHOLE:
        return [] if old == new else [Change(where, old, new)]
    return [
        change
        for key in {**old, **new}
        for change in find_changes(
            old.get(key), new.get(key), f"{where}.{key}".lstrip(".")
        )
    ]


def check_changes(
    changes: Sequence[Change],
    earlier: Mapping[str, Any],
    config: RunConfig,
    change_data: bool,
) -> None:
    """Refuse changes that a resumed run does not accept.

    Args:
        changes: See :func:`find_changes`.
        earlier: Config of the run, as its ``run.json`` holds it.
        config: The new one.
        change_data: Accept other data.

    Raises:
        FileExistsError: The message names the keys and the flag that they take.
    """
    directory = config.train.output_dir
    keys = ", ".join(c.key for c in changes if c.kind == "fork")
    if keys:
        raise FileExistsError(
            f"{directory} holds a run with another config ({keys}): start a "
            "new run from its checkpoint with --fork NEW_DIR, choose another "
            "train.output_dir, or give --overwrite to replace it"
        )
    layout = [change for change in changes if change.kind == "layout"]
    if layout and (remedy := _layout_remedy(earlier, config)):
        raise FileExistsError(
            f"{directory} holds a run with other batches "
            f"({', '.join(map(str, layout))}): {remedy}, or start a new run "
            "from its checkpoint with --fork NEW_DIR"
        )
    data = [change for change in changes if change.kind == "data"]
    if data and not change_data:
        raise FileExistsError(
            f"{directory} holds a run on other data "
            f"({', '.join(map(str, data))}): give --change-data to resume with "
            "these, or put them back"
        )


def _layout_remedy(earlier: Mapping[str, Any], config: RunConfig) -> str | None:
    """Say what to keep so that sums alone differ, by rounding.

    Args:
        earlier: Config of the run, as its ``run.json`` holds it.
        config: The new one.

    Returns:
        None if nothing else changes.
    """
    values = copy.deepcopy(dict(earlier))
    values["train"]["output_dir"] = config.train.output_dir
    old = parse_config(values)
    num_parts = old.train.gradient_accumulation_steps
    if old.global_batch != config.global_batch:
        return (
            f"keep the global batch of {old.global_batch}, now "
            f"{config.global_batch}"
        )
    if (
        num_parts != config.train.gradient_accumulation_steps
        and not make_task(config).is_mean_of_samples
    ):
        return (
            f"keep train.gradient_accumulation_steps={num_parts}, since "
            "experts are balanced over a micro-batch"
        )
    num_ranks = old.parallel.num_data_ranks
    if (
        config.data.kind == "webdataset"
        and num_ranks != config.parallel.num_data_ranks
    ):
        return f"keep {num_ranks} ranks that read data, which order the shards"
    return None


def schedule_line(config: RunConfig, old_steps: int, step: int) -> str:
    """Say what another ``train.max_steps`` does to the learning rate.

    Args:
        config: With the new number of steps.
        old_steps: The old number.
        step: Steps made.
    """
    schedule, steps = config.schedule, config.train.max_steps
    before = learning_rate(schedule, step, old_steps)
    after = learning_rate(schedule, step, steps)
    line = f"the {schedule.kind} schedule now ends at step {steps}"
    if before == after:
        return f"{line}; the learning rate of step {step} stays {after:.3g}"
    return (
        f"{line}; the learning rate of step {step} changes from {before:.3g} "
        f"to {after:.3g}"
    )
