# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the Trainers share: a clip's state on ranks, and numbers for writers."""

import json
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
from core.parallel.simulated import Ranks, along
from helpers import clip_arrays, make_parameters
from paddle.nn import ClipGradByGlobalNorm

from paddle_adagc import ClipGradByAdaGC, load_state, save_state
from paddle_adagc.integrations.arguments import check_clipping
from paddle_adagc.integrations.checkpoints import load_clip
from paddle_adagc.integrations.trainer import ClippingMixin
from paddle_adagc.optimizer import put_into_optimizer
from paddle_adagc.state_file import STATE_FILE


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
        ("no state", "ours", "raise", 3),
        (None, "ours", "raise", 3),  # it knows of no checkpoint
        (None, None, "raise", 0),
        ("no state", "no state", "start", 0),
        ("no state", "no state", "raise", "give missing_state='start'"),
        ("ours", "another's", "start", "ranks find different"),
        ("ours", "damaged", "start", "rank 1: .*damaged"),
    ],
)
def test_the_state_of_one_rank_serves_all(
    monkeypatch, tmp_path, mine, other, missing_state, expected
):
    for folder, size in (("ours", 1.0), ("another's", 0.1), ("damaged", 1.0)):
        path = save_state(clip_of(3, size).state_dict(), tmp_path / folder)
    path.write_bytes(path.read_bytes()[:40])

    def load(rank):
        folder, clip = (mine, other)[rank], ClipGradByAdaGC(t_start=1)
        load_clip(clip, folder and tmp_path / folder, missing_state)
        return clip.num_steps

    ranks = Ranks(monkeypatch, along("data"))
    if isinstance(expected, int):
        assert ranks.run(load) == [expected] * 2
        return
    with pytest.raises((FileNotFoundError, ValueError), match=expected):
        ranks.run(load)


SAVES = types.SimpleNamespace(value="steps")
FLEX = {"save_checkpoint_format": "flex_checkpoint", "save_strategy": SAVES}


@pytest.mark.parametrize(
    ("clip", "arguments", "message"),
    [
        (ClipGradByAdaGC(t_start=5), {}, None),
        (ClipGradByAdaGC(), FLEX, "cannot load a flex_checkpoint"),
        (ClipGradByAdaGC(), {"max_grad_norm": 0.5}, "=0.5 is not used"),
    ],
)
def test_arguments_that_do_not_fit_are_warned_of(
    clip, arguments, message, recwarn
):
    args = types.SimpleNamespace(
        **{"max_grad_norm": 1.0, "max_steps": -1, **arguments}
    )
    check_clipping(args, clip)
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == bool(message)
    assert all(message in text for text in messages)


def test_a_mixin_behind_the_trainer_is_refused():
    base = type("Base", (), {"create_optimizer": None})
    with pytest.raises(TypeError, match=r"class W\(ClippingMixin, Base\)"):
        type("W", (base, ClippingMixin), {})


def test_the_clip_resumes_once_the_trainer_has_its_checkpoint(tmp_path):
    make = clipping
    made = make(tmp_path, max_steps=1)
    made.train()
    assert made.saved == {"eval_loss": 2.0}
    again, newest = make(tmp_path), str(tmp_path / "checkpoint-1")
    assert again.train(resume_from_checkpoint=True) == newest
    assert again.clip.num_steps == 1
    again = make(tmp_path)
    again.fetched = newest
    again.train("is not here yet")
    assert again.clip.num_steps == 1
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        make(tmp_path / "empty").train(resume_from_checkpoint=True)


