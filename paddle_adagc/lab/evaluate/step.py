# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One step of a run, as text: its loss, its tensors, its batch.

:class:`Step` reads a run's record, :func:`flight_text` its flight recorder.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.lab.data.datasets import TokenDataset
from paddle_adagc.lab.data.tokenizers import BYTES, TextTokenizer, is_bytes
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.record.flight import FOLDER, Event, load_event
from paddle_adagc.lab.record.rows import read_rows
from paddle_adagc.lab.train.console import short_name
from paddle_adagc.lab.train.parse import parse_config
from paddle_adagc.lab.train.tasks import make_task
from paddle_adagc.stability.spike_score import spike_score

NUM_TENSORS = 10
NUM_STEPS = 10
"""Steps that are shown of a flight."""

BEFORE = 100
"""Steps before the step, whose median says what is usual."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A recorded step."""

    directory: Path
    record: RunRecord
    row: dict[str, Any]
    """Its line of ``metrics.jsonl``."""

    @classmethod
    def load(cls, directory: Path, step: int) -> Step:
        """Read a step of a run; ``step`` counts from 0."""
        rows = read_rows(directory / "metrics.jsonl")
        if not 0 <= step < len(rows):
            raise ValueError(
                f"--step {step}: {directory} has the steps 0 to {len(rows) - 1}"
            )
        return cls(directory, RunRecord.load(directory), rows[step])

    @property
    def index(self) -> int:
        """Index of the step, from 0."""
        return int(self.row["step"])

    def lines(self) -> list[str]:
        """Loss, what the clip did, and faults."""
        row, losses = self.row, self.record.loss
        text = f"step {self.index}: loss {row['loss']:.4g}"
        text += ", a spike" * (self.index in spike_score(losses).indices)
        before = self._before(losses)
        if len(before):
            text += f"; median of the {len(before)} steps before "
            text += f"{np.median(before):.4g}"
        lines = [text, f"learning rate {row['learning_rate']:.3g}"]
        if "global_grad_norm" in row:
            lines.append(
                f"global gradient norm {row['global_grad_norm']:.4g}, "
                f"{row['clipped_fraction']:.0%} of the tensors clipped, "
                f"{row['nonfinite']} not finite"
            )
        for fault in row.get("faults", []):
            where = ", ".join(fault["tensors"])
            lines.append(f"fault: {fault['kind']} {where}".rstrip())
        return lines

    def tensor_table(self) -> str:
        """Markdown table of the tensors with the largest norm over gamma.

        Without gamma the usual norm is the median of the steps before.
        """
        tensors, step = self.record.tensors, self.index
        norm, before = tensors["norm"][step], self._before(tensors["norm"])
        if np.isnan(tensors["clipped_norm"][step]).all():
            return self._most_clipped()
        usual, name = np.zeros_like(norm), "usual norm"
        if len(before):
            usual = np.median(before, axis=0)
        if step and np.isfinite(tensors["gamma"][step - 1]).any():
            usual, name = tensors["gamma"][step - 1], "gamma before"
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(usual > 0, norm / usual, 0.0)
        ratio = np.where(np.isfinite(norm), ratio, np.inf)
        columns = (norm, usual, ratio, self.record.h[step])
        names = self.record.tensor_names
        rows = [
            [short_name(names[i]), *(f"{column[i]:.3g}" for column in columns)]
            for i in np.argsort(-ratio, kind="stable")[:NUM_TENSORS]
        ]
        head = ["tensor", "norm", name, "ratio", "h"]
        return markdown_table(head, rows, pad=True)

    def _before(self, values: np.ndarray) -> np.ndarray:
        """Values of the steps just before this one."""
        return values[max(0, self.index - BEFORE) : self.index]

    def _most_clipped(self) -> str:
        event = load_event(self.directory, self.index)
        tensors = event.tensors(self.index) if event is not None else {}
        if tensors:
            return _tensor_table(tensors)
        lowest = self.row.get("most_clipped")
        if lowest is None:
            return (
                "No tensors are recorded at this step: record.tensors=true "
                "records all, train.log_every=1 the most clipped ones"
            )
        if not lowest:
            return "No tensor is clipped more than the others."
        rows = [[short_name(key), f"{h:.3g}"] for key, h in lowest.items()]
        return markdown_table(["most clipped", "h"], rows, pad=True)

    def samples(self) -> range:
        """Return samples of the batch, in the order of the training dataset.

        Records that do not hold them come from steps that drew the next ones.
        """
        size = self._config().global_batch
        drawn = [self.index * size, (self.index + 1) * size]
        return range(*self.row.get("samples", drawn))

    def batch(self, tokenizer: str | None, num_samples: int | None) -> str:
        """Return the batch as text, a line per sample; at most `num_samples`.

        Without a tokenizer (see :func:`.find_tokenizer`) the tokens are
        numbers, unless the data is bytes.
        """
        config = self._config()
        data, samples = config.data, self.samples()
        total = config.train.max_steps * config.global_batch
        dataset, _ = make_task(config).build_datasets(max(total, samples.stop))
        expected = self.record.run.get("data", {})
        found = dataset.fingerprint
        if any(found.get(key) != value for key, value in expected.items()):
            raise ValueError(
                f"the data has changed since the run: it was {expected}, now "
                f"it is {found}: put it back"
            )
        own = BYTES if is_bytes(data.kind, data.prefix) else data.tokenizer
        name = tokenizer or own
        text = TextTokenizer(name) if name else None
        lines = []
        for index in samples[:num_samples]:
            ids = dataset[index]["input_ids"].tolist()
            shown = repr(text.decode(ids, special=True)) if text else ids
            where = f"sample {index}"
            if isinstance(dataset, TokenDataset):
                where += f", token {dataset.order[index]}"
            lines.append(f"{where}: {shown}")
        return "\n".join(lines)

    def _config(self) -> Any:
        values = json.loads(json.dumps(self.record.run["config"]))
        values["train"]["output_dir"] = str(self.directory)
        return parse_config(values)


