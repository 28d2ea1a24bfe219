# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip in PaddleFormers' general Trainer, as its users have it."""

import importlib.util
import sys
import types

import numpy as np
import paddle
import pytest
from core.parallel.ranks import run_on_ranks
from helpers import TINY_LLAMA
from paddle.distributed import fleet
from paddle.distributed.parallel import parallel_helper
from test_examples import run_example

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.state import STATE_FILE

if importlib.util.find_spec("paddleformers") is None:
    pytest.skip("PaddleFormers is not installed", allow_module_level=True)

MODELS = ("Llama", "Qwen2", "Qwen3")
WAYS = ("mixin", "callback")


class Text(paddle.io.Dataset):
    """Windows of one sentence, as bytes."""

    def __len__(self):
        """Number of samples."""
        return 400

    def __getitem__(self, index):
        """The same tokens as inputs and labels."""
        text = np.frombuffer(b"to clip or not to clip; " * 3, np.uint8)
        window = text[index % 24 :][:33].astype("int64")
        return {"input_ids": window[:-1], "labels": window[1:]}


def make_model(name):
    """A tiny model with nothing fused.

    PaddleFormers' Qwen models are of PaddleFleet, which is in no public
    registry; their former classes are still there, and run without it.
    """
    provider = types.ModuleType("gpt_provider")
    provider.GPTModelProvider = object
    sys.modules.setdefault("paddleformers.transformers.gpt_provider", provider)
    from paddleformers import transformers

    former = "" if name == "Llama" else "Deprecated"
    config = getattr(transformers, f"{name}Config")(**TINY_LLAMA)
    config.fuse_rms_norm = False  # that kernel needs a GPU
    module = importlib.import_module(
        f"paddleformers.transformers.{name.lower()}.modeling"
    )
    return getattr(module, f"{name}ForCausalLM{former}")(config)


def make_trainer(way, output_dir, name="Llama", *, clip=None, **arguments):
    from paddleformers.trainer import Trainer, TrainingArguments

    from paddle_adagc.integrations.paddleformers import (
        ClippingCallback,
        ClippingMixin,
    )

    class Logged(Trainer):
        """Keeps what its callbacks make of a log."""

        def log(self, logs, **kwargs):
            super().log(logs, **kwargs)
            self.logged = [*getattr(self, "logged", []), logs]

    class ClippingTrainer(ClippingMixin, Logged):
        """What a user writes."""

    clip = clip or ClipGradByAdaGC(t_start=3)
    missing_state = arguments.pop("missing_state", "raise")
    paddle.seed(0)
    model = make_model(name)
    args = TrainingArguments(
        output_dir=str(output_dir),
        **{
            "max_steps": 8,
            "per_device_train_batch_size": 4,
            "learning_rate": 3e-3,
            "lr_scheduler_type": "constant",
            "logging_steps": 4,
            "report_to": [],
            "save_strategy": "no",
            "save_steps": 4,
            "device": "cpu",
            "amp_master_grad": False,
            **arguments,
        },
    )
    common = {"model": model, "args": args, "train_dataset": Text()}
    if way == "mixin":
        return ClippingTrainer(
            clip=clip, missing_state=missing_state, **common
        ), clip
    callback = ClippingCallback(clip, missing_state)
    return Logged(**common, callbacks=[callback]), clip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_tiny_models_train_and_log_the_clip(name, way, tmp_path):
    trainer, clip = make_trainer(way, tmp_path, name)
    loss = trainer.train().metrics["train_loss"]
    assert trainer.args.max_grad_norm == 0
    assert loss < np.log(256)
    assert clip.num_steps == 8
    keys = {key for key, _ in trainer.model.named_parameters()}
    gamma = clip.state_dict()["gamma"]
    assert {*gamma} == keys
    assert np.isfinite([float(value) for value in gamma.values()]).all()
    logs = [line for line in trainer.logged if "loss" in line]
    assert len(logs) == 2
    summary = clip.summary()
    for quantity in ("global_grad_norm", "clipped_fraction", "h_min"):
        logged = logs[-1][f"clip_{quantity}"]
        assert logged == pytest.approx(summary[quantity], rel=5e-4)


