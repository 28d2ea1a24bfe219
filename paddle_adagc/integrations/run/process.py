# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What clips, and what is recorded, in a process of ``adagc-run``'s command."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import time
import weakref
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from paddle_adagc.integrations.run import steps
from paddle_adagc.integrations.run.reports import Reporter
from paddle_adagc.integrations.run.settings import (
    DEFAULT,
    MARK,
    OF_RECORDS,
    Settings,
    combined,
    is_settings_file,
    read_settings,
    shown_path,
)

VARIABLE = "PADDLE_ADAGC_RUN"
"""Environment variable: a :class:`Process`' arguments, as JSON."""


@functools.cache
def process() -> Process:
    """Return what ``adagc-run`` knows of this process."""
    return Process(**json.loads(os.environ[VARIABLE]))


class Process:
    """Which clip is in force in this process, and what was reported of it.

    Args:
        options: Of the command line: the clip's arguments, the record's.
        files: Settings that ``adagc-run`` found, by file.
        given: The one of ``--settings``.
        strict: Raise an error where the clip is not in force.
        watches: Every clip stays as it is.
        record: Folder of the record; True: the default one; False: none.
        address: Of the ``Listener`` of ``adagc-run``.
    """

    def __init__(
        self,
        options: dict[str, Any],
        files: dict[str, Settings],
        given: str | None,
        strict: bool,
        watches: bool,
        record: bool | str,
        address: dict[str, Any],
    ) -> None:
        self._options, self._strict = options, strict
        self._watches, self._record = watches, record
        self._num_records: dict[str, int] = defaultdict(int)
        self._records: list[str] = []
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._files, self._given = files, given
        self._parsed: Settings | None = None
        self._used: set[str] = set()
        self._trainers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._reported: weakref.WeakSet[Any] = weakref.WeakSet()
        self._warned: weakref.WeakSet[Any] = weakref.WeakSet()
        self._steps, self._sent = 0, 0.0
        self._where = ""
        try:
            self._reporter = Reporter(address)
        except ProcessLookupError as error:
            raise SystemExit(f"adagc-run: {error}: this process ends") from None
        atexit.register(self._tell_steps)

    def saw(self, found: Settings) -> None:
        """Remember settings that stood among the Trainer's arguments."""
        self._parsed = found

    def where(self, default: bool | str) -> bool | str:
        """Return the folder of the next record; that of the second is DIR-2."""
        folder = default if self._record is True else self._record
        if isinstance(folder, bool):
            return folder
        self._num_records[folder] += 1
        number = self._num_records[folder]
        return folder if number == 1 else f"{folder}-{number}"

    def settings(
        self, opened: Iterable[str], given: Iterable[Any] = ()
    ) -> Settings:
        """Return what a new Trainer gets, from the file that it was read from.

        Without ``clip`` its own stays.

        Args:
            opened: YAML and JSON files that this process opened.
            given: What the Trainer is made of.

        Raises:
            ValueError: Two files of this process hold different settings.
        """
        if self._watches:
            return self._options
        pool: dict[str, Settings] = {}
        for path in opened:
            found = self._files.get(path)
            if found is None and is_settings_file(path):
                found = read_settings(path, [])
            pool |= {path: found} if found else {}
        marks = (vars(a).get(MARK) for a in given if hasattr(a, "__dict__"))
        parsed = next(filter(None, marks), self._parsed)
        if parsed is not None:
            same = [path for path in pool if pool[path] == parsed]
            pool = {(same or ["the Trainer's arguments"])[0]: parsed}
        if self._given:
            pool = {self._given: self._files[self._given], **pool}
        pool = pool or self._files
        values = [*pool.values()]
        if any(value != values[0] for value in values):
            raise ValueError(
                f"adagc-run: the sections 'clip' of {' and '.join(pool)} "
                "differ: keep one"
            )
        self._where = shown_path(next(iter(pool), ""))
        self._used |= {p for p, v in self._files.items() if v in values[:1]}
        self._reporter.tell(used=[*self._used])
        return combined(values[0] if values else {}, self._options)

    def made(self, trainer: Any) -> None:
        """Remember a Trainer that has the clip."""
        self._trainers.add(trainer)
        self._reporter.tell(trainer=type(trainer).__name__)

    def keeps_its_clip(self, owner: Any, *, in_loop: bool = False) -> None:
        """Name the options without use to a Trainer or optimizer of the script.

        Raises:
            RuntimeError: There are some, in a strict run.
        """
        names = [n for n in self._options if not (in_loop and n in OF_RECORDS)]
        if self._record is not True and not in_loop:
            names.append("record" if self._record else "no_record")
        if not names or owner in self._warned:
            return
        self._warned.add(owner)
        words = ", ".join("--" + name.replace("_", "-") for name in names)
        message = (
            f"{type(owner).__name__} has its clip from the script, so {words} "
            "would not be used: leave it out, or take the clip out of the "
            "script"
        )
        if self._strict:
            raise RuntimeError(f"adagc-run: {message}")
        say(message)

    def before_step(self, optimizer: Any) -> tuple[int, int] | None:
        """Record an optimizer that begins a step; check its clip.

        Returns:
            What :meth:`after_step` needs; None: the clip is another one.

        Raises:
            RuntimeError: It has not the clip of its Trainer, in a strict run.
        """
        if optimizer not in self._seen:
            self._begin_record(optimizer)
        if self._watches:
            return None
        clip, owner = steps.clip_of(optimizer), self._owner(optimizer)
        if owner is None and self._steps == 0 and self._trainers:
            owner = next(iter(self._trainers))
        if owner is None and not steps.is_ours(clip):
            self._name_foreign(optimizer, clip)
            return None
        if owner is None:
            self.keeps_its_clip(optimizer, in_loop=True)
        expected = getattr(owner, "_adagc_clip", clip)
        if clip is None or clip is not expected:
            name, now = steps.shown(optimizer), steps.described(clip)
            self._not_in_force(
                f"{type(owner).__name__}: {name} clips with {now} and not "
                f"with {expected}{steps.replaced_at(optimizer)}",
                optimizer,
            )
            return None
        return steps.calls_of(clip)

    def after_step(self, optimizer: Any, given: tuple[int, int] | None) -> None:
        """Count a step; tell of the first one that the clip made.

        Raises:
            RuntimeError: The clip made no step, in a strict run.
        """
        if given is None:
            return
        clip, (num_before, calls) = steps.clip_of(optimizer), given
        num_steps, calls_now = steps.calls_of(clip)
        if steps.is_ours(clip) and calls_now == calls:
            if not steps.was_skipped(optimizer):
                name = steps.shown(optimizer)
                self._not_in_force(f"{name} stepped without {clip}", optimizer)
            return
        self._steps += num_steps - num_before if num_steps else 1
        if optimizer not in self._reported:
            self._reported.add(optimizer)
            self._tell_in_force(clip, num_before)
        elif time.monotonic() - self._sent > 1:
            self._sent = time.monotonic()
            self._reporter.tell(waits=False, steps=self._steps)

    def _begin_record(self, optimizer: Any) -> None:
        """Record an optimizer, unless its Trainer does; say where."""
        import paddle.distributed as dist

        from paddle_adagc.integrations.recording import open_record
        from paddle_adagc.record.recorder import record_of

        self._seen.add(optimizer)
        record, kind = record_of(optimizer), type(optimizer).__name__
        if is_loop := record is None:
            chosen = self._of_loop(kind)
            is_seen = kind != "LBFGS"  # which calls no clip
            folder = self.where(DEFAULT) if is_seen else False
            if not isinstance(folder, bool):
                record = open_record(folder, optimizer, in_step=True, **chosen)
                if record is None:
                    self._reporter.tell(unrecorded=os.path.abspath(folder))
        if record is not None and dist.get_rank() == 0:
            self._records.append(str(record.directory))
            self._reporter.tell(records=self._records)
            line = f"records {kind} into {shown_path(self._records[-1])}"
            if record.start and is_loop:
                line += (
                    f", which goes on after step {record.start - 1}; give "
                    "another run its own --record DIR"
                )
            say(line)

    def _of_loop(self, kind: str) -> Settings:
        """Return a record's options; name those without use in a loop."""
        chosen = {k: v for k, v in self._options.items() if k in OF_RECORDS}
        if chosen.pop("stop_on", None):
            say(f"--stop-on does not end a loop without a Trainer ({kind})")
        if kind == "LBFGS" and chosen:
            say("--skip-above cannot hold LBFGS back: its step updates often")
        return chosen

    def _owner(self, optimizer: Any) -> Any:
        """Return the Trainer that an optimizer belongs to, if any."""
        from paddle_adagc.integrations.optimizer import innermost

        optimizer = innermost(optimizer)
        for trainer in self._trainers:
            if innermost(getattr(trainer, "optimizer", None)) is optimizer:
                return trainer
        return None

    def _tell_in_force(self, clip: Any, num_before: int) -> None:
        import paddle.distributed as dist

        text = steps.described(clip)
        tensors = getattr(getattr(clip, "_progress", None), "tensors", None)
        units = getattr(tensors, "units", {})
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        self._reporter.tell(clip=text, where=self._where, steps=self._steps)
        if rank:
            return
        parts = [f"{len(tensors.keys)} tensors"] if tensors else []
        if units:
            number = sum(map(len, units.values()))
            parts[0] += f" ({number} are units of {len(units)} parameters)"
        parts += [f"rank 0 of {num_ranks}"] if num_ranks > 1 else []
        parts += [f"arguments from {self._where}"] if self._where else []
        if num_before:
            parts.append(f"state resumed after {num_before} steps")
        elif steps.is_ours(clip) and clip.t_start:
            parts.append(f"warm-up of {clip.t_start} steps")
        say(f"{text} is in force: {', '.join(parts) or 'no state'}")

    def _name_foreign(self, optimizer: Any, clip: Any) -> None:
        """Name an optimizer that no Trainer made, once."""
        if optimizer in self._warned:
            return
        self._warned.add(optimizer)
        shown = steps.shown(optimizer)
        self._reporter.tell(without=f"{shown} clips with {clip}")
        norm = getattr(clip, "clip_norm", None)  # of Paddle's clips
        bound = self._options.get("lambda_abs", norm)
        given = f"lambda_abs={bound}" if bound else ""
        say(
            f"{shown} steps with {clip}: no Trainer made it, so adagc-run "
            "does not change it. Two lines give it AdaGC:\n"
            f"    clip = paddle_adagc.ClipGradByAdaGC({given})"
            "; clip.bind(model)\n"
            f"    {type(optimizer).__name__}(..., grad_clip=clip)"
        )

    def _not_in_force(self, message: str, optimizer: Any) -> None:
        self._reporter.tell(without=message)
        if self._strict:
            raise RuntimeError(
                f"adagc-run: {message}. To train so: --no-strict-run"
            )
        if optimizer not in self._warned:
            self._warned.add(optimizer)
            say(message)

    def _tell_steps(self) -> None:
        if self._steps:
            self._reporter.tell(steps=self._steps)


def say(text: str) -> None:
    """Print a line of ``adagc-run`` in a process of the command."""
    print(f"adagc-run: {text}", file=sys.stderr, flush=True)
