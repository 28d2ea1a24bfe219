# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What to do now about a recorded event."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from paddle_adagc.record.files import RecordedRun
from paddle_adagc.report.what_if import arguments_of


def actions_for(
    run: RecordedRun, event: dict[str, Any], session: dict[str, Any]
) -> list[dict[str, str]]:
    """Return what to do now: a title, and what to type or to read."""
    actions = []
    start = event["start"]
    checkpoint = _checkpoint_before(run.directory, start)
    found = (
        str(checkpoint) if checkpoint else f"the last one before step {start}"
    )
    actions.append({"title": "Return to a checkpoint", "text": found})
    if not str(session.get("clip")).startswith("ClipGradByAdaGC"):
        actions.append(_switch(run.directory, start, checkpoint, session))
    if event["samples"] and event["kind"] == "batch":
        ranges = [
            f"{first} to {stop - 1}" for _, (first, stop) in event["samples"]
        ]
        actions.append(
            {"title": "Skip these samples", "text": ", ".join(ranges)}
        )
    elif event["kind"] in ("layer", "tensor"):
        names = ", ".join(g["key"] for g in event["guilty"][:3])
        actions.append({"title": "Look at", "text": names})
    return actions


def _switch(
    directory: Path, start: int, checkpoint: Path | None, session: Any
) -> dict[str, str]:
    """Say how to switch early enough: a warm-up is GlobalGC."""
    shadow = arguments_of(str(session.get("shadow"))) or {}
    t_start = shadow.get("t_start", 100)
    title, note, options, found = "there", "", "", checkpoint
    if not _has_state(checkpoint):
        found = _checkpoint_before(directory, start - t_start)
        title = f"at {found.name}" if found else f"{t_start} steps before"
        note = f". AdaGC acts like GlobalGC in its first {t_start} steps"
        options = "--missing-state start "
    if (directory.parent / "run.json").is_file():
        step = found.name.removeprefix("checkpoint-") if found else "STEP"
        text = (
            "tools/pretrain.py CONFIG clip.name=adagc --fork NEW_FOLDER "
            f"--at {step}"
        )
        return {"title": f"Switch to AdaGC {title}", "text": text + note}
    if shadow:
        options += f"--lambda-abs {shadow['lambda_abs']} "
        options += f"--init {shadow['init']} "
    text = f"adagc-run {options}-- COMMAND (of a Trainer)"
    text += "; in your loop record.switch()" * bool(shadow)
    return {"title": f"Switch to AdaGC {title}", "text": text + note}


def _checkpoint_before(directory: Path, step: int) -> Path | None:
    """Return the newest checkpoint beside the record, before a step."""
    found = {}
    for folder in (directory.parent, directory.parent.parent):
        for path in folder.glob("checkpoint-*"):
            number = re.fullmatch(r"checkpoint-(\d+)", path.name)
            if number and int(number[1]) <= step:
                found[int(number[1])] = path
    return found[max(found)] if found else None


def _has_state(checkpoint: Path | None) -> bool:
    return checkpoint is not None and any(checkpoint.glob("adagc_state*"))
