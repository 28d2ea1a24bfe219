# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip in PaddleNLP's own model and Trainer, as its users have them."""

import functools

import numpy as np
import paddle
import pytest
from helpers import TINY_LLAMA
from paddlenlp.trainer import Trainer, TrainingArguments
from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.integrations.paddlenlp import ClippingCallback, ClippingMixin
from paddle_adagc.lab.data.config import DataConfig
from paddle_adagc.lab.data.datasets import build_datasets, collate_batch
from paddle_adagc.state import STATE_FILE


class Logged(Trainer):
    """Keeps what it logs."""

    def log(self, logs, **kwargs):
        self.logged = [*getattr(self, "logged", []), logs]
        super().log(logs, **kwargs)


class ClippingTrainer(ClippingMixin, Logged):
    """What a user writes."""


def with_callback(clip, missing_state, **arguments):
    """What a user writes who cannot choose the Trainer's class."""
    callback = ClippingCallback(clip, missing_state)
    trainer = Logged(**arguments, callbacks=[callback])
    trainer.clip = clip
    return trainer


WAYS = {"mixin": ClippingTrainer, "callback": with_callback}


def make_trainer(
    output_dir,
    max_steps=20,
    missing_state="raise",
    report_to=(),
    way="mixin",
    **arguments,
):
    config = LlamaConfig(**TINY_LLAMA)
    paddle.seed(0)
    train, _ = build_datasets(DataConfig(seq_length=32), 20 * 8)
    make = Logged
    if way is not None:
        make = functools.partial(
            WAYS[way],
            clip=ClipGradByAdaGC(t_start=5),
            missing_state=missing_state,
        )
    return make(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(
            output_dir=str(output_dir),
            max_steps=max_steps,
            per_device_train_batch_size=8,
            learning_rate=3e-3,
            lr_scheduler_type="constant",
            weight_decay=0.3,
            adam_beta2=0.95,
            logging_steps=20,
            report_to=[*report_to],
            save_steps=12,
            device="cpu",
            **arguments,
        ),
        data_collator=collate_batch,
        train_dataset=train,
    )


def test_llama_trains_in_paddlenlp_s_trainer_and_logs_the_clip(tmp_path):
    trainer = make_trainer(tmp_path, save_strategy="no")
    loss = trainer.train().metrics["train_loss"]
    assert loss < np.log(256)
    assert trainer.clip.num_steps == 20
    metrics = trainer.clip.metrics()
    assert len(metrics["tensors"]) == len(trainer.model.parameters())
    gamma = [tensor["gamma"] for tensor in metrics["tensors"].values()]
    assert np.isfinite(gamma).all()
    (logs,) = (line for line in trainer.logged if "loss" in line)
    summary = trainer.clip.summary()
    for name in ("global_grad_norm", "clipped_fraction", "h_min"):
        assert logs[f"clip_{name}"] == float(f"{summary[name]:.4g}")
    assert not [name for name in logs if "/" in name]  # of a tensor
    optimizer = trainer.optimizer
    assert optimizer._grad_clip is trainer.clip
    assert (optimizer._beta2, optimizer._weight_decay) == (0.95, 0.3)


@pytest.mark.parametrize(
    ("way", "is_unified"),
    [("mixin", False), ("mixin", True), ("callback", False)],
)
def test_the_clip_goes_on_from_the_trainer_s_checkpoint(
    tmp_path, way, is_unified
):
    def train(name, checkpoint=None, **arguments):
        with paddle.utils.unique_name.guard():  # names of a new process
            trainer = make_trainer(
                tmp_path / name,
                way=way,
                unified_checkpoint=is_unified,
                **arguments,
            )
            trainer.train(resume_from_checkpoint=checkpoint)
        return trainer.clip.state_dict()

    whole = train("whole")
    train("cut", max_steps=12)
    (tmp_path / "cut" / "checkpoint-9").mkdir()
    newest = str(tmp_path / "cut" / "checkpoint-12")
    # A callback does not see the argument of train().
    checkpoint = newest if way == "callback" else True
    resumed = train("cut", checkpoint=checkpoint)
    assert resumed["step"] == 20
    for key, gamma in resumed["gamma"].items():
        assert float(gamma) == float(whole["gamma"][key])


def test_trainer_switches_from_globalgc_as_the_how_to_says(tmp_path):
    def resume(**arguments):
        with paddle.utils.unique_name.guard():
            trainer = make_trainer(tmp_path, **arguments)
            trainer.train(resume_from_checkpoint=True)
        return trainer

    with paddle.utils.unique_name.guard():
        make_trainer(tmp_path, max_steps=12, way=None).train()
    assert not (tmp_path / "checkpoint-12" / STATE_FILE).exists()
    with pytest.raises(FileNotFoundError, match="missing_state='start'"):
        resume()
    trainer = resume(missing_state="start")
    assert trainer.state.global_step == 20
    assert trainer.clip.num_steps == 8  # counted from the switch


@pytest.mark.parametrize("way", WAYS)
def test_backends_get_the_clip_s_numbers(tmp_path, way):
    visualdl = pytest.importorskip("visualdl")
    trainer = make_trainer(
        tmp_path / "run",
        way=way,
        report_to=["visualdl"],
        logging_dir=str(tmp_path / "logs"),
        save_strategy="no",
    )
    trainer.train()
    folder = tmp_path / "logs" / ("clip" if way == "callback" else "")
    (log,) = folder.glob("*.log")
    tags = visualdl.LogReader(file_path=str(log)).get_tags()
    assert "train/clip_clipped_fraction" in tags["scalar"]
    assert "train/clip_h_median" in tags["scalar"]
    group = "llama.layers.N.mlp.up_proj.weight"
    assert {f"train/clip_{q}/{group}" for q in ("norm", "gamma", "h")} <= {
        *tags["histogram"]
    }
    (line,) = [logs for logs in trainer.logged if "loss" in logs]
    assert all(np.isscalar(value) for value in line.values())


def test_a_wrong_missing_state_is_refused(tmp_path):
    with pytest.raises(ValueError, match="missing_state='begin' is neither"):
        make_trainer(tmp_path, missing_state="begin")


@pytest.mark.parametrize("way", WAYS)
def test_max_grad_norm_is_not_used_and_that_is_said(tmp_path, way):
    with pytest.warns(UserWarning, match=r"max_grad_norm=0.5 is not used"):
        trainer = make_trainer(tmp_path, way=way, max_grad_norm=0.5)
    assert trainer.args.max_grad_norm == 0


def test_groups_of_parameters_are_clipped(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=7, save_strategy="no")
    trainer.set_optimizer_grouped_parameters(
        [
            {"params": [p for p in trainer.model.parameters() if p.ndim > 1]},
            {"params": [p for p in trainer.model.parameters() if p.ndim == 1]},
        ]
    )
    trainer.train()
    assert trainer.clip.num_steps == 7
    tensors = trainer.clip.metrics()["tensors"]
    assert len(tensors) == len(trainer.model.parameters())


def test_a_checkpoint_gets_its_metrics(tmp_path, monkeypatch):
    saved = []
    trainer = make_trainer(tmp_path)
    monkeypatch.setattr(
        Trainer,
        "_save_checkpoint",
        lambda self, _, metrics: saved.append(metrics),
    )
    trainer._save_checkpoint(trainer.model, {"eval_loss": 2.0})
    assert saved == [{"eval_loss": 2.0}]
