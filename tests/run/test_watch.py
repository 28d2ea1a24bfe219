# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run --watch: commands that know nothing of it train bit for bit."""

import importlib.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import paddle
import pytest
from core.parallel.layouts import DENSE, Layout, gradient_of
from core.parallel.ranks import run_on_ranks
from core.parallel.stages import make_net
from core.parallel.training import batch
from helpers import run_python, slow_but
from pages import ROOT

from paddle_adagc import load_state
from paddle_adagc.run.process import Process
from paddle_adagc.watch import read_record
from paddle_adagc.watch.command import make_page
from paddle_adagc.watch.recorder import NUM_STEPS as RING
from paddle_adagc.watch.recorder import record_of

NUM_STEPS, BAD = 300, (220, 221)
STEPS = (221, 222)  # their numbers
NUM_KILLS = 20
EXAMPLE = (ROOT / "examples/spiking_loop.py").read_text()
HEAD, LOOP = re.split("(?=optimizer = )", EXAMPLE)
HAPI = """
model = paddle.Model(net)
optimizer = paddle.optimizer.Momentum(
    1e-2, parameters=net.parameters(), grad_clip=paddle.nn.ClipGradByNorm(1.0)
)
model.prepare(optimizer, paddle.nn.MSELoss())
rows = paddle.io.TensorDataset(
    [paddle.to_tensor(a.reshape(-1, 16)) for a in (x, y)]
)
model.fit(rows, batch_size=64, shuffle=False, verbose=0)
"""
TRAINER = """
from {library}.trainer import Trainer, TrainingArguments

class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.net = net

    def forward(self, x, labels=None):
        return ((self.net(x) - labels) ** 2).mean()

class InOrder(Trainer):
    def _get_train_sampler(self):
        return paddle.io.BatchSampler(
            self.train_dataset, batch_size=self.args.train_batch_size
        )

args = TrainingArguments(
    output_dir="out", max_steps={steps}, save_steps=100, logging_steps=10,
    per_device_train_batch_size=64, learning_rate=1e-3, device="cpu",
    report_to=[], disable_tqdm=True{more},
)
rows = [dict(x=a, labels=b) for a, b in zip(
    x.reshape(-1, 16), y.reshape(-1, 16))]
InOrder(model=Net(), args=args, train_dataset=rows).train()
"""
SAVE = """
import sys
np.savez(sys.argv[1], *[p.numpy() for p in net.parameters()])
"""
# Its checkpoints on one process are of its own models alone.
FORMERS = ', save_strategy="no", amp_master_grad=False'
SCRIPTS = {
    "loop": LOOP,
    "hapi": HAPI,
    "paddlenlp": TRAINER.format(library="paddlenlp", steps=300, more=""),
    "paddleformers": TRAINER.format(
        library="paddleformers", steps=300, more=FORMERS
    ),
}


def run_script(folder, *words):
    """Run a script alone, or under ``adagc-run --watch``; give its weights."""
    command = [*words, sys.executable] if words else []
    command += ["train.py", "weights.npz"]
    ended = run_python(folder, *command, PYTHONPATH=":".join(sys.path))
    assert ended.returncode == 0, ended.stderr
    with np.load(folder / "weights.npz") as found:
        return [found[name] for name in found.files], ended.stderr


WATCH = ("-m", "paddle_adagc.run", "--watch")


@pytest.mark.parametrize("name", slow_but("loop", SCRIPTS))
def test_an_unchanged_command(name, tmp_path):
    if name.startswith("paddle") and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    (tmp_path / "train.py").write_text(HEAD + SCRIPTS[name] + SAVE)
    plain, _ = run_script(tmp_path)
    has_trainer = name.startswith("paddle")
    where = tmp_path / ("out/record" if has_trainer else "rec")
    options = () if has_trainer else ("--record", "rec", "--stop-on", "nan")
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    weights, printed = run_script(tmp_path, *WATCH, *options)
    for mine, theirs in zip(weights, plain, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert f"adagc-report {where.relative_to(tmp_path)}\n" in printed
    assert ("--stop-on ends a Trainer's run" in printed) != has_trainer
    page = make_page(where)
    assert page["num_steps"] == NUM_STEPS
    event = page["events"][page["worst"]]
    assert (event["kind"], event["cause"]) == ("loss spike", "all")
    assert (event["first"], event["last"]) == STEPS
    assert event["loss"] > 20 * event["before"]["mean"]
    assert event["shadow_left"] < event["left"]
    if name == "paddlenlp":
        assert load_state(tmp_path / "out/checkpoint-200")["step"] == 200
        assert "[[221, 222]]" in page["actions"][0]["command"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "clip", "folder"),
    [
        ("paddlenlp", (), "out/record"),
        ("loop", ("--watch",), "adagc-record"),
    ],
)
def test_adagc_run_leaves_steps_out(name, clip, folder, tmp_path):
    if name == "paddlenlp":
        pytest.importorskip(name)
    (tmp_path / "train.py").write_text(HEAD + SCRIPTS[name] + SAVE)
    options = (*clip, "--skip-above", "50", "--stop-on", "nan")
    weights, printed = run_script(tmp_path, *WATCH[:2], *options)
    assert ("AdaGC clipped 298 steps" in printed) == (not clip)
    if name == "loop":  # as if the ruined batches were not there
        less = f"x, y = (np.delete(a, {BAD}, 0) for a in (x, y))\n"
        (tmp_path / "train.py").write_text(HEAD + less + LOOP + SAVE)
        for mine, theirs in zip(weights, run_script(tmp_path)[0], strict=True):
            np.testing.assert_array_equal(mine, theirs)
    found = read_record(tmp_path / folder)
    assert found.step.tolist() == [*range(1, NUM_STEPS + 1)]
    assert found.step[found.column("skipped") == 1].tolist() == [*STEPS]


