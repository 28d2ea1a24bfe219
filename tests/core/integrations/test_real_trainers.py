# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip in the Trainer of PaddleNLP or PaddleFormers, as users have it.

The two libraries need environments of their own: the tests take the one that
is installed.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import math
import sys
import types

import numpy as np
import paddle
import pytest
from core.parallel.ranks import let_formers_start_fleet, run_on_ranks
from helpers import TINY_LLAMA
from test_examples import run_example

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.integrations.clipping import Options, attach
from paddle_adagc.optimizer import innermost
from paddle_adagc.state_file import STATE_FILE

IS_FORMERS = importlib.util.find_spec("paddleformers") is not None
LIBRARY = "paddleformers" if IS_FORMERS else "paddlenlp"
if importlib.util.find_spec(LIBRARY) is None:
    pytest.skip("no Trainer is installed", allow_module_level=True)

formers = pytest.mark.skipif(not IS_FORMERS, reason="needs PaddleFormers")
MODELS = ("Llama", "Qwen2", "Qwen3") if IS_FORMERS else ("Llama",)
UNIFIED = {"unified_checkpoint": True}
if IS_FORMERS and not importlib.metadata.version(LIBRARY).startswith("0."):
    # The default asks fleet, which one process has not started.
    UNIFIED = {
        "save_checkpoint_format": "unified_checkpoint",
        "load_checkpoint_format": "unified_checkpoint",
    }


TEXT = np.frombuffer(b"to clip or not to clip; " * 3, np.uint8).astype("int64")
WINDOWS = [
    {"input_ids": TEXT[i : i + 32], "labels": TEXT[i + 1 : i + 33]}
    for i in [*range(24)] * 17
]


def make_model(name):
    """A tiny model with nothing fused.

    PaddleFormers' Qwen models are of PaddleFleet, which is in no public
    registry; their former classes are still there, and run without it.
    """
    if IS_FORMERS:
        provider = types.ModuleType("gpt_provider")
        provider.GPTModelProvider = object
        place = "paddleformers.transformers.gpt_provider"
        sys.modules.setdefault(place, provider)
    transformers = importlib.import_module(f"{LIBRARY}.transformers")
    former = "" if name == "Llama" else "Deprecated"
    config = getattr(transformers, f"{name}Config")(**TINY_LLAMA)
    config.fuse_rms_norm = False  # that kernel needs a GPU
    module = importlib.import_module(
        f"{LIBRARY}.transformers.{name.lower()}.modeling"
    )
    return getattr(module, f"{name}ForCausalLM{former}")(config)


def make_trainer(way, output_dir, name="Llama", **arguments):
    library = importlib.import_module(f"{LIBRARY}.trainer")
    ours = importlib.import_module(f"paddle_adagc.integrations.{LIBRARY}")

    class Logged(library.Trainer):
        """Keeps what its callbacks make of a log."""

        def log(self, logs, **kwargs):
            super().log(logs, **kwargs)
            self.logged = [*getattr(self, "logged", []), logs]

    class ClippingTrainer(ours.ClippingMixin, Logged):
        """What a user writes."""

    clip = ClipGradByAdaGC(t_start=3)
    names = Options.__dataclass_fields__.keys() & arguments.keys()
    choices = {name: arguments.pop(name) for name in names}
    paddle.seed(0)
    values = {
        "max_steps": 8,
        "per_device_train_batch_size": 4,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.3,
        "adam_beta2": 0.95,
        "logging_steps": 4,
        "report_to": [],
        "save_strategy": "no",
        "save_steps": 4,
        "device": "cpu",
        **({"amp_master_grad": False} if IS_FORMERS else {}),
        **arguments,
    }
    args = library.TrainingArguments(output_dir=str(output_dir), **values)
    common = {"args": args, "train_dataset": WINDOWS}
    common["model"] = make_model(name)
    if way == "mixin":
        return ClippingTrainer(clip=clip, **choices, **common)
    trainer = Logged(**common)
    trainer.clip = clip
    attach(trainer, clip, Options(**choices))
    return trainer


@pytest.mark.parametrize("way", ["mixin", "object"])
def test_a_loss_of_nan_ends_the_run_with_a_checkpoint(way, tmp_path):
    options = {"stop_on": "nan", "logging_steps": 1, **UNIFIED}
    trainer = make_trainer(way, tmp_path, **options)
    compute = trainer.compute_loss

    def compute_loss(*args, **kwargs):
        loss = compute(*args, **kwargs)
        return loss * math.nan if trainer.state.global_step == 5 else loss

    trainer.compute_loss = compute_loss
    with pytest.warns(UserWarning, match="training ends: .*is saved"):
        trainer.train()
    last = trainer.state.global_step
    assert 6 <= last < 8  # at the next log
    assert (tmp_path / f"checkpoint-{last}" / STATE_FILE).is_file()


