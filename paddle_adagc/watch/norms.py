# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Norms of any trainer, from a CSV file, and what AdaGC would have done."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    table: dict[tuple[int, str], float] = {}
    for line, step, name, text in _cells(path):
        if match in name and text.strip():
            value = _number(path, line, text)
            table[step, name] = math.inf if math.isnan(value) else value
    if not table:
        raise ValueError(f"{path} has no norms of tensors named like {match!r}")
    steps = sorted({step for step, _ in table})
    names = list(dict.fromkeys(name for _, name in table))
    place = {step: i for i, step in enumerate(steps)}
    column = {name: i for i, name in enumerate(names)}
    norms = np.full((len(steps), len(names)), np.nan)
    for (step, name), value in table.items():
        norms[place[step], column[name]] = value
    return np.array(steps), names, norms


def _cells(path: Path) -> Iterator[tuple[int, int, str, str]]:
    """Yield line, step, name of the tensor, and the norm as it stands there."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        head = [name.strip() for name in next(rows, [])]
        small = [name.lower() for name in head]
        at, tensor = _place(small, _STEP), _place(small, _TENSOR)
        norm = _place(small, _NORM)
        if at is None:
            raise ValueError(
                f"{path} has no column named step, iteration or the like: it "
                f"has {', '.join(head[:8])[:200]}"
            )
        chosen = [
            i
            for i, name in enumerate(head)
            if i != at and not name.endswith(("__MIN", "__MAX"))
        ]
        for cells in rows:
            if len(cells) <= at or not cells[at].strip():
                continue
            line = rows.line_num
            step = _number(path, line, cells[at])
            if not 0 <= step < 2**53:
                text = cells[at][:40]
                raise ValueError(f"{path}, line {line}: {text!r} is no step")
            if tensor is None or norm is None:
                for i in chosen:
                    if i < len(cells):
                        yield line, int(step), head[i], cells[i]
            elif len(cells) > max(tensor, norm):
                yield line, int(step), cells[tensor], cells[norm]


def _place(head: list[str], names: tuple[str, ...]) -> int | None:
    return next((head.index(name) for name in names if name in head), None)


def _number(path: Path, line: int, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"{path}, line {line}: {text[:40]!r} is no number"
        ) from None


def replay_lines(
    steps: np.ndarray, names: list[str], norms: np.ndarray, settings: Settings
) -> list[str]:
    """Say what AdaGC would have done with these norms."""
    h = replay(norms, settings).h
    known = norms > 0
    start = min(settings.t_start, len(steps))
    lines = [
        f"{len(steps)} steps ({steps[0]} to {steps[-1]}), {len(names)} tensors"
    ]
    finite = np.where(np.isfinite(norms), norms, 0.0)
    total = np.sqrt(np.nansum(finite**2, 1))
    if start:
        cut = float(np.mean(total[:start] > settings.lambda_abs))
        lines.append(
            f"start, {start} steps: the global norm (median "
            f"{np.median(total[:start]):.3g}) is above lambda_abs "
            f"{settings.lambda_abs:g} in {cut:.0%}, and is then cut to it"
        )
    if not known[start:].any():
        return [*lines, "no norms after the start: nothing more to tell"]
    later = np.where(known, h, np.nan)[start:]
    clipped = float(np.mean(later[known[start:]] < 1))
    lines.append(
        f"then: {clipped:.0%} of the tensors are clipped, median h "
        f"{np.nanmedian(later):.3g}"
    )
    lines += ["", *_lowest(steps[start:], names, norms[start:], later), ""]
    if (np.diff(steps) > 1).any():
        lines.append("Some steps are missing: gamma follows more slowly here.")
    return [*lines, OPEN_LOOP]


def _lowest(
    steps: np.ndarray, names: list[str], norms: np.ndarray, h: np.ndarray
) -> list[str]:
    """Tabulate the tensors that would be cut most, each at its worst step."""
    filled = np.where(np.isnan(h), 2.0, h)
    worst = filled.argmin(0)
    rows: list[list[Any]] = []
    for i in np.argsort(filled.min(0), kind="stable")[:_NUM_SHOWN].tolist():
        if filled[worst[i], i] < 1:
            mine = h[:, i][~np.isnan(h[:, i])]
            rows.append(
                [
                    names[i],
                    str(steps[worst[i]]),
                    f"{norms[worst[i], i]:.3g}",
                    f"{filled[worst[i], i]:.3g}",
                    f"{np.mean(mine < 1):.0%}",
                ]
            )
    if not rows:
        return ["no tensor would be clipped"]
    return table(["tensor", "most at step", "norm", "h", "clipped"], rows)
