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
    watches: bool,
) -> tuple[list[str], bool]:
    """Return lines about a command, and whether it did what it was to do.

    That is: the clip made a step in it; or, if ``watches``, it was recorded.

    Args:
        records: What its processes reported, by their ids.
        outsiders: Processes that ran Paddle without ``adagc-run``.
        files: Files with settings, found before the start.
        watches: Its clip stays.
    """
    places = [p for r in records.values() for p in r.get("records", ())]
    shown = [f"look at it: adagc-report {shown_path(p)}" for p in places]
    lines = [
        f"process {pid} ran Paddle without adagc-run: {reason}"
        for pid, reason in outsiders.items()
    ]
    if watches:
        failed = [
            r["unrecorded"] for r in records.values() if "unrecorded" in r
        ]
        if failed and not places:
            lines.append(
                f"nothing was recorded in {shown_path(failed[0])}: a warning "
                "above has the reason"
            )
        elif not places:
            lines.append(
                "the command ended, and no process of it made a step with an "
                "optimizer of Paddle: nothing was recorded"
            )
        return [*lines, *shown], bool(places or failed)
    of_clips, is_clipped = _about_clips(records, files, is_known=bool(lines))
    return [*of_clips, *lines, *shown], is_clipped


def _about_clips(
    records: Mapping[int, Mapping[str, Any]],
    files: Sequence[str],
    *,
    is_known: bool,
) -> tuple[list[str], bool]:
    lines: list[str] = []
    clipped: dict[tuple[str, str], list[int]] = defaultdict(list)
    for record in records.values():
        if "clip" in record:
            key = (record["clip"], record["where"])
            clipped[key].append(record["steps"])
    for (clip, where), steps in clipped.items():
        origin = f" (arguments from {where})" if where else ""
        name = clip.partition("(")[0].strip()
        lines.append(
            f"{name} made {max(steps)} steps in {len(steps)} "
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
    used = {
        path for record in records.values() for path in record.get("used", ())
    }
    unused = [shown_path(path) for path in files if path not in used]
    lines += [f"the clip's settings of {path} were not used" for path in unused]
    if not clipped and not is_known and len(lines) == len(unused):
        lines.append(
            "no process made a Trainer of paddlenlp, paddleformers or "
            "paddlefleet, or stepped an optimizer of Paddle: nothing was "
            "clipped. In a loop of your own give the optimizer the clip: "
            "grad_clip=ClipGradByAdaGC()"
        )
    return lines, bool(clipped) and not unused
