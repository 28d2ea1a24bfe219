# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the Trainers share: a clip's state on ranks, and numbers for writers."""

import json
import math
import re
import shutil
import types
import warnings
from pathlib import Path

import numpy as np
import paddle
import pytest
from core.parallel.simulated import Ranks, along
from helpers import clip_arrays, make_parameters
from paddle.nn import ClipGradByGlobalNorm

from paddle_adagc import ClipGradByAdaGC, load_state, save_state
from paddle_adagc.integrations.arguments import take_over_clipping
from paddle_adagc.integrations.checkpoints import load_clip
from paddle_adagc.integrations.clipping import Options, attach
from paddle_adagc.integrations.logs import add_histograms
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
        ("ours", None, "raise", 3),  # it knows of no checkpoint
        ("no state", "ours", "raise", 3),
        (None, "ours", "raise", 3),
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


def test_a_clip_of_paddle_has_no_state(tmp_path):
    load_clip(ClipGradByGlobalNorm(1.0), tmp_path / "none", "raise")


SAVES = types.SimpleNamespace(value="steps")
FLEX = {"save_checkpoint_format": "flex_checkpoint", "save_strategy": SAVES}


@pytest.mark.parametrize(
    ("clip", "arguments", "message"),
    [
        (ClipGradByAdaGC(t_start=5), {"max_steps": 1}, None),
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


class TrainerState(types.SimpleNamespace):
    """What a Trainer saves of itself."""

    @classmethod
    def load(cls, checkpoint):
        path = Path(checkpoint or "") / "trainer_state.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        return cls(**{"global_step": 0, "is_world_process_zero": True, **known})


class Trainer:
    """A Trainer of PaddleFleet's shape; ``fetched`` is known within `train`."""

    fetched = None
    dies_after = None
    """File of a checkpoint after which a kill ends the save."""

    def __init__(self, output_dir="out", model=None, callbacks=(), **arguments):
        arguments = {"max_steps": -1, "max_grad_norm": 1.0, **arguments}
        arguments = {"logging_steps": 1, **arguments}
        self.args = types.SimpleNamespace(
            output_dir=str(output_dir),
            save_steps=4,
            local_process_index=0,
            report_to=[],
            resume_from_checkpoint=None,
            **arguments,
        )
        self.model = model or paddle.nn.Linear(2, 1)
        self.optimizer = None
        self.state = TrainerState.load(None)
        self.callback_handler = types.SimpleNamespace(callbacks=[*callbacks])
        for callback in self.callback_handler.callbacks:
            callback.on_init_end(self.args, self.state, None)

    def add_callback(self, callback):
        self.callback_handler.callbacks.append(callback)

    def call(self, event, **more):
        objects = {"model": self.model, "optimizer": self.optimizer, **more}
        for callback in self.callback_handler.callbacks:
            getattr(callback, event)(
                self.args, self.state, Control(), **objects
            )

    def _build_grad_clip(self):
        return paddle.nn.ClipGradByGlobalNorm(self.args.max_grad_norm)

    def create_optimizer(self, lr_scheduler=None):
        self.optimizer = paddle.optimizer.AdamW(
            parameters=self.model.parameters(),
            grad_clip=self._build_grad_clip(),
        )
        return self.optimizer

    def create_optimizer_and_scheduler(self, num_training_steps=None):
        self.create_optimizer()

    def train(self, resume_from_checkpoint=None):
        found = self.fetched or resume_from_checkpoint
        self.create_optimizer_and_scheduler()
        return self._inner_training_loop(1, resume_from_checkpoint=found)

    def _inner_training_loop(self, other, resume_from_checkpoint):
        self.state = TrainerState.load(resume_from_checkpoint)
        self.call("on_train_begin")
        while self.state.global_step < self.args.max_steps:
            loss = self.model(paddle.ones([1, 2])).sum()
            loss.backward()
            self.optimizer.step()
            self.state.global_step += 1
            self.call("on_step_end")
            if self.state.global_step % self.args.logging_steps == 0:
                self.log({"loss": loss.item()})
            self._save_checkpoint(self.model, metrics={"eval_loss": 2.0})
            self.call("on_save")
        self.call("on_train_end")
        return resume_from_checkpoint

    def log(self, logs):
        self.call("on_log", logs=logs)
        print(logs)
        self.logged = logs

    def _save_checkpoint(self, model, metrics=None):
        self.saved = metrics
        name = f"checkpoint-{self.state.global_step}"
        folder = Path(self.args.output_dir) / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("weights", "trainer_state.json", "scheduler.pdparams"):
            assert not (folder / STATE_FILE).exists()
            (folder / file).write_text(json.dumps(vars(self.state)))
            if self.dies_after == (self.state.global_step, file):
                raise KeyboardInterrupt


class Control:
    """Its module tells a callback which library the Trainer is of."""

    should_save = True


def get_last_checkpoint(folder):
    """Finds it as the Trainer's module does."""
    return max(map(str, Path(folder).glob("checkpoint-*")), default=None)


class Clipping(ClippingMixin, Trainer):
    pass


def clipping(output_dir, t_start=1, **arguments):
    clip = ClipGradByAdaGC(t_start=t_start)
    return Clipping(output_dir, clip=clip, **arguments)


def attached(output_dir, kind=Trainer, **arguments):
    """The same on the object, as adagc-run does it."""
    names = Options.__dataclass_fields__.keys() & arguments.keys()
    options = Options(**{name: arguments.pop(name) for name in names})
    made = kind(output_dir, **arguments)
    made.clip = ClipGradByAdaGC(t_start=1)
    attach(made, made.clip, options)
    return made


def watching(output_dir, **arguments):
    made = Trainer(output_dir, **arguments)
    attach(made, None, Options())
    return made


class OfErniekit(Trainer):
    """Of the shape of erniekit 1.3's, which make and replace their clips.

    So do those of ERNIE's own pre-training.
    """

    def create_optimizer(self, lr_scheduler=None):
        own = type("ClipGradForMOEByGlobalNorm", (ClipGradByGlobalNorm,), {})
        norm = self.args.max_grad_norm
        self.optimizer = paddle.optimizer.AdamW(
            parameters=self.model.parameters(),
            grad_clip=own(norm) if norm > 0 else None,
        )
        if self.optimizer._grad_clip is not None:
            self.optimizer._grad_clip = own(norm)
        return self.optimizer

    def train(self, resume_from_checkpoint=None, ignore_keys_for_eval=None):
        self.create_optimizer_and_scheduler(num_training_steps=1)
        loop = self._inner_training_loop
        return loop(2, resume_from_checkpoint=resume_from_checkpoint)


@pytest.mark.parametrize("way", ["mixin", "object"])
def test_trainers_of_erniekit_s_shape_clip_and_resume(way, tmp_path):
    def make(folder, **arguments):
        arguments = {"log_global_grad_norm": True, **arguments}
        if way == "object":
            return attached(tmp_path / folder, OfErniekit, **arguments)
        kind = type("Clipping", (ClippingMixin, OfErniekit), {})
        clip = ClipGradByAdaGC(t_start=1)
        return kind(tmp_path / folder, clip=clip, **arguments)

    trainer = make("a", max_steps=2)
    trainer.train()
    assert trainer.optimizer._grad_clip is trainer.clip
    assert trainer.clip.num_steps == 2
    assert trainer.logged["global_grad_norm"] > 0
    again = make("b")
    again.train(str(tmp_path / "a/checkpoint-2"))
    assert gamma_of(again.clip) == gamma_of(trainer.clip)


BOTH = pytest.mark.parametrize("make", [clipping, attached])


@BOTH
def test_the_clip_resumes_once_the_trainer_has_its_checkpoint(make, tmp_path):
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


def gamma_of(source):
    """Gammas of a clip, or of a checkpoint."""
    is_clip = isinstance(source, ClipGradByAdaGC)
    state = source.state_dict() if is_clip else load_state(source)
    return {key: float(gamma) for key, gamma in state["gamma"].items()}


def two_runs(make, tmp_path):
    """Two runs with other gradients; their checkpoints of step 2."""
    found = []
    for name, size in (("a", 1.0), ("b", 0.1)):
        model = paddle.nn.Linear(2, 1)
        model.weight.set_value(paddle.full([2, 1], size))
        trainer = make(tmp_path / name, max_steps=2, model=model)
        trainer.model.forward = lambda x, m=model, s=size: (
            s * (x @ m.weight + m.bias)
        )
        trainer.train()
        found.append(tmp_path / name / "checkpoint-2")
    assert gamma_of(found[0]) != gamma_of(found[1])
    return found


@BOTH
def test_the_gamma_is_that_of_the_weights(make, tmp_path):
    """Another folder's, though this one has a checkpoint of the same step."""
    a, b = two_runs(make, tmp_path)
    resumed = make(b.parent)
    resumed.train(str(a))
    assert gamma_of(resumed.clip) == gamma_of(a)


@pytest.mark.parametrize(
    "shadow",
    [
        lambda: ClipGradByAdaGC(t_start=0),
        lambda: ClipGradByAdaGC(init="warmup_ema"),
    ],
)
def test_a_checkpoint_holds_the_clip_that_acts_not_its_shadow(shadow, tmp_path):
    made = clipping(tmp_path, max_steps=2, shadow=shadow())
    made.train()
    assert gamma_of(tmp_path / "checkpoint-2") == gamma_of(made.clip)
    again = clipping(tmp_path / "b", max_steps=3, shadow=shadow())
    again.train(str(tmp_path / "checkpoint-2"))
    assert again.clip.num_steps == 3


@BOTH
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a/checkpoint-1", "it is of step 1 of the run 'a, .*resumes step 2"),
        ("b/checkpoint-2", "it is of step 2 of the run 'b, .*the run 'a, "),
    ],
)
def test_a_foreign_file_is_noticed(make, source, message, tmp_path):
    two_runs(make, tmp_path)
    target = tmp_path / "a/checkpoint-2"
    shutil.copy(tmp_path / source / STATE_FILE, target)
    with pytest.raises(ValueError, match=message):
        make(tmp_path / "new").train(str(target))
    state = json.loads((target / "trainer_state.json").read_text())
    del state["trial_params"]  # as of a run without the clip
    (target / "trainer_state.json").write_text(json.dumps(state))
    if source.endswith("2"):
        with pytest.warns(UserWarning, match="names no run"):
            make(tmp_path / "new").train(str(target))