def train_anew(way, folder, checkpoint=None, formats=UNIFIED, **arguments):
    """Train with the names of a new process; return the clip's state."""
    values = {"save_strategy": "steps", **formats, **arguments}
    with paddle.utils.unique_name.guard():
        trainer = make_trainer(way, folder, **values)
        trainer.train(resume_from_checkpoint=checkpoint)
    return trainer.clip.state_dict()


FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "up_gate_proj": ("gate_proj", "up_proj"),
}


def units_in(name):
    """Names that the parts of a parameter have in models without fusion."""
    *head, module, leaf = name.split(".")
    return {".".join([*head, m, leaf]) for m in FUSED.get(module, (module,))}


@pytest.mark.parametrize(
    ("name", "way"),
    [*((name, "mixin") for name in MODELS), ("Llama", "object")],
)
def test_tiny_models_train_and_log_the_clip(name, way, tmp_path):
    trainer = make_trainer(way, tmp_path, name)
    loss = trainer.train().metrics["train_loss"]
    clip, optimizer = trainer.clip, innermost(trainer.optimizer)
    assert loss < np.log(256)
    assert clip.num_steps == 8
    gamma = clip.state_dict()["gamma"]
    names = [key for key, _ in trainer.model.named_parameters()]
    assert {*gamma} == {unit for name in names for unit in units_in(name)}
    assert np.isfinite([float(value) for value in gamma.values()]).all()
    logs = [line for line in trainer.logged if "loss" in line]
    assert len(logs) == 2
    summary = clip.summary()
    for quantity in ("global_grad_norm", "clipped_fraction", "h_min"):
        expected = float(f"{summary[quantity]:.4g}")
        assert logs[-1][f"clip_{quantity}"] == expected
    assert optimizer._grad_clip is clip
    assert (optimizer._beta2, optimizer._weight_decay) == (0.95, 0.3)


@pytest.mark.parametrize(
    ("way", "formats"),
    [("mixin", UNIFIED), ("object", UNIFIED)]
    + ([] if IS_FORMERS else [("mixin", {})]),
)
def test_the_clip_resumes_with_the_run_and_a_run_switches(
    way, formats, tmp_path
):
    train = functools.partial(train_anew, way, formats=formats)
    whole = train(tmp_path / "whole")
    cut = tmp_path / "cut"
    train(cut, max_steps=4)
    (cut / "checkpoint-3").mkdir()
    resumed = train(cut, True)
    assert resumed["step"] == 8
    for key, gamma in resumed["gamma"].items():
        assert float(gamma) == float(whole["gamma"][key])

    checkpoint = cut / "checkpoint-4"
    (checkpoint / STATE_FILE).unlink()  # as of a run without the clip
    with pytest.raises(FileNotFoundError, match="missing_state='start'"):
        train(cut, str(checkpoint))
    switched = train(cut, str(checkpoint), missing_state="start")
    assert switched["step"] == 4  # counted from the switch


def train_on_this_rank(way, folder, checkpoint=None, **arguments):
    """Train; return the clip's steps and gammas."""
    let_formers_start_fleet()
    trainer = make_trainer(way, folder, **arguments)
    trainer.train(resume_from_checkpoint=checkpoint)
    gamma = trainer.clip.full_state_dict()["gamma"]
    return trainer.clip.num_steps, {k: float(v) for k, v in gamma.items()}


@formers
@pytest.mark.slow
def test_a_flex_checkpoint_has_the_clip_s_file_beside_it(tmp_path):
    """PaddleFormers' and PaddleFleet's default format, here on two ranks."""

    def train(folder, **arguments):
        return run_on_ranks(
            train_on_this_rank,
            2,
            way="mixin",
            folder=str(folder),
            per_device_train_batch_size=2,
            sharding="stage1",
            split_param=False,
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
    for (steps, gamma), (_, expected) in zip(resumed, whole, strict=True):
        assert steps == 8
        assert gamma == pytest.approx(expected, rel=1e-5)


@formers
def test_example_runs_and_clips(tmp_path):
    printed = run_example("paddleformers_trainer", tmp_path)
    assert "clip_clipped_fraction" in printed
    assert [*(tmp_path / "outputs").glob("*/checkpoint-40/*.safetensors")]
