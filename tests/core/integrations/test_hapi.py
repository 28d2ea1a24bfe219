# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in ``paddle.Model.fit``: its record, and its state."""

import numpy as np
import paddle
import pytest
from helpers import assert_equal

from paddle_adagc import ClipGradByAdaGC, load_state
from paddle_adagc.integrations.hapi import ClipCallback
from paddle_adagc.record import read_record

ROWS = np.random.default_rng(0).normal(size=[64, 8]).astype("float32")
LOST = "optimizer has made some: in a resumed run load the clip's state"
CLIPS = {
    "ours": lambda: ClipGradByAdaGC(t_start=3),
    "Paddle's": lambda: paddle.nn.ClipGradByNorm(0.05),
}


def train(
    clip, folder, epochs, load=None, reset=False, callback=None, **options
):
    """Train in 4 steps an epoch, as a new process; give weights and clip."""
    paddle.seed(1)
    with paddle.utils.unique_name.guard():
        layers = [paddle.nn.Linear(8, 8) for _ in range(2)]
        network = paddle.nn.Sequential(*layers)
        model = paddle.Model(network)
        optimizer = paddle.optimizer.AdamW(
            1e-2, parameters=network.parameters(), grad_clip=clip
        )
        model.prepare(optimizer, paddle.nn.MSELoss())
        given = ClipCallback(model, folder / "record", **(callback or {}))
        if load is not None:
            model.load(str(load), reset_optimizer=reset)
        model.fit(
            paddle.io.TensorDataset([paddle.to_tensor(ROWS)] * 2),
            batch_size=16,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[given],
            save_dir=str(folder),
            **options,
        )
    return [parameter.numpy() for parameter in network.parameters()]


@pytest.mark.parametrize("name", CLIPS)
def test_a_run_resumes_with_its_clip(name, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected = train(CLIPS[name](), whole, 4)
    paddle.to_tensor(1e9, stop_gradient=False).backward()  # of no run
    train(CLIPS[name](), cut, 2)
    resumed = train(CLIPS[name](), cut, 2, load=cut / "final.pdparams")
    runs = [read_record(folder / "record") for folder in (whole, cut)]
    for run in runs:
        assert run.step.tolist() == [*range(16)]
        assert run.keys[0] == "0.weight"
    assert_equal(resumed, expected)
    for quantity in ("norm", "gamma", "h"):
        assert_equal(*[run.tensors(quantity) for run in runs])
    assert_equal(*[run.column("loss") for run in runs])


def test_a_network_with_another_head_is_loaded_in_part(tmp_path):
    train(ClipGradByAdaGC(), tmp_path, 1)
    network = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.ReLU())
    network.add_sublayer("head", paddle.nn.Linear(8, 2))
    clip = ClipGradByAdaGC()
    optimizer = paddle.optimizer.AdamW(
        parameters=network.parameters(), grad_clip=clip
    )
    model = paddle.Model(network)
    model.prepare(optimizer, paddle.nn.MSELoss())
    ClipCallback(model)
    model.load(str(tmp_path / "final"), skip_mismatch=True)
    gamma = clip.state_dict()["gamma"]
    assert [key for key, x in gamma.items() if float(x) == np.inf] == [
        "head.weight",
        "head.bias",
    ]


def test_a_run_under_paddle_s_clip_switches(tmp_path):
    train(CLIPS["Paddle's"](), tmp_path, 2)
    clip = ClipGradByAdaGC()
    with pytest.warns(UserWarning, match="made with other arguments"):
        train(clip, tmp_path, 1, load=tmp_path / "final")
    assert clip.num_steps == 12


def test_a_shadow_does_not_get_the_state_of_the_clip_that_acts(tmp_path):
    options = {"callback": {"shadow": ClipGradByAdaGC(t_start=9)}}
    train(CLIPS["ours"](), tmp_path, 1, **options)
    clip = CLIPS["ours"]()
    train(clip, tmp_path, 1, load=tmp_path / "final", **options)
    assert clip.num_steps == 8


@pytest.mark.parametrize("way", ["loaded", "lost", "reset"])
def test_a_clip_whose_state_was_lost_is_named(way, tmp_path, recwarn):
    train(CLIPS["ours"](), tmp_path, 1)
    if way == "lost":
        (tmp_path / "final.adagc_state.safetensors").unlink()
    final, clip = tmp_path / "final", CLIPS["ours"]()
    train(clip, tmp_path, 1, load=final, reset=way == "reset")
    assert clip.num_steps == (8 if way == "loaded" else 4)
    found = [str(warning.message) for warning in recwarn]
    assert sum(LOST in text for text in found) == (way == "lost")


def test_a_second_prepare(tmp_path):
    """Its clip is saved and loaded, and the record goes on."""
    network = paddle.nn.Sequential(paddle.nn.Linear(8, 8))
    model, rows = paddle.Model(network), [paddle.to_tensor(ROWS)] * 2
    given = None
    for epochs in (1, 3):
        clip = CLIPS["ours"]()
        parameters = network.parameters()
        optimizer = paddle.optimizer.AdamW(
            1e-2, parameters=parameters, grad_clip=clip
        )
        model.prepare(optimizer, paddle.nn.MSELoss())
        given = given or ClipCallback(model, tmp_path / "record")
        model.fit(
            paddle.io.TensorDataset(rows),
            batch_size=16,
            epochs=epochs,
            verbose=0,
            callbacks=[given],
            save_dir=str(tmp_path),
        )
    saved = load_state(tmp_path, "final.adagc_state.safetensors")
    assert (saved["step"], [*saved["gamma"]]) == (12, ["0.weight", "0.bias"])
    run = read_record(tmp_path / "record")
    assert run.step.tolist() == [*range(16)]
    clip.set_state_dict({**clip.state_dict(), "step": 3})
    model.load(str(tmp_path / "final"))
    assert clip.num_steps == 12


class Interrupt(paddle.callbacks.Callback):
    """Somebody presses Ctrl-C in the third step of the first fit."""

    def __init__(self):
        super().__init__()
        self.is_first = True

    def on_train_batch_end(self, step, logs=None):
        if self.is_first and step == 2:
            self.is_first = False
            raise KeyboardInterrupt


@pytest.mark.parametrize("shadow", [None, False])
def test_a_second_fit_goes_on_after_one_that_was_interrupted(shadow, tmp_path):
    network = paddle.nn.Linear(8, 8)
    model, clip = paddle.Model(network), CLIPS["Paddle's"]()
    optimizer = paddle.optimizer.AdamW(
        parameters=network.parameters(), grad_clip=clip
    )
    model.prepare(optimizer, paddle.nn.MSELoss())
    given = ClipCallback(model, tmp_path / "record", shadow=shadow)
    rows = paddle.io.TensorDataset([paddle.to_tensor(ROWS)] * 2)
    options = {"batch_size": 16, "verbose": 0}
    options["callbacks"] = [given, Interrupt()]
    with pytest.raises(KeyboardInterrupt):
        model.fit(rows, **options)
    model.fit(rows, **options)
    assert read_record(tmp_path / "record").step.tolist() == [*range(7)]


def test_gradients_are_accumulated(tmp_path):
    train(None, tmp_path, 2, accumulate_grad_batches=2)
    run = read_record(tmp_path / "record")
    assert run.step.tolist() == [0, 1, 2, 3]
    assert np.isfinite(run.column("loss")).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(RuntimeError, match=r"call model\.prepare"):
        ClipCallback(paddle.Model(paddle.nn.Linear(1, 1)))
