# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a Trainer does, or its model is, that few are."""

import math
import re
import shutil
import types

import paddle
import pytest
from core.integrations.trainers import (
    Clipping,
    Trainer,
    attached,
    clipping,
    gamma_of,
)

from paddle_adagc import ClipGradByAdaGC, integrations
from paddle_adagc.integrations.arguments import bind_clip, library_of
from paddle_adagc.integrations.model_units import ModelUnits
from paddle_adagc.integrations.trainer import ClippingMixin
from paddle_adagc.optimizer import clip_of
from paddle_adagc.run.process import Process
from paddle_adagc.run.settings import as_number
from paddle_adagc.watch import read_record
from paddle_adagc.watch.trainer import _num_losses


def test_a_state_that_another_run_left_beside_is_not_taken(tmp_path):
    """It was killed in its save; then a run without the clip came there."""
    killed = clipping(tmp_path / "out", max_steps=3)
    killed.dies_after = (3, "weights")
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    for number in (1, 2):
        shutil.rmtree(tmp_path / f"out/checkpoint-{number}")
    Trainer(tmp_path / "out", max_steps=3).train()
    checkpoint = str(tmp_path / "out/checkpoint-3")
    resumed = clipping(tmp_path / "new", missing_state="start", max_steps=3)
    resumed.train(checkpoint)
    assert resumed.clip.num_steps == 0
    with pytest.raises(FileNotFoundError):
        clipping(tmp_path / "new", max_steps=3).train(checkpoint)


def test_a_trainer_that_takes_the_weights_alone_is_warned_of(tmp_path):
    clipping(tmp_path / "a", max_steps=3).train()

    class WeightsAlone(Clipping):
        def _inner_training_loop(self, other, resume_from_checkpoint):
            self.call("on_train_begin")

    clip = ClipGradByAdaGC(t_start=1)
    trainer = WeightsAlone(tmp_path / "b", clip=clip)
    with pytest.warns(UserWarning, match="begins at step 0, and its clip goes"):
        trainer.train(str(tmp_path / "a/checkpoint-3"))
    assert gamma_of(clip) == gamma_of(tmp_path / "a/checkpoint-3")


def test_a_trainer_may_make_its_optimizer_while_it_is_made(tmp_path):
    class Early(Trainer):
        def __init__(self, *args, **arguments):
            super().__init__(*args, **arguments)
            self.create_optimizer()

    class ClippingEarly(ClippingMixin, Early):
        pass

    clip = ClipGradByAdaGC(t_start=1)
    ClippingEarly(tmp_path, clip=clip, max_steps=2).train()
    assert clip.num_steps == 2


class Positional(Trainer):
    """As with a profiler around the loop; both libraries call it so."""

    def train(self, resume_from_checkpoint=None):
        self.create_optimizer_and_scheduler()
        return self._inner_training_loop(1, resume_from_checkpoint)

    def _inner_training_loop(self, *args):
        return super()._inner_training_loop(*args)


class ClippingPositional(ClippingMixin, Positional):
    pass


@pytest.mark.parametrize("way", ["mixin", "object"])
def test_a_loop_that_names_no_checkpoint_resumes_the_clip(way, tmp_path):
    def make(max_steps):
        if way == "object":
            return attached(tmp_path, kind=Positional, max_steps=max_steps)
        clip = ClipGradByAdaGC(t_start=1)
        return ClippingPositional(tmp_path, clip=clip, max_steps=max_steps)

    make(3).train()
    made = make(5)
    made.train(str(tmp_path / "checkpoint-3"))
    assert made.clip.num_steps == 5


def test_arguments_of_two_trainers_keep_their_threshold(tmp_path):
    made = clipping(tmp_path / "a", max_steps=1, max_grad_norm=0.5)
    plain = Trainer(tmp_path / "b", max_steps=1)
    plain.args = made.args
    plain.train()
    assert clip_of(plain.optimizer).clip_norm == 0.5
    made.train()
    assert clip_of(made.optimizer) is made.clip
    assert made.args.max_grad_norm == 0.5


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (ClipGradByAdaGC(lambda_rel=2), "lambda_rel=2.*: give its settings"),
        (paddle.nn.ClipGradByGlobalNorm(0.1), "the threshold 0.1"),
        (paddle.nn.ClipGradByNorm(0.1), None),  # of each tensor
    ],
)
def test_a_clip_of_the_trainer_s_own_is_not_replaced_in_silence(
    own, message, tmp_path, recwarn
):
    class Own(Trainer):
        def _build_grad_clip(self):
            return own

    attached(tmp_path, kind=Own, max_steps=1).train()
    texts = [str(warning.message) for warning in recwarn]
    told = [text for text in texts if "replaces" in text]
    assert len(told) == bool(message)
    assert all(re.search(message, text) for text in told)


def test_a_bound_of_each_tensor_is_no_threshold():
    clip = paddle.nn.ClipGradByNorm(0.1)
    weight = paddle.nn.Linear(2, 2).parameters()
    optimizer = paddle.optimizer.AdamW(parameters=weight, grad_clip=clip)
    process = Process({}, False, False, False)
    _, mend = process._what_lacks(optimizer)
    assert "ClipGradByAdaGC();" in mend


