# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One step of a run, as text: its loss, its tensors, its batch.

:func:`step_text` reads a run's record, :func:`flight_text` its flight recorder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adagc_lab.data.datasets import TokenDataset
from adagc_lab.data.tokenizers import BYTES, find_tokenizer, is_bytes
from adagc_lab.markdown import markdown_table
from adagc_lab.record.files import RunRecord, read_rows
from adagc_lab.record.flight import FOLDER, load_event
from adagc_lab.train.console import short_name
from adagc_lab.train.parse import parse_config
from adagc_lab.train.tasks import make_task
from paddle_adagc.stability.spike_score import spike_score

NUM_TENSORS = 10
NUM_STEPS = 10
"""Steps that are shown of a flight."""

BEFORE = 100
"""Steps before the step, whose median says what is usual."""

NUM_SAMPLES = 8
LINE_LENGTH = 400


def step_text(
    directory: Path,
    step: int,
    tokenizer: str | None = None,
    *,
    shows_all: bool = False,
) -> str:
    """Describe a recorded step, which counts from 0.

    Without a tokenizer (see :func:`.find_tokenizer`) the batch's tokens are
    numbers, unless the data is bytes. Few samples and their beginning are
    shown, or with ``shows_all`` everything.
    """
    rows = read_rows(directory / "metrics.jsonl")
    if not 0 <= step < len(rows):
        raise ValueError(
            f"--step {step}: {directory} has the steps 0 to {len(rows) - 1}"
        )
    row, record = rows[step], RunRecord.load(directory)
    samples = range(*row["samples"])
    lines = [
        *_summary(row, record),
        "",
        _recorded_tensors(directory, row, record),
        f"batch of {len(samples)} samples:",
    ]
    shown = samples if shows_all else samples[:NUM_SAMPLES]
    for line in _batch(directory, record.run, shown, samples.stop, tokenizer):
        is_long = len(line) > LINE_LENGTH and not shows_all
        lines.append(f"{line[:LINE_LENGTH]} ..." if is_long else line)
    return "\n".join(lines)


def _summary(row: Mapping[str, Any], record: RunRecord) -> Iterator[str]:
    """Loss, what the clip did, and faults."""
    step, losses = row["step"], record.loss
    spike = ", a spike" if step in spike_score(losses).indices else ""
    text = f"step {step}: loss {row['loss']:.4g}{spike}"
    if len(before := losses[max(0, step - BEFORE) : step]):
        median = f"{np.median(before):.4g}"
        text += f"; median of the {len(before)} steps before {median}"
    yield text
    yield f"learning rate {row['learning_rate']:.3g}"
    if "global_grad_norm" in row:
        yield (
            f"global gradient norm {row['global_grad_norm']:.4g}, "
            f"{row['clipped_fraction']:.0%} of the tensors clipped, "
            f"{row['nonfinite']} not finite"
        )
    for fault in row.get("faults", []):
        where = ", ".join(fault["tensors"])
        yield f"fault: {fault['kind']} {where}".rstrip()


def _recorded_tensors(
    directory: Path, row: Mapping[str, Any], record: RunRecord
) -> str:
    """Return a table of the worst tensors of a step, or why there is none.

    Without gamma the usual norm is the median of the steps before.
    """
    step, norms = row["step"], record.tensors["norm"]
    if np.isfinite(record.tensors["clipped_norm"][step]).any():
        usual, name = np.full_like(norms[step], np.nan), "usual norm"
        if step:
            usual = np.median(norms[max(0, step - BEFORE) : step], axis=0)
            gamma = record.tensors["gamma"][step - 1]
            if np.isfinite(gamma).any():
                usual, name = gamma, "gamma before"
        columns = (norms[step], record.h[step], usual)
        values = zip(*(column.tolist() for column in columns), strict=True)
        tensors = dict(zip(record.tensor_names, values, strict=True))
        return _tensor_table(tensors, name)
    event = load_event(directory, step)
    if event is not None and (tensors := event.tensors(step)):
        return _tensor_table(tensors)
    lowest = row.get("most_clipped")
    if lowest is None:
        return (
            "No tensors are recorded at this step: record.tensors=true "
            "records all, train.log_every=1 the most clipped ones\n"
        )
    if not lowest:
        return "No tensor is clipped more than the others.\n"
    rows = [[short_name(key), f"{h:.3g}"] for key, h in lowest.items()]
    return markdown_table(["most clipped", "h"], rows, pad=True)