RESUMED = """
from pathlib import Path
from paddlenlp.trainer import TrainerCallback

class Made(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        with open("made", "a") as file:
            file.write(f"{state.global_step}\\n")

done = [p.parent for p in Path("out").glob("checkpoint-*/scheduler.pdparams")]
found = max(done, key=lambda path: int(path.name[11:]), default=None)
x, y = np.tile(x, [99, 1, 1]), np.tile(y, [99, 1, 1])
""" + TRAINER.format(library="paddlenlp", steps=29_700, more="").replace(
    "logging_steps=10", "logging_steps=1000, save_total_limit=2"
).replace(
    "=rows).train()", "=rows, callbacks=[Made()]).train(found and str(found))"
)


@pytest.mark.slow
@pytest.mark.long
def test_20_kills_of_a_watched_trainer(tmp_path):
    """The record opens, lacks at most a ring, and the next run goes on."""
    pytest.importorskip("paddlenlp")
    (tmp_path / "train.py").write_text(HEAD + RESUMED)
    made = tmp_path / "made"
    chance, saved = random.Random(1), 0
    for number in range(NUM_KILLS):
        made.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, *WATCH, sys.executable, "train.py"],
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        )
        is_early = number % 4 == 3  # killed where the record opens
        while num_sessions(tmp_path) <= number or not (
            is_early or newest(tmp_path) > saved
        ):
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3 if is_early else 1))
        process.kill()
        assert process.wait() == -signal.SIGKILL
        run = read_record(tmp_path / "out/record")
        assert len(run.sessions) == number + 1
        start = run.sessions[-1].start - 1
        assert start == saved
        last = int(made.read_text().split()[-1]) if made.exists() else start
        assert run.step.tolist() == [*range(1, len(run.step) + 1)]
        # A ring on the device, and one that the thread was writing.
        assert 0 <= last - len(run.step) <= 2 * RING
        saved = newest(tmp_path)
        assert len(run.step) >= saved
        print(f"start {start}, made {last}, recorded {len(run.step)}")


def num_sessions(folder):
    try:
        return len(read_record(folder / "out/record").sessions)
    except (FileNotFoundError, ValueError):
        return 0


def newest(folder):
    """Step of the newest finished checkpoint, 0 without one."""
    found = folder.glob("out/checkpoint-*/scheduler.pdparams")
    return max((int(path.parent.name[11:]) for path in found), default=0)


NUM_STEPS_ON_RANKS, BAD_ON_RANKS = 140, (120, 121)
LAYOUTS = {
    "v2 x2": Layout(sharding=2, split_param=True),
    "pp2": Layout(pp=2),
}


def train_on_rank(layout, folder):
    """Train twice under fleet's own clip: without a record, and with one."""
    topology = layout.start()
    found = []
    for is_watched in (False, True):
        if is_watched:
            watch = Process({}, str(folder), watch=True, require=False)
            watch.on_paddle(paddle)
        found.append(train(layout, topology))
    return found


def train(layout, topology):
    bare = model = make_net(DENSE, layout)
    optimizer = paddle.optimizer.AdamW(
        1e-3,
        parameters=model.parameters(),
        grad_clip=paddle.nn.ClipGradByGlobalNorm(0.5),
    )
    model, optimizer = layout.wrap(model, optimizer)
    model.train()
    for step in range(NUM_STEPS_ON_RANKS):
        ids, labels = layout.rows(batch(step), topology)
        layout.backward(model, bare, optimizer, ids, labels)
        if step in BAD_ON_RANKS:
            with paddle.no_grad():
                for parameter in bare.parameters():
                    gradient_of(parameter).scale_(30.0)
        optimizer.step()
        optimizer.clear_grad()
    if (record := record_of(optimizer)) is not None:
        record.step()
        record.close()
    return [parameter.numpy() for parameter in bare.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_fleet_s_own_clip_on_two_ranks(name, tmp_path):
    ranks = run_on_ranks(
        train_on_rank, 2, layout=LAYOUTS[name], folder=tmp_path / "a"
    )
    for plain, watched in ranks:
        for mine, theirs in zip(watched, plain, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    run = read_record(tmp_path / "a")
    assert run.step.tolist() == [*range(1, NUM_STEPS_ON_RANKS + 1)]
    assert np.isfinite(run.tensors("norm")).all()
    page = make_page(tmp_path / "a")
    event = page["events"][page["worst"]]
    assert (event["kind"], event["cause"]) == ("norm spike", "all")
    assert (event["first"], event["last"]) == (121, 122)
    assert event["left"] == pytest.approx(0.5, rel=1e-3)
    assert 0 < event["shadow_left"] < event["norm"] / 5
    assert np.isfinite(run.column("loss")).all()
