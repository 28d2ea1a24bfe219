# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run: a clip in commands that know nothing of it."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
import yaml
from helpers import run_python

from paddle_adagc import load_state
from paddle_adagc.integrations import run

SCRIPT = """
import sys
import numpy as np, paddle
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments
from paddlenlp.trainer.trainer_utils import get_last_checkpoint

x = np.random.default_rng(0).normal(size=[400, 4]).astype("float32")
rows = [{"x": row, "labels": row[:1]} for row in x]

class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = paddle.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        return ((self.linear(x) - labels) ** 2).mean()

class MyTrainer(Trainer):
    def create_optimizer(self, lr_scheduler=None):
        return super().create_optimizer(lr_scheduler)

[args] = PdArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])
paddle.seed(0)
trainer = MyTrainer(model=Net(), args=args, train_dataset=rows)
assert type(trainer).__name__ == "MyTrainer"
resumes = len(sys.argv) > 2
found = get_last_checkpoint(args.output_dir) if resumes else None
trainer.train(resume_from_checkpoint=found)
print("clip:", trainer.optimizer._grad_clip)
"""


def write_job(folder, **values):
    """A user's script and its config."""
    (folder / "train.py").write_text(SCRIPT)
    values = {
        "output_dir": str(folder / "out"),
        "max_steps": 6,
        "save_steps": 3,
        "logging_steps": 3,
        "learning_rate": 0.01,
        "device": "cpu",
        "report_to": "visualdl",
        **values,
    }
    (folder / "job.json").write_text(json.dumps(values))


def adagc_run(folder, *words, path=(), status=0):
    """Run the command; return all that it prints."""
    module = ("-m", "paddle_adagc.integrations.run")
    path = os.pathsep.join([*path, *sys.path])
    ended = run_python(folder, *module, *words, PYTHONPATH=path)
    assert ended.returncode == status, ended.stderr
    return ended.stdout + ended.stderr


TRAIN = (sys.executable, "train.py", "job.json")


def test_a_script_of_paddlenlp_s_trainer(tmp_path):
    write_job(tmp_path, clip={"t_start": 2, "lambda_abs": 0.5})
    printed = adagc_run(tmp_path, "--beta", "0.9", "--", *TRAIN)
    clip = "clip: ClipGradByAdaGC(lambda_rel=1.04, beta=0.9, lambda_abs=0.5"
    assert clip in printed
    assert "clip_global_grad_norm" in printed
    state = load_state(tmp_path / "out/checkpoint-3")
    assert state["step"] == 3
    assert {*state["gamma"]} == {"linear.weight", "linear.bias"}
    write_job(tmp_path, max_steps=9)
    adagc_run(tmp_path, "--t-start", "2", "--beta=0.9", *TRAIN, "resume")
    assert load_state(tmp_path / "out/checkpoint-9")["step"] == 9


def test_a_trainer_of_paddlefleet_s_shape(tmp_path):
    package = tmp_path / "paddlefleet/trainer"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    imported = "from {} import Trainer\n"
    (package / "__init__.py").write_text(imported.format(".trainer"))
    (package / "trainer.py").write_text(
        imported.format("core.integrations.test_trainer")
    )
    script = imported.format("paddlefleet.trainer")
    (tmp_path / "train.py").write_text(f"{script}Trainer(max_steps=3).train()")
    printed = adagc_run(tmp_path, "--t-start=1", *TRAIN[:2])
    assert printed.count("clip_global_grad_norm") == 3
    state = load_state(tmp_path / "out/checkpoint-3")
    assert (state["step"], {*state["gamma"]}) == (3, {"weight", "bias"})


def test_a_running_job_switches_to_another_clip(tmp_path):
    write_job(tmp_path)
    run_python(tmp_path, *TRAIN[1:]).check_returncode()
    write_job(tmp_path, max_steps=9)
    zclip = ("--clip", "zclip")
    for words, status, message in (
        (zclip, 1, "missing_state='start'"),
        ((*zclip, "--missing-state", "start"), 0, "clip: ClipGradByZClip"),
        (("--clip=global_norm", "--lambda-abs=0.3"), 0, "GlobalNorm"),
    ):
        printed = adagc_run(tmp_path, *words, *TRAIN, "resume", status=status)
        assert message in printed


