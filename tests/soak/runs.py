# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The run that is put to the test, and what became of it.

A run is a command in this process, or processes forked from one that has
imported everything and never trained: real commands, which may be killed.
"""

import contextlib
import gc
import io
import json
import multiprocessing
import os
import signal
import socket
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
from lab.train.runs import make_values
from paddle.distributed import parallel
from pages import load_tool

from paddle_adagc.lab.data.config import PrepareConfig
from paddle_adagc.lab.data.prepare import prepare
from paddle_adagc.lab.gloo.rendezvous import free_port
from paddle_adagc.lab.record.files import METRICS, RunRecord
from paddle_adagc.lab.train.checkpoints import COMPLETE
from paddle_adagc.lab.train.processes import leave
from paddle_adagc.lab.train.trainer import PretrainTrainer

REPEAT = int(os.environ.get("SOAK_REPEAT", "1"))
"""How often the long tests repeat their trials."""

_LOGGED = ("nonfinite", "clipped_fraction", "global_grad_norm")
"""A run that was stopped has them of that step, too."""

main = load_tool("pretrain").main
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["paddlenlp", __name__])


class Answer(NamedTuple):
    """A command's exit status (None: an exception), and what it said."""

    status: int | None
    text: str


def prepare_text(folder):
    """Make a small dataset with its manifest; return its prefix."""
    folder.mkdir(exist_ok=True)
    text = folder / "text.txt"
    rng = np.random.default_rng(0)
    lines = ["".join(map(chr, rng.integers(97, 123, 60))) for _ in range(200)]
    text.write_text("\n".join(lines) + "\n")
    return prepare_corpus(text, folder / "corpus")


def prepare_corpus(text, prefix):
    """Make a dataset of bytes; return its prefix."""
    config = PrepareConfig(
        inputs=(str(text),),
        output=str(prefix),
        tokenizer="bytes",
        num_workers=1,
    )
    prepare(config)
    return prefix


def write_config(path, directory, prefix, sections=None, **train):
    """Write the config of a run of a second; return its path."""
    values = make_values(directory, **{"save_every": 4, **train})
    values["data"] |= {"kind": "mmap", "prefix": str(prefix)}
    for section, changes in (sections or {}).items():
        values[section] = {**values.get(section, {}), **changes}
    path.write_text(json.dumps(values))
    return path


def run_command(config_file, *options):
    """Give ``tools/pretrain.py``'s command in this process."""
    text = io.StringIO()
    try:
        with (
            contextlib.redirect_stderr(text),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            status = main([str(config_file), *options])
    except Exception:
        return Answer(None, traceback.format_exc())
    finally:
        gc.collect()  # closes the files of a run that did not end
    return Answer(status, text.getvalue().strip())


def uninterrupted(directory, prefix, **train):
    """The record of a run that nothing happens to."""
    path = directory.with_suffix(".yaml")
    answer = run_command(write_config(path, directory, prefix, **train))
    assert answer == (0, "")
    return RunRecord.load(directory)


@contextlib.contextmanager
def at_step(step, action):
    """Do something when a run in this process comes to a step."""
    training_step = PretrainTrainer.training_step

    def acting(self, *args, **options):
        if self.state.global_step == step:
            action()
        return training_step(self, *args, **options)

    with mock.patch.object(PretrainTrainer, "training_step", acting):
        yield


def interrupt():
    """End a run without giving it a chance to save (``at_step``)."""
    raise InterruptedError


def wait_for_moment(ranks, directory, num_steps, in_save, rng):
    """Wait until a run has made steps, for a random time; or for its save.

    It ends early when a rank ends.
    """

    def has_come():
        metrics = directory / METRICS
        lines = metrics.read_bytes() if metrics.exists() else b""
        return lines.count(b"\n") >= num_steps

    def is_saving():
        folders = directory.glob("checkpoint-*")
        return any(not (path / COMPLETE).exists() for path in folders)

    for is_so in (has_come, is_saving) if in_save else (has_come,):
        while all(rank.is_alive() for rank in ranks) and not is_so():
            time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.02 if in_save else 0.1))


def start(config_file, num_ranks):
    """Start the command's processes; all write to ``<config_file>.log``."""
    Path(f"{config_file}.log").unlink(missing_ok=True)
    arguments = str(config_file), num_ranks, free_port()
    ranks = [
        FORKS.Process(target=_become, args=(rank, *arguments))
        for rank in range(num_ranks)
    ]
    for rank in ranks:
        rank.start()
    return ranks


def _become(rank, config_file, num_ranks, port):
    """The life of one rank; the environment is that of Paddle's launcher."""
    host = "127.0.0.1"
    with open(f"{config_file}.log", "ab") as log:
        os.dup2(log.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    endpoints = [f"{host}:{port + 1 + i}" for i in range(num_ranks)]
    os.environ |= {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_RANK_IN_NODE": str(rank),
        "PADDLE_TRAINERS_NUM": str(num_ranks),
        "PADDLE_MASTER": f"{host}:{port}",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_DISTRI_BACKEND": "gloo",
    }
    parallel._global_parallel_env = None  # read at an import
    # Wait until rank 0 listens: Paddle pauses 3 s after a refused attempt.
    while rank and socket.socket().connect_ex((host, port)):
        time.sleep(0.02)
    leave(main([config_file]))


def answer_of(ranks, config_file):
    """Wait for the end; like a launcher, end the ranks left behind.

    There is no status if a rank raised an exception.
    """
    assert wait([rank.sentinel for rank in ranks], 120.0), "no rank ended"
    was_killed = -signal.SIGKILL in [rank.exitcode for rank in ranks]
    end = time.monotonic() + (0.3 if was_killed else 5.0)
    for rank in ranks:
        rank.join(max(end - time.monotonic(), 0))
        rank.kill()
        rank.join()
    text = Path(f"{config_file}.log").read_text(errors="replace")
    return Answer(None if "Traceback" in text else ranks[0].exitcode, text)


def judge(case, answer, directory, whole):
    """Fail if a run lost anything without a word; else say how it ended.

    It ``"resumed"``: the record of an uninterrupted run; ``"fell back"``: the
    same, after a message; or ``"refused"``: a message alone.
    """
    status, text = answer
    assert status is not None, f"{case}: {text}"
    if status in (2, 3):
        assert text, f"{case}: exit status {status}, and no word"
        return "refused"
    try:
        record = RunRecord.load(directory, verify=True)
    except ValueError:
        return "refused"
    assert is_same(record, whole), f"{case}: another record; {text}"
    return "fell back" if text else "resumed"


def is_same(one, other):
    """Tell whether two runs have the same steps, times left out."""
    for known in ("metrics", "tensors"):
        mine, theirs = getattr(one, known), getattr(other, known)
        if mine.keys() != theirs.keys():
            return False
        for name in mine.keys() - {"step_seconds", "clip_seconds"}:
            a, b = mine[name], theirs[name]
            if name.startswith(_LOGGED):
                is_known = ~np.isnan(a) & ~np.isnan(b)
                a, b = a[is_known], b[is_known]
            if not np.array_equal(a, b, equal_nan=True):
                return False
    names = ("num_steps", "tensor_names")
    return all(getattr(one, name) == getattr(other, name) for name in names)
