# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run --watch: commands that know nothing of it train bit for bit."""

import re
import shutil
import sys

import numpy as np
import pytest
from helpers import assert_equal, run_python, slow_but
from pages import ROOT

from paddle_adagc import load_state
from paddle_adagc.watch.command import make_page

NUM_STEPS, BAD = 300, (221, 222)
EXAMPLE = (ROOT / "examples/spiking_loop.py").read_text()
HEAD, LOOP = re.split("(?=optimizer = )", EXAMPLE)
TRAINER = """
from paddlenlp.trainer import Trainer, TrainingArguments

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
    output_dir="out", max_steps=300, save_steps=100, logging_steps=10,
    per_device_train_batch_size=64, learning_rate=1e-3, device="cpu",
    report_to=[], disable_tqdm=True,
)
rows = [dict(x=a, labels=b) for a, b in zip(
    x.reshape(-1, 16), y.reshape(-1, 16))]
InOrder(model=Net(), args=args, train_dataset=rows).train()
"""
SAVE = """
import sys
np.savez(sys.argv[1], *[p.numpy() for p in net.parameters()])
"""
SCRIPTS = {"loop": LOOP, "paddlenlp": TRAINER}
RUN = ("-m", "paddle_adagc.run")


@pytest.fixture
def run(tmp_path):
    """Run a script alone, or under ``adagc-run``; give its weights."""

    def run(script, *options):
        if "paddlenlp" in script:
            pytest.importorskip("paddlenlp")
        (tmp_path / "train.py").write_text(HEAD + script + SAVE)
        command = [*RUN, *options, sys.executable] if options else []
        command += ["train.py", "weights.npz"]
        ended = run_python(tmp_path, *command, PYTHONPATH=":".join(sys.path))
        assert ended.returncode == 0, ended.stderr
        with np.load(tmp_path / "weights.npz") as found:
            return [found[name] for name in found.files], ended.stderr

    return run


@pytest.mark.parametrize("name", slow_but("loop", SCRIPTS))
def test_an_unchanged_command(name, run, tmp_path):
    plain, _ = run(SCRIPTS[name])
    is_trainer = name == "paddlenlp"
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    where = "out/record" if is_trainer else "rec"
    options = () if is_trainer else ("--record", "rec", "--stop-on", "nan")
    weights, printed = run(SCRIPTS[name], "--watch", *options)
    assert_equal(weights, plain)
    assert f"adagc-report {where}\n" in printed
    assert ("--stop-on ends a Trainer's run" in printed) != is_trainer
    page = make_page(tmp_path / where)
    assert page["num_steps"] == NUM_STEPS
    event = page["events"][page["worst"]]
    assert event["kind"] == "loss spike"
    assert "of the tensors rose at once, at" in page["verdict"]["text"]
    assert (event["first"], event["last"]) == BAD
    assert event["loss"] > 20 * event["before"]["mean"]
    assert event["shadow_left"] < event["left"]
    if is_trainer:
        assert load_state(tmp_path / "out/checkpoint-200")["step"] == 200
        assert "[[221, 222]]" in page["actions"][0]["command"]