@pytest.mark.filterwarnings("ignore:.*is unfinished")
@pytest.mark.parametrize(
    ("file", "expected"),
    [("weights", 1), ("trainer_state.json", 1), ("scheduler.pdparams", 2)],
)
def test_a_save_that_was_cut_leaves_a_run_that_resumes(
    file, expected, tmp_path
):
    """With the Trainer's last file there, the clip's lies beside it."""
    made = clipping(tmp_path, max_steps=3)
    made.dies_after = 2, file
    with pytest.raises(KeyboardInterrupt):
        made.train()
    folder = tmp_path / "checkpoint-2"
    assert not (folder / STATE_FILE).exists()
    again = clipping(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again.train(resume_from_checkpoint=True)
    assert again.clip.num_steps == again.state.global_step == expected
    messages = [str(warning.message) for warning in caught]
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


@pytest.mark.parametrize("lost_on", [None, 1])
def test_a_shadow_that_one_rank_lost_is_not_saved(lost_on, monkeypatch):
    """Its whole state takes all ranks."""
    watch = pytest.importorskip("paddle_adagc.watch.trainer")
    acting = ClipGradByGlobalNorm(1.0)

    def saved(rank):
        shadow = None if rank == lost_on else ClipGradByAdaGC()
        recording = watch.TrainerRecord()
        recording.record = types.SimpleNamespace(
            shadow=shadow, flush=lambda: None
        )
        return recording.saved(acting) is (shadow or acting)

    ranks = Ranks(monkeypatch, along("data"))
    assert ranks.run(saved) == [lost_on is None, True]


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


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({}, {"global_norm"}),
        ({"log_global_grad_norm": True}, {"global_norm", "global_grad_norm"}),
    ],
)
def test_dashboards_find_the_global_norm(arguments, names, tmp_path):
    made = clipping(tmp_path, max_steps=1, **arguments)
    made.train()
    usual = {"global_norm", "global_grad_norm"} & made.logged.keys()
    assert usual == names
    for name in usual:
        assert made.logged[name] == made.logged["clip_global_grad_norm"] > 0


