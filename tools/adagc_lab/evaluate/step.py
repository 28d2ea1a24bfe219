# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One step of a run, as text: what the record says of it, and its batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adagc_lab.data.datasets import TokenDataset, check_fingerprint
from adagc_lab.data.indexed import manifest_tokenizer
from adagc_lab.data.tokenizers import BYTES, find_tokenizer, is_bytes
from adagc_lab.record.files import METRICS, RECORD, read_rows, read_run_json
from adagc_lab.train.parse import parse_config
from adagc_lab.train.tasks import make_task
from paddle_adagc.report.command import make_page
from paddle_adagc.report.text import as_text

NUM_SAMPLES = 8
LINE_LENGTH = 400


def step_text(
    directory: Path,
    step: int | None = None,
    tokenizer: str | None = None,
    *,
    shows_all: bool = False,
) -> str:
    """Describe a recorded step, which counts from 0.

    None: the worst step of the worst alarm. Without a tokenizer (see
    :func:`.find_tokenizer`) the batch's tokens are numbers, unless the data is
    bytes. Few samples and their beginning are shown, or with ``shows_all``
    everything.
    """
    rows = read_rows(directory / METRICS)
    if step is not None and not 0 <= step < len(rows):
        raise ValueError(
            f"--step {step}: {directory} has the steps 0 to {len(rows) - 1}"
        )
    lines = []
    if (directory / RECORD).exists():
        page = make_page(directory, step, ())
        lines.append(as_text(page))
        if step is None and page["worst"] is not None:
            step = page["events"][page["worst"]]["worst_step"]
    if step is None or step >= len(rows):
        raise ValueError(
            f"{directory} has no spike whose step is in {METRICS}; alarms that "
            "last have no worst step. Give --step, or see adagc-report "
            f"{directory}"
        )
    row = rows[step]
    samples = range(*row["samples"])
    lines += ["", f"step {step}: loss {row['loss']:.4g}"]
    for fault in row.get("faults", []):
        where = ", ".join(fault["tensors"])
        lines.append(f"fault: {fault['kind']} {where}".rstrip())
    lines.append(f"batch of {len(samples)} samples:")
    run = read_run_json(directory)
    fork = run.get("forked_from")
    seen = set()  # a run may have been overwritten by a fork of its fork
    while fork and step < fork["step"] and fork["run"] not in seen:
        seen.add(fork["run"])
        if any(map(_is_data, fork["changed"])):
            lines.append(f"of the run {fork['run']}, which read other data")
            return "\n".join(lines)
        fork = read_run_json(fork["run"]).get("forked_from")
    shown = samples if shows_all else samples[:NUM_SAMPLES]
    for line in _batch(directory, run, shown, samples.stop, tokenizer):
        is_long = len(line) > LINE_LENGTH and not shows_all
        lines.append(f"{line[:LINE_LENGTH]} ..." if is_long else line)
    return "\n".join(lines)


def _is_data(key: str) -> bool:
    """Whether a key of a config decides which data a step has."""
    return key.startswith("data") or key == "train.seed"


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
    check_fingerprint(dataset.fingerprint, run)
    data = config.data
    own = BYTES if is_bytes(data.kind, data.prefix) else data.tokenizer
    name = tokenizer or own
    # Decoding needs no end of documents, which captions do not have.
    end = manifest_tokenizer(data.prefix).get("eos_id", 0)
    text = find_tokenizer(name, eos_id=end) if name else None
    for index in samples:
        ids = dataset[index]["input_ids"].tolist()
        shown = repr(text.decode(ids, special=True)) if text else ids
        where = f"sample {index}"
        if isinstance(dataset, TokenDataset):
            where += f", token {dataset.order[index]}"
        yield f"{where}: {shown}"
