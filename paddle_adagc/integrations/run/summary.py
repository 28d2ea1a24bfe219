# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What ``adagc-run`` says at the end of a command."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from paddle_adagc.integrations.run.settings import shown_path


def summarize(
    records: Mapping[int, Mapping[str, Any]],
    outsiders: Mapping[int, str],
    files: Sequence[str],
) -> tuple[list[str], bool]:
    """Return lines about a command, and whether the clip made a step in it.

    Args:
        records: What its processes reported, by their ids.
        outsiders: Processes that ran Paddle without ``adagc-run``.
        files: Files with settings, found before the start.
    """
    lines: list[str] = []
    clipped: dict[tuple[str, str], list[int]] = defaultdict(list)
    for record in records.values():
        if "clip" in record:
            key = (record["clip"], record["where"])
            clipped[key].append(record["steps"])
    for (clip, where), steps in clipped.items():
        origin = f" (arguments from {where})" if where else ""
        lines.append(
            f"{clip.partition('(')[0]} made {max(steps)} steps in {len(steps)} "
            f"process{'es' * (len(steps) > 1)}{origin}"
        )
    for pid, record in records.items():
        if "without" in record:
            lines.append(f"not clipped in process {pid}: {record['without']}")
        elif "trainer" in record and "clip" not in record:
            lines.append(
                f"process {pid} made a {record['trainer']}, and no step with "
                "the clip"
            )
    for pid, reason in outsiders.items():
        lines.append(f"process {pid} ran Paddle without the clip: {reason}")
    used = {
        path for record in records.values() for path in record.get("used", ())
    }
    unused = [shown_path(path) for path in files if path not in used]
    lines += [f"the clip's settings of {path} were not used" for path in unused]
    if not clipped and not lines[: len(lines) - len(unused)]:
        lines.append(
            "no process made a Trainer of paddlenlp, paddleformers or "
            "paddlefleet, or stepped an optimizer of Paddle: nothing was "
            "clipped. In a loop of your own give the optimizer the clip: "
            "grad_clip=ClipGradByAdaGC()"
        )
    return lines, bool(clipped) and not unused