def test_the_trainer_s_own_clip_is_recorded(tmp_path):
    watch = pytest.importorskip("paddle_adagc.watch")
    made = watching(tmp_path, max_steps=3)
    made.train()
    shutil.rmtree(tmp_path / "checkpoint-1")
    assert made.args.max_grad_norm == 1.0
    logs = made.logged
    assert logs["global_norm"] == logs["clip_global_grad_norm"] > 1
    assert logs["clip_clipped_grad_norm"] == pytest.approx(1.0, rel=1e-3)
    assert logs["clip_h_min_worst"] == pytest.approx(logs["clip_h_min"])
    assert logs["clip_h_min_worst_step"] == 3
    assert "clip_shadow_h_min" in logs
    state = load_state(tmp_path / "checkpoint-3")
    assert (state["step"], {*state["gamma"]}) == (3, {"weight", "bias"})
    made.args.max_grad_norm, made._build_grad_clip = 0, lambda: None
    made.args.max_steps = 1
    made.train()  # anew: beside the record of before
    assert made.optimizer._grad_clip is None
    for name, steps in (("record", [1, 2, 3]), ("record-2", [1])):
        run = watch.read_record(tmp_path / name)
        assert run.step.tolist() == steps
        assert np.isfinite(run.column("loss")).all()
    assert run.sessions[0].facts["clip"] == "none"