def _tensor_table(
    tensors: Mapping[str, tuple[float, float, float]], usual: str = "gamma"
) -> str:
    """Return the tensors with the largest norm over what is usual, else norm.

    ``tensors``: norm, h and the usual norm by key; none of a step in which a
    :class:`MeasuredClip` only clips.
    """
    if not tensors:
        return (
            "No tensor was measured at this step: Paddle's own clips are "
            "measured in the steps that are logged or saved."
        )

    def ratio(key: str) -> float:
        norm, _, known = tensors[key]
        if not math.isfinite(norm):
            return math.inf
        return norm / known if 0 < known < math.inf else 0.0

    worst = sorted(tensors, key=lambda k: (ratio(k), tensors[k][0]))[::-1]
    rows = []
    for key in worst[:NUM_TENSORS]:
        norm, h, known = tensors[key]
        values = (norm, known, ratio(key), h)
        rows.append([short_name(key), *(f"{value:.3g}" for value in values)])
    head = ["tensor", "norm", usual, "ratio", "h"]
    return markdown_table(head, rows, pad=True)


def _batch(
    directory: Path,
    run: Mapping[str, Any],
    samples: range,
    stop: int,
    tokenizer: str | None,
) -> Iterator[str]:
    """Return a line for each of the samples, all of which are before `stop`."""
    train = {**run["config"]["train"], "output_dir": str(directory)}
    config = parse_config({**run["config"], "train": train})
    total = config.train.max_steps * config.global_batch
    dataset, _ = make_task(config).build_datasets(max(total, stop))
    expected, found = run.get("data", {}), dataset.fingerprint
    if any(found.get(key) != value for key, value in expected.items()):
        raise ValueError(
            f"the data has changed since the run: it was {expected}, now "
            f"it is {found}: put it back"
        )
    data = config.data
    own = BYTES if is_bytes(data.kind, data.prefix) else data.tokenizer
    name = tokenizer or own
    text = find_tokenizer(name) if name else None
    for index in samples:
        ids = dataset[index]["input_ids"].tolist()
        shown = repr(text.decode(ids, special=True)) if text else ids
        where = f"sample {index}"
        if isinstance(dataset, TokenDataset):
            where += f", token {dataset.order[index]}"
        yield f"{where}: {shown}"


def flight_text(directory: Path, step: int | None = None) -> str:
    """Describe a step of a run's newest event (None: the last), and before."""
    event = load_event(directory, step)
    if event is None:
        what = f"no event with step {step}" if step is not None else "no event"
        raise ValueError(
            f"{directory / FOLDER} holds {what}: a run writes it at an alarm, "
            "a signal or an exception"
        )
    last, steps = event.place(step), event.first.step.tolist()
    rows = []
    for i in range(max(0, last + 1 - NUM_STEPS), last + 1):
        tensors = event.tensors(steps[i])
        norms = [n for n, _, _ in tensors.values() if math.isfinite(n)]
        factors = [h for _, h, _ in tensors.values() if not math.isnan(h)]
        first, stop = event.first.samples[i]
        rows.append(
            [
                str(steps[i]),
                f"{event.loss(steps[i]):.4g}",
                f"{math.hypot(*norms):.4g}" if norms else "–",
                f"{min(factors):.3g}" if factors else "–",
                f"{first} to {stop - 1}",
            ]
        )
    head = ["step", "loss", "gradient norm", "lowest h", "samples"]
    lines = [
        f"{event.name}: {event.first.reason}",
        f"steps {steps[0]} to {steps[-1]}; ranks: {len(event.ranks)}",
        "",
        markdown_table(head, rows, pad=True),
        f"step {steps[last]}:",
        _tensor_table(tensors),
    ]
    return "\n".join(lines)
