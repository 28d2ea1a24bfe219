# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the Trainers share: a clip's state on ranks, and numbers for writers."""

import math
import types
import warnings
from pathlib import Path

import numpy as np
import paddle
import pytest
from helpers import clip_arrays, make_parameters

from paddle_adagc import ClipGradByAdaGC, save_state
from paddle_adagc.integrations import trainer
from paddle_adagc.integrations.logs import add_histograms
from paddle_adagc.integrations.trainer import (
    ClippingCallback,
    ClippingMixin,
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


@pytest.fixture
def ranks(monkeypatch):
    """``ranks(*answers)``: what the other ranks find."""
    monkeypatch.setattr(trainer.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(trainer.dist, "get_world_size", lambda: 2)

    def answer(other):
        monkeypatch.setattr(
            trainer.dist,
            "all_gather_object",
            lambda found, mine: found.extend([mine, other]),
        )

    return answer


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("other", [True, False])
def test_the_state_of_one_rank_serves_all(ranks, tmp_path, knows, other):
    """Some ranks may know of no checkpoint."""
    save_state(clip_of(3).state_dict(), tmp_path)
    missing = FileNotFoundError("none") if knows else None
    ranks(trainer.load_state(tmp_path) if other else missing)
    clip = ClipGradByAdaGC(t_start=1)
    mine = tmp_path / "mine" if knows else None
    load_clip(clip, mine if other else tmp_path, "raise")
    assert clip.num_steps == 3


def test_no_rank_has_a_state(ranks, tmp_path):
    ranks(FileNotFoundError("none"))
    clip = ClipGradByAdaGC()
    with pytest.raises(FileNotFoundError, match="missing_state='start'"):
        load_clip(clip, tmp_path, "raise")
    load_clip(clip, tmp_path, "start")
    ranks(None)  # nor a checkpoint
    load_clip(clip, None, "raise")
    assert clip.num_steps == 0
    assert load_clip(object(), tmp_path, "raise") is None  # no clip of ours


def test_different_and_damaged_states_are_refused(ranks, tmp_path):
    save_state(clip_of(3).state_dict(), tmp_path)
    save_state(clip_of(3, size=0.1).state_dict(), tmp_path / "other")
    ranks(trainer.load_state(tmp_path / "other"))
    with pytest.raises(ValueError, match="ranks find different"):
        load_clip(ClipGradByAdaGC(), tmp_path, "start")
    ranks(ValueError("damaged"))
    with pytest.raises(ValueError, match="rank 1: damaged"):
        load_clip(ClipGradByAdaGC(), tmp_path, "start")


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


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"clip": None}, TypeError, "clip is None: give a clip, such as"),
        ({"clip": ClipGradByAdaGC}, TypeError, "clip is <class"),
        ({"missing_state": "x"}, ValueError, "one of raise, start; got 'x'"),
    ],
)
def test_what_is_no_clip_is_refused(tmp_path, arguments, error, message):
    arguments = {"clip": ClipGradByAdaGC(), **arguments}
    with pytest.raises(error, match=message):
        Clipping(tmp_path, **arguments)
    with pytest.raises(error, match=message):
        ClippingCallback(**arguments)


def test_a_mixin_behind_the_trainer_is_refused():
    base = type("Base", (), {"create_optimizer": None})
    with pytest.raises(TypeError, match=r"class W\(ClippingMixin, Base\)"):
        type("W", (base, ClippingMixin), {})


class Writer:
    """Keeps what it gets, by tag."""

    def __init__(self):
        self.found = {}

    def add(self, tag, values, step):
        self.found[tag] = (np.asarray(values).tolist(), step)

    add_histogram = add_scalar = add

    def add_text(self, tag, text, step):
        self.found[tag] = (text, step)


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
        Histogram=lambda values: sorted(values.tolist()),
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
    shown = {
        "norm/layers.N.up.weight": [1.0, 3.0],
        "norm/head.weight": 5.0,
    }
    for group in ("layers.N.up.weight", "layers.N.down.weight"):
        shown |= {f"gamma/{group}": [2.0, 2.0], f"h/{group}": [0.5, 0.5]}
    for key in ("head.weight", "embed.weight"):
        shown |= {f"gamma/{key}": 2.0, f"h/{key}": 0.5}
    shown = {f"train/clip_{tag}": value for tag, value in shown.items()}
    table = "| tensor | h |\n| --- | ---: |\n| head.weight | 0.1235 |"
    for writer in writers:
        assert writer.found == {
            "train/clip_lowest_h": (table, 7),
            **{tag: (value, 7) for tag, value in shown.items()},
        }
    rows = [["tensor", "h"], ("head.weight", 0.1235)]
    rest = {"train/clip_lowest_h": rows, "train/global_step": 7}
    assert logged == [{**shown, **rest}]
    alone = {"tensors": {"head.weight": numbers(1.0)}}
    add_histograms(callbacks[3:], alone, 8)
    assert logged[1].keys() == {
        "train/global_step",
        *(f"train/clip_{name}/head.weight" for name in ("norm", "gamma", "h")),
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
    found = [*Path(folder).glob("checkpoint-*")]
    return str(max(found)) if found else None


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enable_auto_parallel": True}, "enable_auto_parallel"),
        (
            {"sharding": [types.SimpleNamespace(value="fsdp")]},
            "use sharding=stage1",
        ),
        (
            {"callbacks": [ClippingCallback(ClipGradByAdaGC())]},
            "leave ClippingCallback out",
        ),
    ],
)
def test_trainers_that_do_not_fit_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        clipping(tmp_path, **arguments)