@pytest.mark.parametrize("make", [clipping, attached, watching])
def test_no_checkpoint_is_ahead_of_its_record(make, tmp_path):
    watch = pytest.importorskip("paddle_adagc.watch")
    made = make(tmp_path, max_steps=3, logging_steps=9)
    made.dies_after = (2, "scheduler.pdparams")
    with pytest.raises(KeyboardInterrupt):
        made.train()
    run = watch.read_record(tmp_path / "record")
    assert run.step.tolist() == [1, 2]
    assert run.end["kind"] == "exception"
    assert run.end["text"].startswith("KeyboardInterrupt")


def test_what_cannot_be_recorded_ends_no_training(tmp_path):
    pytest.importorskip("paddle_adagc.watch")
    (tmp_path / "record").write_text("a file")
    made = clipping(tmp_path, max_steps=2)
    with pytest.warns(UserWarning, match="nothing is recorded in"):
        made.train()
    assert made.clip.num_steps == 2
    made = clipping(tmp_path / "b", max_steps=2, record=False)
    made.train()
    assert not (tmp_path / "b/record").exists()
    assert "clip_h_min_worst" not in made.logged


@pytest.mark.parametrize("make", [clipping, attached])
def test_a_step_is_left_out(make, tmp_path):
    watch = pytest.importorskip("paddle_adagc.watch")
    sizes = [1.0 + 0.01 * (step % 7) for step in range(80)]
    sizes[70] = 50.0
    options = {"skip_above": 50.0, "stop_on": "nan"}
    made = make(tmp_path, max_steps=80, **options)
    made.args.logging_steps = 79
    forward = made.model.forward

    def sized(x):  # the stand-in does not clear gradients
        made.optimizer.clear_grad()
        return forward(x) * sizes[made.state.global_step]

    made.model.forward = sized
    made.train()
    assert made.clip.num_steps == 79
    run = watch.read_record(tmp_path / "record")
    assert run.step[run.column("skipped") == 1].tolist() == [71]
    for bad in ({"skip_above": -1}, {"stop_on": "inf"}):
        with pytest.raises(ValueError, match="must be"):
            clipping(tmp_path / "b", **bad)
    with pytest.raises(ValueError, match="need the record"):
        clipping(tmp_path / "b", record=False, skip_above=6)


