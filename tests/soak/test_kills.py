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


def kill_trials(folder, layout):
    """Send three signals to each run; resume after each, and to the end."""
    rng = np.random.default_rng([*LAYOUTS].index(layout))
    num_ranks, sections = LAYOUTS[layout]
    prefix = prepare_text(folder / "text")
    file = folder / "run.yaml"

    def start(directory):
        length = {"max_steps": NUM_STEPS, "save_every": 2}
        write_config(file, directory, prefix, sections, **length)
        return ranks.start(file, num_ranks)

    whole = folder / "whole"
    answer = answer_of(start(whole), file)
    assert answer.status == 0, answer.text
    for number in range(REPEAT):
        directory = folder / f"run{number}"
        cases, answers = [], []
        goals = sorted(rng.integers(2, NUM_STEPS - 6, len(SIGNALS)))
        for i, goal in enumerate(goals):
            sent = SIGNALS[(number + i) % len(SIGNALS)]
            run = start(directory)
            cases.append(interrupt(run, directory, goal, sent, rng))
            answers.append(answer_of(run, file))
        last = answer_of(start(directory), file)
        for case, resumed in zip(cases, [*answers[1:], last], strict=True):
            text = fallback(resumed.text) if last.status == 0 else last.text
            answer = Answer(last.status, text)
            case = f"{layout}, {case}"
            yield judge("kills", case, answer, directory, RunRecord.load(whole))


def interrupt(run, directory, goal, sent, rng):
    """Send a signal to one rank, every second time in a save."""

    def wait(is_so):
        while all(rank.is_alive() for rank in run) and not is_so():
            time.sleep(0.0005)

    def num_steps():
        metrics = directory / METRICS
        return metrics.exists() and metrics.read_bytes().count(b"\n")

    wait(lambda: num_steps() >= goal)
    waits_for_save = bool(rng.integers(2))
    if waits_for_save:
        wait(lambda: is_saving(directory))
    seconds = rng.uniform(0, 0.02 if waits_for_save else SECONDS)
    time.sleep(seconds)
    rank = run[rng.integers(len(run))]
    if rank.is_alive():
        os.kill(rank.pid, sent)
    moment = "a save" if waits_for_save else f"step {goal}"
    return f"{sent.name} {1000 * seconds:.0f} ms after {moment}"


def answer_of(run, file):
    """Wait for the end; there is no status if a rank raised an exception."""
    ranks.wait_for(run)
    paths = [Path(f"{file}.log{rank}") for rank in range(len(run))]
    logs = [path.read_text(errors="replace") for path in paths]
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
    found = [*kill_trials(tmp_path, layout)]
    trials += found
    assert len(found) == len(SIGNALS) * REPEAT
    assert not [trial for trial in found if trial.outcome in LOST]
