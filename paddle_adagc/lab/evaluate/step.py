# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One step of a run: its loss, its tensors, the text of its batch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.lab.data.config import DataConfig
from paddle_adagc.lab.data.datasets import TokenDataset
from paddle_adagc.lab.evaluate.flight import tensor_table
from paddle_adagc.lab.evaluate.tokenizer import BYTE_KINDS, BYTES, TextTokenizer
from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.record.flight import load_event
from paddle_adagc.lab.record.rows import read_rows
from paddle_adagc.lab.train.console import short_name
from paddle_adagc.lab.train.parse import parse_config
from paddle_adagc.lab.train.tasks import make_task
from paddle_adagc.stability.spike_score import spike_score

NUM_TENSORS = 10
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
        """Read a step of a run.

        Args:
            directory: Of the run.
            step: Index from 0, as in ``metrics.jsonl``.

        Raises:
            ValueError: The run has no such step.
        """
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
        is_spike = self.index in spike_score(losses).indices
        text = f"step {self.index}: loss {row['loss']:.4g}"
        text += ", a spike" * is_spike
        before = losses[max(0, self.index - BEFORE) : self.index]
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
        record, step = self.record, self.index
        norm = record.tensors["norm"][step]
        if np.isnan(record.tensors["clipped_norm"][step]).all():
            return self._most_clipped()
        before = record.tensors["norm"][max(0, step - BEFORE) : step]
        usual = (
            np.median(before, axis=0) if len(before) else np.full_like(norm, 0)
        )
        name = "usual norm"
        if step and np.isfinite(record.tensors["gamma"][step - 1]).any():
            usual, name = record.tensors["gamma"][step - 1], "gamma before"
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(usual > 0, norm / usual, 0.0)
        ratio = np.where(np.isfinite(norm), ratio, np.inf)
        order = np.argsort(-ratio, kind="stable")[:NUM_TENSORS]
        rows = [
            [
                short_name(record.tensor_names[i]),
                f"{norm[i]:.3g}",
                f"{usual[i]:.3g}",
                f"{ratio[i]:.3g}",
                f"{record.h[step, i]:.3g}",
            ]
            for i in order
        ]
        return markdown_table(
            ["tensor", "norm", name, "ratio", "h"], rows, pad=True
        )

    def _most_clipped(self) -> str:
        lowest = self.row.get("most_clipped")
        event = load_event(self.directory, self.index)
        tensors = event.tensors(self.index) if event is not None else {}
        if tensors:
            return tensor_table(tensors)
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
        config = self._config()
        size = config.global_batch
        drawn = [self.index * size, (self.index + 1) * size]
        return range(*self.row.get("samples", drawn))

    def batch(self, tokenizer: str | None, num_samples: int | None) -> str:
        """Return the batch as text, a line per sample.

        Args:
            tokenizer: See :func:`.tokenizer.tokenizer_of`; None: bytes, if
                the data is that. Otherwise the tokens are numbers.
            num_samples: At most so many samples; None: all.

        Raises:
            FileNotFoundError: The data is gone.
            ValueError: It is not the data that the run was trained on.
        """
        config = self._config()
        task = make_task(config)
        total = config.train.max_steps * config.global_batch
        dataset, _ = task.build_datasets(max(total, self.samples().stop))
        expected = self.record.run.get("data", {})
        found = dataset.fingerprint
        if any(found.get(key) != value for key, value in expected.items()):
            raise ValueError(
                f"the data has changed since the run: it was {expected}, now "
                f"it is {found}: put it back"
            )
        name = tokenizer or _tokenizer_of(config.data)
        text = TextTokenizer(name) if name else None
        lines = []
        for index in self.samples()[:num_samples]:
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


def _tokenizer_of(data: DataConfig) -> str | None:
    manifest = Path(f"{data.prefix}.manifest.json")
    is_bytes = data.kind in BYTE_KINDS
    if data.prefix and manifest.exists():
        kind = json.loads(manifest.read_text("utf-8"))["tokenizer"]["kind"]
        is_bytes = kind == BYTES
    return BYTES if is_bytes else data.tokenizer
