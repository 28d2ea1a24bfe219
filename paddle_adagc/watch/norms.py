# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms of any trainer, from a CSV file, and what AdaGC would have done."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paddle_adagc.watch.replay import Settings, replay
from paddle_adagc.watch.text import table
from paddle_adagc.watch.what_if import OPEN_LOOP

_STEP = ("step", "_step", "global_step", "iteration", "iter", "trainer/step")
_TENSOR = ("tensor", "name", "tag", "key", "parameter", "param")
_NORM = ("norm", "value", "grad_norm")
_NUM_SHOWN = 8


def read_norms(
    path: Path, match: str = ""
) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Read norms before the clip, a value per step and tensor.

    Either three columns, step, tensor and norm (``step``, ``tag``, ``value`` of
    a TensorBoard export, too), or a column for each tensor beside the step's,
    as W&B writes them; its ``__MIN`` and ``__MAX`` columns are left out.

    Args:
        path: The file, with a line of names.
        match: Only tensors with this text in their names.

    Returns:
        Steps, names, and norms ``[num_steps, num_tensors]``; NaN where missing.

    Raises:
        ValueError: The file has no such columns, or a value is no number.
    """
    found: dict[int, dict[str, float]] = {}
    names: dict[str, int] = {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        head = [name.strip() for name in next(reader, [])]
        try:
            for step, name, text in _cells(head, reader):
                if match in name:
                    value = float(text)
                    value = math.inf if math.isnan(value) else value
                    found.setdefault(step, {})[name] = value
                    names.setdefault(name, len(names))
        except ValueError as error:
            where = f"{path}, line {reader.line_num}"
            raise ValueError(f"{where}: {error}") from None
    if not found:
        raise ValueError(f"{path} has no norms of tensors named like {match!r}")
    steps = sorted(found)
    norms = np.full((len(steps), len(names)), np.nan)
    for row, step in zip(norms, steps, strict=True):
        for name, value in found[step].items():
            row[names[name]] = value
    return np.array(steps), [*names], norms


def _cells(
    head: Sequence[str], rows: Iterator[list[str]]
) -> Iterator[tuple[int, str, str]]:
    """Yield step, name of the tensor, and the norm as it stands there."""
    small = [name.lower() for name in head]
    at, tensor, norm = (
        next((small.index(name) for name in names if name in small), None)
        for names in (_STEP, _TENSOR, _NORM)
    )
    if at is None:
        raise ValueError(
            "there is no column named step, iteration or the like: the columns "
            f"are {', '.join(head[:8])[:200]}"
        )
    for cells in rows:
        named = dict(zip(head, cells, strict=False))
        step = named.pop(head[at], "").strip()
        if not step:
            continue
        if not 0 <= float(step) < 2**53:
            raise ValueError(f"{step[:40]!r} is no step")
        if tensor is not None and norm is not None:
            key = named.get(head[tensor], "")
            named = {key: named.get(head[norm], "")}
        for name, text in named.items():
            if text.strip() and not name.endswith(("__MIN", "__MAX")):
                yield int(float(step)), name, text


def replay_lines(
    steps: np.ndarray, names: list[str], norms: np.ndarray, settings: Settings
) -> list[str]:
    """Say what AdaGC would have done with these norms."""
    start = min(settings.t_start, len(steps))
    first, last = steps[0], steps[-1]
    lines = [f"{len(steps)} steps ({first} to {last}), {len(names)} tensors"]
    if start:
        finite = np.where(np.isfinite(norms[:start]), norms[:start], 0.0)
        total = np.sqrt((finite**2).sum(1))
        cut = float(np.mean(total > settings.lambda_abs))
        lines.append(
            f"start, {start} steps: in {cut:.0%} of them the global norm "
            f"(median {np.median(total):.3g}) is above lambda_abs "
            f"{settings.lambda_abs:g}, and AdaGC cuts it to that"
        )
    h = replay(norms, settings).h
    h = np.where(norms > 0, h, np.nan)[start:]
    if np.isnan(h).all():
        return [*lines, "no norms after the start: there is no more to tell"]
    clipped = np.mean(h[~np.isnan(h)] < 1)
    lines.append(
        f"then: AdaGC clips {clipped:.0%} of the tensors; median h "
        f"{np.nanmedian(h):.3g}"
    )
    lines += ["", *_lowest(steps[start:], names, norms[start:], h), ""]
    if (np.diff(steps) > 1).any():
        lines.append("Some steps are missing: gamma follows more slowly here.")
    return [*lines, OPEN_LOOP]


def _lowest(
    steps: np.ndarray, names: list[str], norms: np.ndarray, h: np.ndarray
) -> list[str]:
    """Tabulate the tensors that would be cut most, each at its worst step."""
    filled = np.where(np.isnan(h), np.inf, h)
    lowest, at = filled.min(0), filled.argmin(0)
    clipped = (h < 1).sum(0) / np.maximum((~np.isnan(h)).sum(0), 1)
    rows = [
        {
            "tensor": names[i],
            "most at step": int(steps[at[i]]),
            "norm": float(norms[at[i], i]),
            "h": float(lowest[i]),
            "clipped": f"{clipped[i]:.0%}",
        }
        for i in np.argsort(lowest, kind="stable")[:_NUM_SHOWN].tolist()
        if lowest[i] < 1
    ]
    if not rows:
        return ["no tensor would be clipped"]
    return table({name: name for name in rows[0]}, rows)
