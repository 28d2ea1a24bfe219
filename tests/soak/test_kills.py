# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kills: a run's processes get a signal at random moments until it ends.

The record of the run that ends is that of an uninterrupted one, bit for bit.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from soak import ranks
from soak.runs import Answer, is_saving, judge, prepare_text, write_config
from soak.trials import LOST, REPEAT

from paddle_adagc.lab.record.files import METRICS, RunRecord

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
NUM_STEPS = 60
PER_RUN = 12
SECONDS = 0.1
"""Longest wait between the step that was waited for and the signal."""


def spread(model=None, **parallel):
    """A layout on two ranks; tensors and moments are not recorded there."""
    record = {"tensors": False, "moments": False}
    return 2, {"parallel": parallel, "record": record, "model": model or {}}


LAYOUTS = {
    "one process": (1, {}),
    "V2": spread(sharding=2),
    "TP2": spread(tp=2),
    "EP2": spread({"moe_num_experts": 4}, ep=2, sharding=2),
    "PP2": spread({"num_hidden_layers": 2}, pp=2),
}
"""What is killed -> number of ranks, sections of the config."""


class Killing:
    """Runs of one layout.

    Args:
        folder: Empty folder.
        layout: One of ``LAYOUTS``.
    """

    def __init__(self, folder, layout):
        self._folder = folder
        self._num_ranks, self._sections = LAYOUTS[layout]
        self._number = [*LAYOUTS].index(layout)
        self._rng = np.random.default_rng(self._number)
        self._prefix = prepare_text(folder / "text")
        answer = self._answer(self._start(folder / "whole"))
        assert answer.status == 0, answer.text
        self._whole = RunRecord.load(folder / "whole")

    def trials(self, name, num_signals):
        """Send signals to a run, resume it after each, and to its end."""
        directory = self._folder / name
        cases, answers = [], []
        for i, goal in enumerate(np.linspace(2, NUM_STEPS - 6, num_signals)):
            sent = SIGNALS[(self._number + i) % len(SIGNALS)]
            run = self._start(directory)
            cases.append(self._interrupt(run, directory, int(goal), sent))
            answers.append(self._answer(run))
        last = self._answer(self._start(directory))
        for case, resumed in zip(cases, [*answers[1:], last], strict=True):
            text = fallback(resumed.text) if last.status == 0 else last.text
            answer = Answer(last.status, text)
            yield judge("kills", case, answer, directory, self._whole)

    def _start(self, directory):
        file = write_config(
            self._folder / "run.yaml",
            directory,
            self._prefix,
            self._sections,
            max_steps=NUM_STEPS,
            save_every=2,
        )
        return ranks.start(file, self._num_ranks)

    def _interrupt(self, run, directory, goal, sent):
        """Send a signal to one rank, every second time in a save."""

        def wait(is_so):
            while ranks.are_running(run) and not is_so():
                time.sleep(0.0005)

        def num_steps():
            metrics = directory / METRICS
            return metrics.exists() and metrics.read_bytes().count(b"\n")

        wait(lambda: num_steps() >= goal)
        waits_for_save = bool(self._rng.integers(2))
        if waits_for_save:
            wait(lambda: is_saving(directory))
        seconds = self._rng.uniform(0, 0.02 if waits_for_save else SECONDS)
        time.sleep(seconds)
        rank = run[self._rng.integers(self._num_ranks)]
        if rank.is_alive():
            os.kill(rank.pid, sent)
        moment = "a save" if waits_for_save else f"step {goal}"
        return f"{sent.name} {1000 * seconds:.0f} ms after {moment}"

    def _answer(self, run):
        """Wait for the end; without a status if a rank raised an exception."""
        ranks.wait_for(run)
        logs = [
            Path(f"{self._folder}/run.yaml.log{i}").read_text(errors="replace")
            for i in range(self._num_ranks)
        ]
        for log in logs:
            if "Traceback" in log:
                return Answer(None, log)
        return Answer(run[0].exitcode, logs[0])


def fallback(text):
    """What a resumed run says of the checkpoints that it left out.

    The next signal cuts it short: its ranks then tell of each other's end, too.
    """
    return "\n".join(x for x in text.splitlines() if "resuming from" in x)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_run_resumes(layout, tmp_path, trials):
    killing = Killing(tmp_path, layout)
    found = []
    for first in range(0, REPEAT, PER_RUN):
        num_signals = min(PER_RUN, REPEAT - first)
        found += killing.trials(f"run{first}", num_signals)
    trials += found
    assert len(found) == REPEAT
    assert not [trial for trial in found if trial.outcome in LOST]
