# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run before PaddleFormers' own command, with a tiny Llama."""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from byte_tokenizer import byte_tokenizer
from helpers import TINY_LLAMA, run_python
from safetensors.numpy import load_file

from paddle_adagc import load_state
from paddle_adagc.watch import read_record

if importlib.util.find_spec("paddleformers") is None:
    pytest.skip("PaddleFormers is not installed", allow_module_level=True)

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **TINY_LLAMA,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "fuse_rms_norm": False,
}
ROWS = {
    "PT": {"text": "to clip or not to clip; " * 4},
    "SFT": {"src": ["clip?"], "tgt": ["yes, clip."]},
    "DPO": {
        "src": ["clip?"],
        "tgt": [],
        "response": [["yes, clip."], ["no."]],
        "sort": [1, 0],
    },
}
# Fleet on two CPU processes needs the laboratory's operators.
ON_GLOO = """
import os, runpy, sys
import paddle
from adagc_lab import gloo
gloo.enable()
paddle.device.synchronize = lambda: None  # it knows no CPU
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def write_job(folder, stage, **values):
    """Write a user's files; return the config's name."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(LLAMA))
    tokenizer = byte_tokenizer()
    tokenizer.save(str(model / "tokenizer.json"))
    end = tokenizer.id_to_token(0)
    kinds = {"tokenizer_class": "PreTrainedTokenizerFast"}
    kinds |= {"eos_token": end, "pad_token": end}
    (model / "tokenizer_config.json").write_text(json.dumps(kinds))
    (folder / "gloo.py").write_text(ON_GLOO)
    row = json.dumps(ROWS[stage]) + "\n"
    (folder / "rows.jsonl").write_text(row * 100)
    values = {
        "stage": stage,
        "model_name_or_path": str(model),
        "fine_tuning": "full",
        "continue_training": False,
        "train_dataset_path": str(folder / "rows.jsonl"),
        "train_dataset_prob": "1.0",
        "train_dataset_type": "erniekit",
        "max_seq_len": 32,
        "per_device_train_batch_size": 2,
        "max_steps": 8,
        "save_steps": 4,
        "logging_steps": 2,
        "learning_rate": 1e-3,
        "device": "cpu",
        "do_train": True,
        "output_dir": str(folder / "out"),
        "_attn_implementation": "eager",
        "bf16": False,
        "packing": False,
        "save_checkpoint_format": "unified_checkpoint",
        "load_checkpoint_format": "unified_checkpoint",
        **values,
    }
    values = {k: v for k, v in values.items() if v is not None}
    (folder / "my.yaml").write_text(yaml.safe_dump(values))
    return "my.yaml"


RUN = ("-m", "paddle_adagc.run", "--t-start", "3", "--")
PRETRAIN = Path(__file__).parents[2] / "tools/pretrain.py"


def run(folder, *arguments):
    path = os.pathsep.join(sys.path)
    return run_python(folder, *map(str, arguments), PYTHONPATH=path)


def train(folder, config, command, *launch):
    """Train; return the clip's state after 8 steps."""
    target = (PRETRAIN, config)
    if command == "adagc-run":
        package = Path(importlib.util.find_spec("paddleformers").origin).parent
        target = (package / "cli/launcher.py", "train", config)
        launch = (*RUN, sys.executable, *launch)
    ended = run(folder, *launch, *target)
    assert ended.returncode == 0, ended.stderr[-3000:]
    logs = [path.read_text() for path in folder.glob("log/workerlog.0")]
    printed = "".join([ended.stdout, ended.stderr, *logs])
    assert "clip_global_grad_norm" in printed
    if command == "adagc-run":
        assert "AdaGC in force: lambda_abs=1.0 (max_grad_norm), t_st" in printed
    state = load_state(folder / "out/checkpoint-8")
    assert state["step"] == 8
    return state


TWO = ("-m", "paddle.distributed.launch", "--nproc_per_node", "2", "gloo.py")
SHARDED = {"sharding": "stage1", "sharding_parallel_size": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "command", "launch"),
    [
        ("PT", "adagc-run", ()),
        ("SFT", "adagc-run", ()),
        ("PT", "pretrain", ()),
        ("DPO", "adagc-run", TWO),
    ],
)
def test_a_stage_trains_and_resumes(tmp_path, stage, command, launch):
    # The Trainer cannot load moments of slices: their shapes differ.
    values = {**SHARDED, "split_param": False} if launch else {}
    if command == "pretrain":
        values["clip"] = {"t_start": 3}
    config = write_job(tmp_path, stage, **values)
    state = train(tmp_path, config, command, *launch)
    shutil.rmtree(tmp_path / "out/checkpoint-8")  # as if it had been killed
    last = str(tmp_path / "out/checkpoint-4")
    write_job(tmp_path, stage, resume_from_checkpoint=last, **values)
    again = train(tmp_path, config, command, *launch)
    for key, gamma in state["gamma"].items():
        assert float(again["gamma"][key]) == pytest.approx(gamma, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "command"),
    [("PT", "adagc-run"), ("DPO", "adagc-run"), ("PT", "pretrain")],
)
def test_a_stage_trains_on_two_processes(tmp_path, stage, command):
    clip = {"clip": {"t_start": 3}} if command == "pretrain" else {}
    config = write_job(tmp_path, stage, **SHARDED, **clip)
    state = train(tmp_path, config, command, *TWO)
    assert len(state["gamma"]) == 2 * 9 + 3


@pytest.mark.slow
def test_a_watched_stage_is_the_same(tmp_path):
    """Weights bit for bit after 300 steps, which the record has."""
    steps = {"max_steps": 300, "save_steps": 300, "logging_steps": 50}
    package = Path(importlib.util.find_spec("paddleformers").origin).parent
    launcher, found = package / "cli/launcher.py", []
    for words in ((), ("-m", "paddle_adagc.run", "--watch")):
        config = write_job(tmp_path, "PT", **steps)
        command = (*words, sys.executable)[not words :]
        ended = run(tmp_path, *command, launcher, "train", config)
        assert ended.returncode == 0, ended.stderr[-3000:]
        folder = tmp_path / "out/checkpoint-300"
        found += [load_file(next(folder.glob("model*.safetensors")))]
        shutil.move(tmp_path / "out", tmp_path / f"out{len(words)}")
    assert found[0].keys() == found[1].keys()
    for key, weight in found[0].items():
        np.testing.assert_array_equal(found[1][key], weight)
    record = read_record(tmp_path / "out3/record")
    assert record.step.tolist() == [*range(1, 301)]
    assert np.isfinite(record.column("loss")).all()
    assert load_state(tmp_path / "out3/checkpoint-300")["step"] == 300


def test_the_laboratory_refuses_dpo_by_name(tmp_path):
    ended = run(tmp_path, PRETRAIN, write_job(tmp_path, "DPO"))
    assert ended.returncode == 2
    assert "PaddleFormers' task 'DPO'" in ended.stderr


def test_the_command_line_wants_a_gpu(tmp_path):
    command = Path(sys.executable).with_name("paddleformers-cli")
    words = (command, "train", write_job(tmp_path, "PT"))
    ended = run(tmp_path, *RUN, *words)
    assert "--devices/--gpus/--npus/--xpus: expected one" in ended.stderr
    assert ended.returncode != 0