def test_a_command_without_a_trainer_is_an_error(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    python, path = (sys.executable, "-c"), [str(tmp_path)]
    printed = adagc_run(tmp_path, *python, "import json", path=path, status=2)
    assert "none of its processes made a Trainer" in printed
    # The user's own runs as well: in adagc-run's process, and in the command's.
    assert printed.count("mine") == 2
    adagc_run(tmp_path, *python, "raise SystemExit(7)", status=7)


def test_signals_are_this_process_own_again():
    before = signal.getsignal(signal.SIGTERM)
    assert run.main([sys.executable, "-c", "raise SystemExit(7)"]) == 7
    assert signal.getsignal(signal.SIGTERM) == before


def test_check_says_what_it_would_do(tmp_path, capsys):
    (tmp_path / "my.yaml").write_text(
        "# mine\nstage: PT\nclip:\n  t_start: 7\n  units: {}\nseed: 1  # s\n"
    )
    words = ["--check", "paddleformers-cli", "train", str(tmp_path / "my.yaml")]
    assert run.main(words) == 0
    printed = capsys.readouterr().out
    assert "t_start=7" in printed
    assert "would run paddleformers-cli train" in printed
    assert "paddlefleet is not installed here" in printed


REST = {"a": 1, "b": {"c": "1e-5"}, "name": "über: x"}
OLD = {
    "adaptive_norm_clip": True,
    "adaptive_norm_clip_ratio": 1.03,
    "adaptive_norm_start_clip_steps": 50,
    "adaptive_norm_verbose": True,
}


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize(
    ("values", "expected", "note"),
    [
        (
            {
                "clip": {
                    "t_start": 7,
                    "missing_state": "start",
                    "units": {"x": 1},
                }
            },
            {
                "clip": {"name": "adagc", "t_start": 7},
                "missing_state": "start",
                "units": {"x": 1},
            },
            "took the section clip out of",
        ),
        (
            OLD,
            {"clip": {"name": "adagc", "lambda_rel": 1.03, "t_start": 50}},
            "verbose .*became {'lambda_rel': 1.03  't_start': 50}",
        ),
        ({"adaptive_norm_clip": False}, {}, "adaptive_norm_clip .*not used"),
        ({}, {}, None),
    ],
    ids=["section", "ERNIE's former keys", "switched off", "neither"],
)
def test_the_clip_s_settings_are_taken_out(
    tmp_path, suffix, values, expected, note
):
    path, folder, notes = tmp_path / f"my{suffix}", tmp_path / "copies", []
    text = (json.dumps if suffix == ".json" else yaml.safe_dump)(
        {**REST, **values}
    )
    path.write_text(text)
    folder.mkdir()
    found, copy = run._taken_out(str(path), folder, notes)
    assert found == expected
    assert yaml.safe_load(Path(copy).read_text()) == REST
    assert path.read_text() == text
    assert (copy == str(path)) == (not values)
    assert bool(notes) == bool(note)
    assert not note or re.search(note, notes[0].replace(",", " "))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--t-strat", "5", "ls"], "did you mean 't_start'"),
        (["--clip", "adacg", "ls"], "did you mean 'adagc'"),
        (["--t-start", "x", "ls"], "t_start must be an integer"),
        (["--t-start", "5", "-x", "6", "ls"], "'-x' is no option"),
        (["--t-start", "5"], "give the command to run"),
        (["--check", "--t-start"], "--t-start lacks its value"),
        (["--missing-state", "x", "ls"], "one of raise, start; got 'x'"),
    ],
)
def test_mistakes(words, message, capsys):
    assert run.main(words) == 2
    assert message in capsys.readouterr().err