def flight_text(directory: Path, step: int | None = None) -> str:
    """Describe a run's newest event, a step (None: the last finished one).

    And the steps before that.
    """
    event = load_event(directory, step)
    if event is None:
        what = f"no event with step {step}" if step is not None else "no event"
        raise ValueError(
            f"{directory / FOLDER} holds {what}: a run writes it at an alarm, "
            "a signal or an exception"
        )
    place = event.place(step)
    steps = event.first.step.tolist()
    lines = [
        f"{event.name}: {event.first.reason}",
        f"steps {steps[0]} to {steps[-1]}; ranks: {len(event.ranks)}",
        "",
        _step_table(event, place),
        f"step {steps[place]}:",
        _tensor_table(event.tensors(steps[place])),
    ]
    return "\n".join(lines)


def _step_table(event: Event, last: int) -> str:
    flight = event.first
    rows = []
    for i in range(max(0, last + 1 - NUM_STEPS), last + 1):
        step = int(flight.step[i])
        tensors = event.tensors(step).values()
        norms = [norm for norm, _, _ in tensors if math.isfinite(norm)]
        factors = [h for _, h, _ in tensors if not math.isnan(h)]
        first, stop = flight.samples[i]
        rows.append(
            [
                str(step),
                f"{event.loss(step):.4g}",
                f"{math.hypot(*norms):.4g}" if norms else "–",
                f"{min(factors):.3g}" if factors else "–",
                f"{first} to {stop - 1}",
            ]
        )
    head = ["step", "loss", "gradient norm", "lowest h", "samples"]
    return markdown_table(head, rows, pad=True)


def _tensor_table(tensors: Mapping[str, tuple[float, float, float]]) -> str:
    """Return the tensors with the largest norm over gamma, else norm.

    `tensors` are norm, h, and gamma after the step, by key; there are none in
    the steps in which a :class:`MeasuredClip` only clips.
    """
    if not tensors:
        return (
            "No tensor was measured at this step: Paddle's own clips are "
            "measured in the steps that are logged or saved."
        )

    def badness(key: str) -> float:
        norm, _, gamma = tensors[key]
        ratio = norm / gamma if 0 < gamma < math.inf else norm
        return ratio if math.isfinite(ratio) else math.inf

    worst = sorted(tensors, key=badness, reverse=True)[:NUM_TENSORS]
    rows = [
        [short_name(key), *(f"{value:.3g}" for value in tensors[key])]
        for key in worst
    ]
    return markdown_table(["tensor", "norm", "h", "gamma"], rows, pad=True)