def test_no_state_beside_checkpoints_looks_like_a_model(tmp_path):
    """PaddleFormers' export takes a folder with *.safetensors for one."""
    killed = clipping(tmp_path, max_steps=3)
    killed.dies_after = (3, "weights")
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    assert [*tmp_path.glob("adagc_state*")]
    assert not [*tmp_path.glob("*.safetensors")]


class MultiHeadAttention(paddle.nn.Layer):
    """As a user writes one: all of q, then k, then v."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.head_dim = 3, 2
        self.qkv_proj = paddle.nn.Linear(6, 18)


def test_a_class_of_a_common_name_is_not_taken_for_the_library_s():
    model = paddle.nn.Sequential(MultiHeadAttention())
    units = ModelUnits(model)
    clip = ClipGradByAdaGC()
    clip.bind(model, units)
    assert [*clip.state_dict()["gamma"]] == [
        "0.qkv_proj.weight",
        "0.qkv_proj.bias",
    ]
    assert units.unknown == {"0.qkv_proj.weight": "its class is not known"}


def test_a_class_that_a_script_derives_from_the_library_s_is_known():
    theirs = type("MultiHeadAttention", (MultiHeadAttention,), {})
    theirs.__module__ = "paddlenlp.transformers.gpt.modeling"
    model = paddle.nn.Sequential(type("Mine", (theirs,), {})())
    clip = ClipGradByAdaGC()
    clip.bind(model, ModelUnits(model))
    assert [*clip.state_dict()["gamma"]][:3] == [
        f"0.{part}_proj.weight" for part in "qkv"
    ]


def test_no_units_are_asked_of_a_model_if_some_are_given():
    class Refusing(paddle.nn.Linear):
        config = types.SimpleNamespace()

        def build_muon_param_info_map(self, *args):
            raise ValueError("unsupported layout")

    args, model = types.SimpleNamespace(), Refusing(2, 2)
    with pytest.raises(ValueError, match="unsupported layout"):
        bind_clip(ClipGradByAdaGC(), model, None, args)
    clip = ClipGradByAdaGC()
    bind_clip(clip, model, {}, args)
    assert [*clip.state_dict()["gamma"]] == ["weight", "bias"]


def test_arguments_that_a_script_derives_are_the_library_s():
    library = type("Arguments", (), {"__module__": "paddlenlp.trainer"})
    mine = type("Mine", (library,), {"__module__": "__main__"})
    assert library_of(mine()) == "paddlenlp"
    near = type("Near", (library,), {"__module__": "paddlemix.trainer"})
    assert library_of(near()) == "paddlenlp"
    assert library_of(types.SimpleNamespace()) == ""


def test_numbers_of_a_file_are_numbers_in_overrides_too():
    given = {"experts": {"lambda_rel": "2e0"}, "embed": None}
    assert as_number(given) == {"experts": {"lambda_rel": 2.0}, "embed": None}


def test_a_loss_of_nan_that_is_left_out_leaves_the_log(tmp_path):
    """The Trainer's running sum is reset by NaN - NaN."""
    from core.integrations.test_real_trainers import make_trainer

    trainer = make_trainer("mixin", tmp_path, skip_above=8.0, logging_steps=1)
    compute = trainer.compute_loss

    def compute_loss(*args, **kwargs):
        loss = compute(*args, **kwargs)
        return loss * math.nan if trainer.state.global_step == 3 else loss

    trainer.compute_loss = compute_loss
    trainer.train()
    losses = [logs["loss"] for logs in trainer.logged if "loss" in logs]
    assert [i for i, x in enumerate(losses) if not math.isfinite(x)] == [3]
    assert len(losses) == 8


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({"_enable_delay_scale_loss": lambda: False}, 1),
        ({"_enable_delay_scale_loss": lambda: True}, 4),
        ({}, 4),  # PaddleFormers from 1.1 on
    ],
)
def test_micro_batches_whose_gradients_are_divided(methods, expected):
    trainer = types.SimpleNamespace(**methods)
    args = types.SimpleNamespace(gradient_accumulation_steps=4)
    assert _num_losses(trainer, args) == expected


def test_a_state_that_ranks_disagree_about_costs_no_checkpoint(
    tmp_path, monkeypatch
):
    trainer = clipping(tmp_path, max_steps=3)

    def disagree(*args):
        raise RuntimeError("ranks disagree about gamma of 'q_norm.weight'")

    monkeypatch.setattr(integrations.clipping, "stage_clip", disagree)
    with pytest.raises(RuntimeError, match="ranks disagree"):
        trainer.train()
    assert (tmp_path / "checkpoint-1").is_dir()


def test_recorded_losses_are_those_of_paddleformers(tmp_path, monkeypatch):
    """It divides the gradients of micro-batches, not their losses."""
    pytest.importorskip("paddleformers")
    from core.integrations.test_real_trainers import make_trainer

    monkeypatch.setattr("paddle.device.synchronize", lambda: None)  # no device
    arguments = {"gradient_accumulation_steps": 4, "logging_steps": 1}
    trainer = make_trainer("mixin", tmp_path, max_steps=5, **arguments)
    trainer.train()
    logged = [logs["loss"] for logs in trainer.logged if "loss" in logs]
    recorded = read_record(tmp_path / "record").column("loss")
    assert recorded.tolist() == pytest.approx(logged, rel=1e-5)
