# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Kills: a run's process gets a signal at random moments until it ends."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from paddle_adagc.lab.record.files import METRICS, RunRecord
from paddle_adagc.lab.soak.runs import (
    Main,
    Trial,
    command,
    give,
    judge,
    prepare_text,
    values,
    write_config,
)

_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_NUM_STEPS = 60
_PER_RUN = 6
_SECONDS = 0.3
"""Longest wait between the step that was waited for and the signal."""


def kill_trials(
    folder: Path, main: Main, count: int, seed: int
) -> Iterator[Trial]:
    """Kill real processes; every run is resumed until it ends.

    Args:
        folder: Empty folder to work in.
        main: The command.
        count: Number of signals.
        seed: Of the moments.
    """
    prefix = prepare_text(folder)
    length = {"max_steps": _NUM_STEPS, "save_every": 2}
    file = write_config(
        folder / "whole.yaml", values(folder / "whole", prefix, **length)
    )
    give(main, file)
    whole = RunRecord.load(folder / "whole")
    rng = np.random.default_rng(seed)
    for first in range(0, count, _PER_RUN):
        run = folder / f"run{first}"
        file = write_config(folder / "run.yaml", values(run, prefix, **length))
        number = min(_PER_RUN, count - first)
        goals = np.linspace(2, _NUM_STEPS - 6, number).astype(int)
        names = []
        for i, goal in enumerate(goals):
            sent = _SIGNALS[(first + i) % len(_SIGNALS)]
            seconds = rng.uniform(0, _SECONDS)
            names.append(f"{sent.name} after step {goal} + {seconds:.2f} s")
            _kill(file, run, int(goal), seconds, sent)
        answer = give(main, file)
        for name in names:
            yield judge("kills", name, answer, run, whole)


def _kill(
    config_file: Path, run: Path, goal: int, seconds: float, sent: int
) -> None:
    process = subprocess.Popen(
        command(config_file),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    metrics = run / METRICS
    while process.poll() is None:
        time.sleep(0.005)
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= goal:
            time.sleep(seconds)
            break
    process.send_signal(sent)
    process.wait()
