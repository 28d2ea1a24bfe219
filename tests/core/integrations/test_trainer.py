# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the Trainers share: a clip's state on ranks, and numbers for writers."""

import math
import types
import warnings
from pathlib import Path

import paddle
import pytest
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC, save_state
from paddle_adagc.integrations import trainer
from paddle_adagc.integrations.logs import add_histograms
from paddle_adagc.integrations.trainer import (
    ClippingCallback,
    ClippingMixin,
    bind_clip,
    load_clip,
    take_over_clipping,
)
from paddle_adagc.state import STATE_FILE


def clip_of(steps, size=1.0):
    """A clip after some steps."""
    parameters = make_parameters([[2]])
    parameters[0].name = "weight"
    clip = ClipGradByAdaGC(t_start=1)
    for _ in range(steps):
        clip_arrays(clip, parameters, [[size, size]])
    return clip


@pytest.mark.parametrize(
    ("mine", "other", "missing_state", "expected"),
    [
        ("ours", "ours", "raise", 3),
        ("ours", "no state", "raise", 3),
        ("ours", None, "raise", 3),  # it knows of no checkpoint
        ("no state", "ours", "raise", 3),
        (None, "ours", "raise", 3),
        (None, None, "raise", 0),
        ("no state", "no state", "start", 0),
        ("no state", "no state", "raise", "give missing_state='start'"),
        ("ours", "another's", "start", "ranks find different"),
        ("ours", "damaged", "start", "rank 1: damaged"),
    ],
)
def test_the_state_of_one_rank_serves_all(
    monkeypatch, tmp_path, mine, other, missing_state, expected
):
    for folder, size in (("ours", 1.0), ("another's", 0.1)):
        save_state(clip_of(3, size).state_dict(), tmp_path / folder)
    found = {
        None: None,
        "no state": FileNotFoundError("none."),
        "damaged": ValueError("damaged"),
        "ours": trainer.load_state(tmp_path / "ours"),
        "another's": trainer.load_state(tmp_path / "another's"),
    }[other]
    monkeypatch.setattr(trainer.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(trainer.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(
        trainer.dist,
        "all_gather_object",
        lambda answers, own: answers.extend([own, found]),
    )
    clip, checkpoint = ClipGradByAdaGC(t_start=1), mine and tmp_path / mine
    assert load_clip(object(), checkpoint, missing_state) is None
    if isinstance(expected, int):
        load_clip(clip, checkpoint, missing_state)
        assert clip.num_steps == expected
        return
    with pytest.raises((FileNotFoundError, ValueError), match=expected):
        load_clip(clip, checkpoint, missing_state)


SAVES = types.SimpleNamespace(value="steps")
FLEX = {"save_checkpoint_format": "flex_checkpoint", "save_strategy": SAVES}


@pytest.mark.parametrize(
    ("clip", "arguments", "message"),
    [
        (ClipGradByAdaGC(t_start=5), {"max_steps": 1}, "t_start=5, and max_"),
        (ClipGradByAdaGC(t_start=5), {"max_steps": 6}, None),
        (ClipGradByAdaGC(t_start=5), {}, None),
        (paddle.nn.ClipGradByNorm(1.0), {"max_steps": 1}, None),
        (ClipGradByAdaGC(), FLEX, "cannot load a flex_checkpoint"),
        (ClipGradByAdaGC(), {"max_grad_norm": 0.5}, "=0.5 is not used"),
    ],
)
def test_arguments_that_do_not_fit_are_warned_of(clip, arguments, message):
    args = types.SimpleNamespace(
        **{"max_grad_norm": 1.0, "max_steps": -1, **arguments}
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        take_over_clipping(args, clip)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == bool(message)
    assert all(message in text for text in messages)
    assert args.max_grad_norm == 0.0


def test_a_mixin_behind_the_trainer_is_refused():
    base = type("Base", (), {"create_optimizer": None})
    with pytest.raises(TypeError, match=r"class W\(ClippingMixin, Base\)"):
        type("W", (base, ClippingMixin), {})


class Writer(dict):
    """Keeps what it gets, by tag."""

    def add_scalar(self, tag, value, step):
        self[tag] = (value, step)

    add_text = add_scalar

    def add_histogram(self, tag, values, step):
        self[tag] = (values.tolist(), step)


def numbers(norm):
    return {"norm": norm, "gamma": 2.0, "h": 0.5}


TENSORS = {
    "layers.0.up.weight": numbers(1.0),
    "layers.1.up.weight": numbers(3.0),
    "layers.0.down.weight": numbers(math.inf),
    "layers.1.down.weight": numbers(math.nan),
    "head.weight": numbers(5.0),
    "embed.weight": numbers(math.inf),
}


def test_groups_are_histograms_and_single_tensors_are_curves():
    logged, writers = [], [Writer(), Writer()]
    wandb = types.SimpleNamespace(
        Histogram=lambda values: values.tolist(),
        Table=lambda columns, data: [columns, *data],
        log=logged.append,
    )
    callbacks = [
        object(),
        types.SimpleNamespace(vdl_writer=writers[0]),
        types.SimpleNamespace(tb_writer=writers[1]),
        types.SimpleNamespace(_wandb=wandb),
    ]
    lowest = {"head.weight": 0.123456}
    add_histograms(callbacks, {"tensors": TENSORS, "lowest_h": lowest}, 7)
    shown = {"norm/layers.N.up.weight": [1.0, 3.0], "norm/head.weight": 5.0}
    for group in ("layers.N.up.weight", "layers.N.down.weight"):
        shown |= {f"gamma/{group}": [2.0, 2.0], f"h/{group}": [0.5, 0.5]}
    for key in ("head.weight", "embed.weight"):
        shown |= {f"gamma/{key}": 2.0, f"h/{key}": 0.5}
    shown = {f"train/clip_{tag}": value for tag, value in shown.items()}
    table = "| tensor | h |\n| --- | ---: |\n| head.weight | 0.1235 |"
    tag = "train/clip_lowest_h"
    for writer in writers:
        expected = {tag: table, **shown}
        assert writer == {k: (value, 7) for k, value in expected.items()}
    rows = [["tensor", "h"], ("head.weight", 0.1235)]
    assert logged == [{**shown, tag: rows, "train/global_step": 7}]
    add_histograms(callbacks[3:], {"tensors": {"head": numbers(1.0)}}, 8)
    assert logged[1] == {
        "train/global_step": 8,
        **{f"train/clip_{k}/head": v for k, v in numbers(1.0).items()},
    }


class Trainer:
    """A Trainer of PaddleFleet's shape; ``fetched`` is known within `train`."""

    fetched = None

    def __init__(self, output_dir="out", model=None, callbacks=(), **arguments):
        arguments = {"max_steps": -1, "max_grad_norm": 1.0, **arguments}
        self.args = types.SimpleNamespace(
            output_dir=str(output_dir),
            save_steps=4,
            local_process_index=0,
            **arguments,
        )
        self.model = model or paddle.nn.Linear(2, 1)
        self.state = types.SimpleNamespace(
            global_step=0, is_world_process_zero=True
        )
        self.callback_handler = types.SimpleNamespace(callbacks=callbacks)

    def _build_grad_clip(self):
        return paddle.nn.ClipGradByGlobalNorm(self.args.max_grad_norm)

    def create_optimizer(self, lr_scheduler=None):
        return paddle.optimizer.AdamW(
            parameters=self.model.parameters(),
            grad_clip=self._build_grad_clip(),
        )

    def train(self, resume_from_checkpoint=None):
        found = self.fetched or resume_from_checkpoint
        return self._inner_training_loop(1, resume_from_checkpoint=found)

    def _inner_training_loop(self, other, resume_from_checkpoint):
        optimizer = self.create_optimizer()
        while self.state.global_step < self.args.max_steps:
            loss = self.model(paddle.ones([1, 2])).sum()
            loss.backward()
            optimizer.step()
            self.state.global_step += 1
            self.log({"loss": loss.item()})
            self._save_checkpoint(self.model, metrics={"eval_loss": 2.0})
        return resume_from_checkpoint

    def log(self, logs):
        print(logs)

    def _save_checkpoint(self, model, metrics=None):
        files = Path(self.args.output_dir).rglob(STATE_FILE)
        self.saved = metrics, len([*files])  # of the clip, already there


def get_last_checkpoint(folder):
    """Finds it as the Trainer's module does."""
    return max(map(str, Path(folder).glob("checkpoint-*")), default=None)


class Clipping(ClippingMixin, Trainer):
    pass


def clipping(output_dir, **arguments):
    return Clipping(output_dir, clip=ClipGradByAdaGC(t_start=1), **arguments)


def test_the_clip_resumes_once_the_trainer_has_its_checkpoint(tmp_path):
    made = clipping(tmp_path, max_steps=1)
    made.train()
    assert made._build_grad_clip() is made.clip
    assert made.saved == ({"eval_loss": 2.0}, 1)
    again, newest = clipping(tmp_path), str(tmp_path / "checkpoint-1")
    assert again.train(resume_from_checkpoint=True) == newest
    assert again.clip.num_steps == 1
    again = clipping(tmp_path)
    again.fetched = newest
    again.train("is not here yet")
    assert again.clip.num_steps == 1
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        clipping(tmp_path / "empty").train(resume_from_checkpoint=True)


def test_the_file_lies_where_the_checkpoint_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("PDC_FLASH_DEVICE", str(tmp_path / "flash"))
    clipping(tmp_path / "out", max_steps=4, flash_device_save_steps=2).train()
    found = {
        str(path.parent.relative_to(tmp_path))
        for path in tmp_path.rglob(STATE_FILE)
    }
    assert found == {
        *(f"flash/checkpoint-{step}" for step in (2, 4)),
        *(f"out/checkpoint-{step}" for step in (1, 3, 4)),
    }


@pytest.mark.parametrize(("rank", "first"), [(0, 0), (1, 2), (None, 0)])
def test_experts_have_global_names(rank, first):
    """``ernie_pretrain`` numbers those of every rank from 0."""
    experts = paddle.nn.LayerList([paddle.nn.Linear(1, 1) for _ in range(2)])
    mlp = paddle.nn.Sequential(("experts", experts))
    model = paddle.nn.Sequential(("0", paddle.nn.Sequential(("mlp", mlp))))
    model.config = types.SimpleNamespace(
        moe_rank=rank, moe_world_size=2, moe_num_experts=4
    )
    clip = ClipGradByAdaGC()
    bind_clip(clip, model, None, None)
    numbers = {int(key.split(".")[3]) for key in clip._tensors.keys}
    assert numbers == {first, first + 1}
    assert "state_dict" not in vars(model)


def test_a_callback_s_reporters_get_all_that_it_gets():
    callback, got = ClippingCallback(clip_of(2)), []
    report = types.SimpleNamespace(
        on_log=lambda *_, **kwargs: got.append(kwargs)
    )
    callback._reporters.append(report)
    state, logs = types.SimpleNamespace(global_step=2), {"loss": 1.0}
    callback.on_log(None, state, None, logs=logs, model="model")
    del logs["loss"]  # reported already
    assert logs["clip_num_tensors"] == 1
    assert got == [{"logs": logs, "model": "model"}]
    callback.on_log(None, state, None, logs={"eval_loss": 1.0})
    assert callback.on_step_end(None, state, None) is None
    assert len(got) == 1


FSDP = types.SimpleNamespace(value="fsdp")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clip": None}, "clip is None: give a clip, such as"),
        ({"clip": ClipGradByAdaGC}, "clip is <class"),
        ({"missing_state": "x"}, "one of raise, start; got 'x'"),
        ({"enable_auto_parallel": True}, "enable_auto_parallel"),
        ({"sharding": [FSDP]}, "use sharding=stage1"),
        (
            {"callbacks": [ClippingCallback(ClipGradByAdaGC())]},
            "leave ClippingCallback out",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, arguments, message):
    arguments = {"clip": ClipGradByAdaGC(), **arguments}
    with pytest.raises((TypeError, ValueError), match=message):
        Clipping(tmp_path, **arguments)
    if arguments.keys() <= {"clip", "missing_state"}:
        with pytest.raises((TypeError, ValueError), match=message):
            ClippingCallback(**arguments)
