# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kills: a run's processes get a signal at random moments until it ends."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddlenlp  # noqa: F401  (once, before the forks)

import paddle_adagc.lab.train.run  # noqa: F401
from paddle_adagc.lab.record.files import METRICS, RunRecord
from paddle_adagc.lab.soak.forked import ForkedRun
from paddle_adagc.lab.soak.runs import (
    Answer,
    Main,
    Trial,
    is_saving,
    judge,
    prepare_text,
    values,
    write_config,
)

_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_NUM_STEPS = 60
_PER_RUN = 12
_SECONDS = 0.1
"""Longest wait between the step that was waited for and the signal."""


@dataclasses.dataclass(frozen=True)
class _Layout:
    """How a run is spread over processes."""

    num_ranks: int
    sections: dict[str, dict[str, Any]]
    """Values of the config that are not the one process's."""


def _spread(model: dict[str, Any] | None = None, **parallel: int) -> _Layout:
    record = {"tensors": False, "moments": False}
    sections: dict[str, dict[str, Any]] = {
        "parallel": parallel,
        "record": record,
        "model": model or {},
    }
    return _Layout(2, sections)


LAYOUTS = {
    "one process": _Layout(1, {}),
    "V2": _spread(sharding=2),
    "TP2": _spread(tp=2),
    "EP2": _spread({"moe_num_experts": 4}, ep=2, sharding=2),
    "PP2": _spread({"num_hidden_layers": 2}, pp=2),
}
"""What is killed."""


def kill_trials(
    folder: Path, main: Main, count: int, seed: int
) -> Iterator[Trial]:
    """Kill real processes; every run is resumed until it ends.

    Args:
        folder: Empty folder to work in.
        main: The command, for forked processes.
        count: Number of signals, in equal parts to every layout.
        seed: Of the moments.
    """
    prefix = prepare_text(folder)
    rng = np.random.default_rng(seed)
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        share = (count + number) // len(LAYOUTS)
        own = folder / name.replace(" ", "_")
        killing = _Killing(own, prefix, main, layout, rng)
        for first in range(0, share, _PER_RUN):
            for trial in killing.trials(first, min(_PER_RUN, share - first)):
                yield dataclasses.replace(trial, case=f"{name}, {trial.case}")


class _Killing:
    """Runs of one layout."""

    def __init__(
        self,
        folder: Path,
        prefix: Path,
        main: Main,
        layout: _Layout,
        rng: np.random.Generator,
    ) -> None:
        folder.mkdir()
        self._folder, self._prefix = folder, prefix
        self._main, self._layout, self._rng = main, layout, rng
        answer = self._start(folder / "whole").wait()
        if answer.status != 0:
            raise RuntimeError(f"{folder.name}: {answer.text}")
        self._whole = RunRecord.load(folder / "whole")

    def trials(self, first: int, number: int) -> Iterator[Trial]:
        """Send ``number`` signals to a run, and resume it after each."""
        directory = self._folder / f"run{first}"
        cases, answers = [], []
        for i, goal in enumerate(np.linspace(2, _NUM_STEPS - 6, number)):
            sent = _SIGNALS[(first + i) % len(_SIGNALS)]
            run = self._start(directory)
            cases.append(self._interrupt(run, directory, int(goal), sent))
            answers.append(run.wait())
        last = self._start(directory).wait()
        answers.append(last)
        for case, resumed in zip(cases, answers[1:], strict=True):
            text = _of_fallback(resumed.text) if last.status == 0 else last.text
            answer = Answer(last.status, text)
            yield judge("kills", case, answer, directory, self._whole)

    def _start(self, directory: Path) -> ForkedRun:
        config = values(
            directory, self._prefix, max_steps=_NUM_STEPS, save_every=2
        )
        for section, changes in self._layout.sections.items():
            config[section] = {**config.get(section, {}), **changes}
        file = write_config(self._folder / "run.yaml", config)
        logs = self._folder / "logs"
        return ForkedRun(self._main, file, self._layout.num_ranks, logs)

    def _interrupt(
        self, run: ForkedRun, directory: Path, goal: int, sent: signal.Signals
    ) -> str:
        """Send a signal to one rank, every second time in a save."""
        metrics = directory / METRICS
        while run.is_running() and not (
            metrics.exists() and metrics.read_bytes().count(b"\n") >= goal
        ):
            time.sleep(0.005)
        waits_for_save = bool(self._rng.integers(2))
        while run.is_running() and waits_for_save and not is_saving(directory):
            time.sleep(0.0005)
        seconds = self._rng.uniform(0, 0.02 if waits_for_save else _SECONDS)
        time.sleep(seconds)
        run.send(sent, int(self._rng.integers(self._layout.num_ranks)))
        moment = "a save" if waits_for_save else f"step {goal}"
        return f"{sent.name} {1000 * seconds:.0f} ms after {moment}"


def _of_fallback(text: str) -> str:
    """Return what a resumed run says of the checkpoints that it left out.

    The next signal cuts it short: its ranks then tell of each other's end, too.
    """
    return "\n".join(x for x in text.splitlines() if "resuming from" in x)