@pytest.mark.parametrize("way", WAYS)
def test_the_clip_resumes_with_the_run(way, tmp_path):
    def train(folder, checkpoint=None, **arguments):
        with paddle.utils.unique_name.guard():  # names of a new process
            trainer, clip = make_trainer(
                way,
                folder,
                save_strategy="steps",
                # The default asks fleet, which one process has not started.
                save_checkpoint_format="unified_checkpoint",
                load_checkpoint_format="unified_checkpoint",
                **arguments,
            )
            trainer.train(resume_from_checkpoint=checkpoint)
        return clip.state_dict()

    whole = train(tmp_path / "whole")
    train(tmp_path / "cut", max_steps=4)
    checkpoint = tmp_path / "cut" / "checkpoint-4"
    resumed = train(tmp_path / "cut", str(checkpoint))
    assert resumed["step"] == 8
    for key, gamma in resumed["gamma"].items():
        assert float(gamma) == float(whole["gamma"][key])

    (checkpoint / STATE_FILE).unlink()
    with pytest.raises(FileNotFoundError, match="missing_state='start'"):
        train(tmp_path / "cut", str(checkpoint))
    switched = train(tmp_path / "cut", str(checkpoint), missing_state="start")
    assert switched["step"] == 4


def train_on_this_rank(way, folder, checkpoint=None, **arguments):
    """Train and return the class of the clip in use, steps, and gammas."""
    paddle.device.synchronize = lambda: None  # it knows no CPU
    # These ranks have joined before PaddleFormers looks, which then leaves
    # fleet alone.
    parallel_helper._is_parallel_ctx_initialized = lambda: hasattr(
        fleet.fleet, "_hcg"
    )
    trainer, clip = make_trainer(way, folder, **arguments)
    trainer.train(resume_from_checkpoint=checkpoint)
    optimizer = trainer.optimizer
    while hasattr(optimizer, "_inner_opt"):
        optimizer = optimizer._inner_opt
    gamma = clip.full_state_dict()["gamma"]
    return (
        type(optimizer._grad_clip).__name__,
        clip.num_steps,
        {key: float(value) for key, value in gamma.items()},
    )


LAYOUTS = {
    "v1x2": {
        "per_device_train_batch_size": 2,
        "sharding": "stage1",
        "split_param": False,
    },
    "tp2": {"tensor_model_parallel_size": 2, "split_param": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_flex_checkpoint_has_the_clip_s_file_beside_it(way, tmp_path):
    """PaddleFormers' and PaddleFleet's default format, here on two ranks."""

    def train(folder, **arguments):
        return run_on_ranks(
            train_on_this_rank,
            2,
            way=way,
            folder=str(folder),
            **LAYOUTS["v1x2"],
            save_strategy="steps",
            save_checkpoint_format="flex_checkpoint",
            load_checkpoint_format="flex_checkpoint",
            **arguments,
        )

    whole = train(tmp_path / "whole")
    train(tmp_path / "cut", max_steps=4)
    checkpoint = tmp_path / "cut/checkpoint-4"
    beside = {path.name for path in checkpoint.iterdir()}
    assert beside >= {STATE_FILE, "model_state", "optimizer_state"}
    resumed = train(tmp_path / "cut", checkpoint=str(checkpoint))
    for (_, steps, gamma), (*_, expected) in zip(resumed, whole, strict=True):
        assert steps == 8
        assert gamma == pytest.approx(expected, rel=1e-5)


def test_example_runs_and_clips(tmp_path):
    printed = run_example("paddleformers_trainer", tmp_path)
    assert "clip_clipped_fraction" in printed
    assert [*(tmp_path / "outputs").glob("*/checkpoint-40/*.safetensors")]