def test_a_nan_loss_ends_a_run_that_asks_for_it(tmp_path):
    pytest.importorskip("paddle_adagc.watch")
    made = clipping(tmp_path, max_steps=8, stop_on="nan")
    control = types.SimpleNamespace(
        should_training_stop=False, should_save=False
    )
    made.train()
    recording = made._adagc.recording
    objects = made.args, made.state, made.model, made.optimizer
    recording.begin(*objects, lambda clip: None, lambda clip: None)
    for loss, stops in ((1.0, False), (float("nan"), True)):
        recording.record.add_loss(loss)
        recording.record.step()
        recording.record.flush()
        recording.step(control)
        assert control.should_training_stop == stops
    assert control.should_save is True
    control.should_training_stop = False
    made.model.weight.set_value(made.model.weight * float("nan"))
    with pytest.warns(UserWarning, match="nothing is saved"):
        recording.step(control)
    assert control.should_save is False
    recording.close()


WARM_UP = "t_start=5, and max_steps={}: .* over, at step {}; {} steps are left"


@pytest.mark.parametrize(
    ("max_steps", "start", "message"),
    [
        (4, 0, WARM_UP.format(4, 5, 4)),
        (5, 0, WARM_UP.format(5, 5, 5)),
        (6, 0, None),
        (7, 2, WARM_UP.format(7, 7, 5)),  # a switch at step 2
        (8, 2, None),
    ],
)
def test_a_warm_up_that_does_not_end_is_named(
    max_steps, start, message, tmp_path
):
    made = Trainer(tmp_path, max_steps=start)
    made.train()
    found = str(tmp_path / f"checkpoint-{start}") if start else None
    clip = ClipGradByAdaGC(t_start=5)
    arguments = {"max_steps": max_steps, "missing_state": "start"}
    again = Clipping(tmp_path, clip=clip, **arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again.train(found)
    texts = [str(warning.message) for warning in caught]
    texts = [text for text in texts if text.startswith("t_start")]
    assert len(texts) == bool(message)
    assert all(re.match(message, text) for text in texts)


@pytest.mark.parametrize("kind", ["Reproducible", "HFBitexact"])
def test_a_clip_for_accuracy_is_not_replaced_without_a_word(kind):
    base = paddle.nn.ClipGradByGlobalNorm
    name = f"{kind}ClipGradByGlobalNorm"
    optimizer = paddle.optimizer.SGD(
        parameters=paddle.nn.Linear(1, 1).parameters(),
        grad_clip=type(name, (base,), {})(1.0),
    )
    with pytest.warns(UserWarning, match=f"replaces {name}"):
        put_into_optimizer(optimizer, ClipGradByAdaGC())


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
    clip.bind(model)
    numbers = {int(key.split(".")[3]) for key in clip._progress.tensors.keys}
    assert numbers == {first, first + 1}


FSDP = types.SimpleNamespace(value="fsdp")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clip": None}, "clip is None: give a clip, such as"),
        ({"clip": ClipGradByAdaGC}, "clip is <class"),
        ({"missing_state": "x"}, "one of raise, start; got 'x'"),
        ({"new_tensors": "x"}, "one of raise, start; got 'x'"),
        ({"enable_auto_parallel": True}, "enable_auto_parallel"),
        ({"sharding": [FSDP]}, "use sharding=stage1"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, arguments, message):
    arguments = {"clip": ClipGradByAdaGC(), **arguments}
    with pytest.raises((TypeError, ValueError), match=message):
        Clipping(tmp_path, **arguments).train()