def test_the_gamma_is_that_of_the_weights(tmp_path):
    """Another folder's, though this one has a checkpoint of the same step.

    The file of the same step of another run is noticed.
    """
    found = []
    for name, size in (("a", 1.0), ("b", 0.1)):
        model = paddle.nn.Linear(2, 1)
        model.weight.set_value(paddle.full([2, 1], size))
        trainer = clipping(tmp_path / name, max_steps=2, model=model)
        trainer.model.forward = lambda x, m=model, s=size: (
            s * (x @ m.weight + m.bias)
        )
        trainer.train()
        found.append(gamma_of(tmp_path / name / "checkpoint-2"))
    target = tmp_path / "a/checkpoint-2"
    resumed = clipping(tmp_path / "b")
    resumed.train(str(target))
    assert gamma_of(resumed.clip) == found[0] != found[1]
    shutil.copy(tmp_path / "b/checkpoint-2" / STATE_FILE, target)
    message = "it is marked 'b, .*, marked 'a, "
    with pytest.raises(ValueError, match=message):
        clipping(tmp_path / "new").train(str(target))
    state = json.loads((target / "trainer_state.json").read_text())
    del state["trial_params"]  # as of a run without the clip
    (target / "trainer_state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match="step 2, marked None"):
        clipping(tmp_path / "new").train(str(target))


@pytest.mark.parametrize(
    ("file", "expected"),
    [("weights", 1), ("trainer_state.json", 1), ("scheduler.pdparams", 2)],
)
def test_a_save_that_was_cut_leaves_a_run_that_resumes(
    file, expected, tmp_path, recwarn
):
    """With the Trainer's last file there, the clip's lies beside it."""
    made = clipping(tmp_path, max_steps=3)
    made.dies_after = 2, file
    with pytest.raises(KeyboardInterrupt):
        made.train()
    folder = tmp_path / "checkpoint-2"
    assert not (folder / STATE_FILE).exists()
    again = clipping(tmp_path)
    recwarn.clear()
    again.train(resume_from_checkpoint=True)
    assert again.clip.num_steps == again.state.global_step == expected
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == (expected == 1)
    assert all(f"{folder} is unfinished" in text for text in messages)
    again = clipping(tmp_path, max_steps=3)
    again.train(resume_from_checkpoint=True)
    assert load_state(tmp_path / "checkpoint-3")["step"] == 3


def test_a_trainer_that_hides_its_checkpoint_is_refused(tmp_path):
    made = clipping(tmp_path)
    made.state.global_step = 2
    made.create_optimizer()
    with pytest.raises(ValueError, match="at step 2, and does not say from"):
        made.call("on_train_begin")


def test_a_file_of_a_step_that_another_run_went_on_to_is_noticed(tmp_path):
    """The way back without the clip, from a checkpoint in the same folder."""

    class GoingOn(Trainer):
        def _save_checkpoint(self, model, metrics=None):
            state = json.dumps(vars(self.state))
            (tmp_path / "checkpoint-3/trainer_state.json").write_text(state)

    clipping(tmp_path, max_steps=3).train()
    GoingOn(tmp_path, max_steps=3).train(str(tmp_path / "checkpoint-2"))
    again = clipping(tmp_path, max_steps=4)
    with pytest.raises(ValueError, match="not saved with this checkpoint"):
        again.train(str(tmp_path / "checkpoint-3"))


def test_a_save_of_another_process_gets_its_file_later(tmp_path):
    folder = tmp_path / "checkpoint-1"

    class Asynchronous(Trainer):
        def _save_checkpoint(self, model, metrics=None):
            if self.state.global_step == 2:
                folder.mkdir()

    attached(tmp_path, Asynchronous, max_steps=2).train()
    assert [*folder.iterdir()] == [folder / STATE_FILE]
    assert not (tmp_path / "checkpoint-2").exists()


def test_what_a_log_adds_reaches_the_trainer(tmp_path):
    class Adding(Clipping):
        def log(self, logs):
            logs["perplexity"] = 3.0

    made, logs = Adding(tmp_path, clip=ClipGradByAdaGC()), {"eval_loss": 1.0}
    made.log(logs)
    assert logs == {"eval_loss": 1.0, "perplexity": 3.0}


def test_an_optimizer_made_otherwise_gets_the_clip(tmp_path):
    class Hiding(Clipping):
        def create_optimizer(self, lr_scheduler=None):
            return Trainer.create_optimizer(self)

        def create_optimizer_and_scheduler(self, num_training_steps=None):
            self.create_optimizer()

    made = Hiding(tmp_path, clip=ClipGradByAdaGC(t_start=1), max_steps=2)
    made.train()
    assert made.clip.num_steps == 2


def test_a_threshold_that_is_replaced_is_named(tmp_path):
    class Own(Trainer):
        def _build_grad_clip(self):
            return ClipGradByGlobalNorm(0.1)

    with pytest.warns(UserWarning, match="replaces .* threshold 0.1"):
        attached(tmp_path, Own, max_steps=1).train()


def test_a_state_of_another_clip_may_start_anew(tmp_path):
    state = {"step": 3, "config": {"z": 3.0}, "gamma": {"a": 1.0}}
    save_state(state, tmp_path)
    clip = ClipGradByAdaGC()
    with pytest.raises(ValueError, match="warm-up give missing_state='start'"):
        load_clip(clip, tmp_path, "raise")
    with pytest.warns(UserWarning, match="another clip's.*AdaGC starts"):
        load_clip(clip, tmp_path, "start")
    assert clip.num_steps == 0
    assert clip._progress.is_started_anew


@pytest.mark.parametrize("arguments", [{}, {"log_global_grad_norm": True}])
def test_dashboards_find_the_global_norm(arguments, tmp_path):
    """Also ERNIE's, which has that argument."""
    made = clipping(tmp_path, max_steps=1, **arguments)
    made.train()
    norm = made.logged["global_norm"]
    assert norm == made.logged["clip_global_grad_norm"] > 0
    assert ("global_grad_norm" in made.logged) == bool(arguments)


@pytest.mark.parametrize(("max_steps", "is_named"), [(7, True), (8, False)])
def test_a_warm_up_that_does_not_end_is_named(
    max_steps, is_named, tmp_path, recwarn
):
    """Of a run that switches at step 2."""
    Trainer(tmp_path, max_steps=2).train()
    clip = ClipGradByAdaGC(t_start=5)
    arguments = {"max_steps": max_steps, "missing_state": "start"}
    again = Clipping(tmp_path, clip=clip, **arguments)
    again.train(str(tmp_path / "checkpoint-2"))
    message = "t_start=5, and max_steps=7: .* over, at step 7; 5 steps are left"
    texts = [str(warning.message) for warning in recwarn]
    assert any(re.match(message, text) for text in texts) == is_named


def test_a_clip_for_accuracy_is_not_replaced_without_a_word():
    name, base = "ReproducibleClipGradByGlobalNorm", ClipGradByGlobalNorm
    optimizer = paddle.optimizer.SGD(
        parameters=paddle.nn.Linear(1, 1).parameters(),
        grad_clip=type(name, (base,), {})(1.0),
    )
    with pytest.warns(UserWarning, match=f"replaces {name}"):
        put_into_optimizer(optimizer, ClipGradByAdaGC())


def test_the_file_lies_where_the_checkpoint_lies(tmp_path, monkeypatch):
    for step in (2, 4):  # the Trainer's
        (tmp_path / f"flash/checkpoint-{step}").mkdir(parents=True)
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
    clip.bind(model)
    numbers = {int(key.split(".")[3]) for key in clip._progress.tensors.keys}
    assert numbers == {first, first + 1}


KINDS = ("fsdp", "stage3", "offload")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clip": ClipGradByAdaGC}, "clip is <class"),
        ({"missing_state": "x"}, "one of raise, start; got 'x'"),
        ({"enable_auto_parallel": True}, "enable_auto_parallel"),
        *(({"sharding": [kind]}, "use sharding=stage1") for kind in KINDS),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, arguments, message):
    arguments = {"clip": ClipGradByAdaGC(), **arguments}
    with pytest.raises((TypeError, ValueError), match=message):
        Clipping(tmp_path, **arguments).train()
