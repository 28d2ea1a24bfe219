# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``adagc-run`` before a script of PaddleNLP's Trainer."""

import importlib.util
import json
import os
import re
import sys

import numpy as np
import paddle
import pytest
from helpers import run_python

from paddle_adagc import load_state
from paddle_adagc.run.isolation import check_command
from paddle_adagc.watch import read_record

SCRIPT = """
import sys
import paddle
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments

class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(2, 1)

    def forward(self, x):
        return self.linear(x).square().mean()

[args] = PdArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])
rows = [{"x": paddle.ones([2]).numpy()}] * 8
Trainer(args=args)  # as some scripts do, for its arguments alone
Trainer(model=Net(), args=args, train_dataset=rows).train()
"""


def test_a_file_that_hides_us_from_paddleformers_is_named(
    tmp_path, monkeypatch
):
    (tmp_path / "paddleformers").mkdir()
    (tmp_path / "paddleformers/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "paddleformers", raising=False)
    check_command(["paddleformers-cli", "train", "my.yaml"])
    hiding = tmp_path / "sitecustomize.py"
    hiding.touch()
    with pytest.raises(ValueError, match=re.escape(f"{hiding} keeps adagc")):
        check_command(["/bin/paddleformers-cli", "train", "my.yaml"])


@pytest.mark.parametrize("option", ["--t-start=9", "--watch"])
def test_a_job_with_a_paddle_that_does_not_fit_goes_on(option, tmp_path):
    (tmp_path / "paddle").mkdir()
    other = "class optimizer:\n    class Optimizer:\n        pass\n"
    (tmp_path / "paddle/__init__.py").write_text(other)
    script = "import paddle; print('went on')"
    command = ("-m", "paddle_adagc.run", option, sys.executable, "-c", script)
    ended = run_python(tmp_path, *command)
    assert (ended.returncode, ended.stdout) == (0, "went on\n")
    assert "neither clips nor records: No module named 'pa" in ended.stderr
    assert "Traceback" not in ended.stderr


COMMAND = """
import sys
from importlib.metadata import entry_points
[script] = entry_points(group="console_scripts", name="adagc-run")
sys.exit(script.load()())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "options", "bound", "reason"),
    [
        (0.5, (), 0.5, "max_grad_norm"),
        (0.0, (), 1.0, "max_grad_norm is 0.0"),
        (-1.0, (), 1.0, "max_grad_norm is -1.0"),
        (0.5, ("--lambda-abs", "2"), 2.0, "--lambda-abs"),
    ],
)
def test_the_warm_up_has_the_job_s_threshold(
    norm, options, bound, reason, tmp_path
):
    if importlib.util.find_spec("paddlenlp") is None:
        pytest.skip("it needs PaddleNLP")
    job = {
        "output_dir": "out",
        "max_steps": 2,
        "save_steps": 2,
        "device": "cpu",
        "max_grad_norm": norm,
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [*options, "--", sys.executable, "train.py", "job.json"]
    path = os.pathsep.join(filter(None, sys.path))
    ended = run_python(tmp_path, "-c", COMMAND, *command, PYTHONPATH=path)
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0, printed
    assert f"lambda_abs={bound} ({reason})" in printed
    state = load_state(tmp_path / "out/checkpoint-2")
    assert state["config"]["lambda_abs"] == bound


RUINED = SCRIPT.replace(
    "return self.linear(x).square().mean()",
    """self.num_calls = getattr(self, "num_calls", 0) + 1
        factor = float("nan") if self.num_calls in BAD else 1.0
        return self.linear(x).square().mean() * factor""",
).replace(
    ".train()", ".train(resume_from_checkpoint=args.resume_from_checkpoint)"
)
SWITCH = ("--missing-state", "start", "--t-start", "1")
GUARD = ("--skip-above", "8", "--stop-on", "nan", "--on-alarm", "cat >> alarm")


def run_job(folder, *options, bad="[]", **values):
    """Train; the losses of the forward passes in ``bad`` are NaN."""
    if importlib.util.find_spec("paddlenlp") is None:
        pytest.skip("it needs PaddleNLP")
    job = {"output_dir": "out", "device": "cpu", "save_steps": 2, **values}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "train.py").write_text(f"BAD = {bad}\n{RUINED}")
    ours = ("-c", COMMAND, *options, "--", sys.executable) if options else ()
    path = os.pathsep.join(filter(None, sys.path))
    return run_python(folder, *ours, "train.py", "job.json", PYTHONPATH=path)


@pytest.mark.slow
def test_a_job_switches_and_its_options_reach_the_trainer(tmp_path):
    """A loss is NaN in the fifth step after the switch."""
    assert run_job(tmp_path, max_steps=2).returncode == 0
    values = {"max_steps": 40, "resume_from_checkpoint": "out/checkpoint-2"}
    refused = run_job(tmp_path, *SWITCH[2:], **values)
    assert refused.returncode
    assert "missing" in refused.stderr
    ended = run_job(tmp_path, *SWITCH, *GUARD, bad=[5], **values)
    assert ended.returncode == 0, ended.stderr[-3000:]
    record = read_record(tmp_path / "out/record")
    skipped = record.step[record.column("skipped") == 1]
    assert skipped.tolist() == [7]
    assert record.step[-1] < 40
    assert "step 7: loss nan" in (tmp_path / "alarm").read_text()
    assert record.column("clipped_grad_norm")[-1] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "last"), [("--stop-on=nan", 8), ("--skip-above=8", 18)]
)
def test_no_checkpoint_has_weights_of_nan(option, last, tmp_path):
    """Under the job's own clip, with losses of NaN from the third step on."""
    values = {"max_steps": 60, "logging_steps": 50, "save_steps": 5}
    ended = run_job(tmp_path, "--watch", option, bad="range(3, 99)", **values)
    assert bool(ended.returncode) == (option != "--stop-on=nan"), ended.stderr
    saved = sorted((tmp_path / "out").glob("checkpoint-*/model_state.pdparams"))
    assert len(saved) == (0 if option == "--stop-on=nan" else 3)
    for path in saved:
        for weight in paddle.load(str(path)).values():
            assert np.isfinite(weight.numpy()).all(), path
    assert read_record(tmp_path / "out/record").step[-1] <= last


@pytest.mark.slow
def test_a_watched_job_goes_on_under_adagc_without_a_warm_up(tmp_path):
    values = {"max_steps": 102, "save_steps": 102}
    assert run_job(tmp_path, "--watch", **values).returncode == 0
    values = {"max_steps": 104, "resume_from_checkpoint": "out/checkpoint-102"}
    ended = run_job(tmp_path, "--init", "warmup_ema", **values)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "resumed after 102 steps" in ended.stdout + ended.stderr
    record = read_record(tmp_path / "out/record")
    assert record.step[-2:].tolist() == [103, 104]
    assert record.sessions[-1].facts["clip"].startswith("ClipGradByAdaGC(")


LOOP = """
import paddle
from paddle_adagc import ClipGradByAdaGC

class Mine(ClipGradByAdaGC):
    def __init__(self, name):
        super().__init__(t_start=2)

model = paddle.nn.Linear(2, 2)
model.bias.stop_gradient = True
clip = Mine("mine")
clip.bind(model)

optimizer = paddle.optimizer.SGD(
    0.1, parameters=model.parameters(), grad_clip=clip
)
optimizer = paddle.distributed.shard_optimizer(optimizer)
for _ in range(3):
    model(paddle.ones([1, 2])).sum().backward()
    optimizer.step()
    optimizer.clear_grad()
"""


@pytest.mark.slow
def test_what_a_loop_with_a_clip_of_its_own_does_not_take_is_said(tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    path = os.pathsep.join(filter(None, sys.path))
    options = ("--skip-above", "8", "--record", "there", "--", sys.executable)
    ended = run_python(
        tmp_path, "-c", COMMAND, *options, "loop.py", PYTHONPATH=path
    )
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0, printed
    assert "t_start=2 (the script); 1 tensor; the script's own" in printed
    assert "without record, skip_above" in printed
    assert "AdaGC clipped 3 steps" in printed
