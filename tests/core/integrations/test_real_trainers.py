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
import shutil
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
from paddle_adagc.state_file import STATE_FILE, load_state, save_state

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


def make_trainer(
    way,
    output_dir,
    name="Llama",
    missing_state="raise",
    new_tensors="raise",
    **arguments,
):
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
    choices = {"missing_state": missing_state, "new_tensors": new_tensors}
    if way == "mixin":
        return ClippingTrainer(clip=clip, **choices, **common)
    trainer = Logged(**common)
    trainer.clip = clip
    attach(trainer, clip, Options(**choices))
    return trainer


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
    assert trainer.args.max_grad_norm == 0
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


@pytest.mark.slow
def test_a_resume_takes_the_state_of_the_weights(tmp_path):
    """Of another folder; no other step's file; none of a cut save."""

    def train(folder, checkpoint=None, **arguments):
        values = {"max_steps": 5, "save_steps": 2, **arguments}
        state = train_anew("mixin", tmp_path / folder, checkpoint, **values)
        return {key: float(gamma) for key, gamma in state["gamma"].items()}

    train("a", max_steps=4)
    train("b", max_steps=4, learning_rate=0.1)
    (own, source), other = (
        [tmp_path / "a" / f"checkpoint-{step}" for step in (2, 4)],
        tmp_path / "b/checkpoint-4",
    )
    assert gammas_in(source) != gammas_in(other)
    expected = train("a", str(source), save_steps=10)
    assert train("b", str(source), save_steps=10) == expected
    shutil.copy(own / STATE_FILE, source)
    with pytest.raises(ValueError, match=r"is of step 2 .* resumes step 4"):
        train("a", str(source))
    shutil.copy(other / STATE_FILE, source)
    with pytest.raises(ValueError, match=r"of step 4 of the run 'b, .*'a, "):
        train("a", str(source))
    (scheduler,) = source.glob("scheduler.*")
    scheduler.unlink()
    (source / STATE_FILE).unlink()
    with pytest.warns(UserWarning, match=r"checkpoint-4 is unfinished"):
        resumed = train("a", True, save_steps=10)
    assert resumed == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_state_of_other_tensors(tmp_path):
    """A tensor is new, another gone; of one rank under sharding."""

    def train(**arguments):
        checkpoint = arguments.get("resume_from_checkpoint")
        return train_anew("object", tmp_path, checkpoint, **arguments)

    train(max_steps=4)
    checkpoint = str(tmp_path / "checkpoint-4")
    state = load_state(checkpoint)
    new, *_ = state["gamma"]
    for numbers in (state["gamma"], state.get("support", {})):
        numbers["head.weight"] = numbers.pop(new, 1.0)
    save_state(state, checkpoint)
    again = {"resume_from_checkpoint": checkpoint, "save_strategy": "no"}
    with pytest.raises(ValueError, match=r"checkpoint-4: .* new_tensors='star"):
        train(**again)
    changed = train(**again, new_tensors="start")
    assert changed["step"] == 8
    assert new in changed["gamma"]
    assert "head.weight" not in changed["gamma"]


def gammas_in(checkpoint):
    gamma = load_state(checkpoint)["gamma"]
    return {key: float(value) for key, value in gamma.items()}


def test_backends_get_the_clip_s_numbers(tmp_path):
    visualdl = pytest.importorskip("visualdl")
    trainer = make_trainer(
        "object",
        tmp_path / "run",
        report_to=["visualdl"],
        logging_dir=str(tmp_path / "logs"),
    )
    trainer.train()
    (log,) = (tmp_path / "logs").glob("*.log")
    tags = visualdl.LogReader(file_path=str(log)).get_tags()
    assert "train/clip_clipped_fraction" in tags["scalar"]
    (first, *_) = (k for k in trainer.clip.state_dict()["gamma"] if ".0." in k)
    group = first.replace(".0.", ".N.")
    assert {f"train/clip_{q}/{group}" for q in ("norm", "gamma", "h")} <= {
        *tags["histogram"]
    }
    for line in trainer.logged:
        assert all(np.isscalar(value) for value in line.values())


class Regression(paddle.nn.Layer):
    """Learns to mirror its input."""

    def __init__(self):
        super().__init__()
        layers = [paddle.nn.Linear(16, 16) for _ in range(3)]
        self.layers = paddle.nn.Sequential(*layers)

    def forward(self, x, labels=None):
        return ((self.layers(x) - labels) ** 2).mean()


def in_order(folder, clip):
    """A Trainer of 80 steps; batches 57 and 58 are ruined."""
    library = importlib.import_module(f"{LIBRARY}.trainer")
    ours = importlib.import_module(f"paddle_adagc.integrations.{LIBRARY}")

    class InOrder(library.Trainer):
        logged = ()

        def _get_train_sampler(self):
            data, size = self.train_dataset, self.args.train_batch_size
            return paddle.io.BatchSampler(data, batch_size=size)

        def log(self, logs, **kwargs):
            super().log(logs, **kwargs)
            self.logged += (logs,)

    class Clipping(ours.ClippingMixin, InOrder):
        pass

    x = np.random.default_rng(0).normal(size=[80, 32, 16]).astype("float32")
    labels = x[..., ::-1].copy()
    labels[57:59] *= 40
    args = library.TrainingArguments(
        output_dir=str(folder),
        max_steps=80,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        device="cpu",
        **({"amp_master_grad": False} if IS_FORMERS else {}),
    )
    pairs = zip(x.reshape(-1, 16), labels.reshape(-1, 16), strict=True)
    rows = [{"x": a, "labels": b} for a, b in pairs]
    return Clipping(
        clip=clip, model=Regression(), args=args, train_dataset=rows
    )


def test_a_log_shows_batches_that_it_does_not_end_with(tmp_path):
    watch = pytest.importorskip("paddle_adagc.watch")
    trainer = in_order(tmp_path, ClipGradByAdaGC(t_start=15))
    trainer.train()
    logs = [line for line in trainer.logged if "loss" in line]
    assert [line["global_step"] for line in logs] == [*range(10, 81, 10)]
    calm, ruined, last = logs[4], logs[5], logs[6]
    for line in (calm, last):
        shown = line["clip_global_grad_norm"]
        assert ruined["clip_global_grad_norm"] < 2 * shown
        assert ruined["clip_global_grad_norm_max"] > 10 * shown
        assert ruined["clip_h_min_worst"] < line["clip_h_min_worst"] / 5
    for name in ("h_min_worst", "global_grad_norm_max"):
        assert ruined[f"clip_{name}_step"] in (58, 59)
    until = [line.get("clip_warmup_until") for line in logs]
    assert until == [15] + [None] * 7
    run = watch.read_record(tmp_path / "record")
    assert run.step.tolist() == [*range(1, 81)]
    assert np.isfinite(run.column("loss")).all()
    alarms = [a for a in run.alarms if a["series"] == "global_grad_norm"]
    assert not alarms or alarms[0]["step"] == 58


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
