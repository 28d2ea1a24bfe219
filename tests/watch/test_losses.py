# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A loss belongs to the optimizers whose parameters it reached."""

import sys

import numpy as np
import paddle
import pytest
from helpers import run_python

from paddle_adagc.watch import read_record
from paddle_adagc.watch.trainer import open_record

NUM_STEPS = 5


def value(scale, step):
    """Return a loss of this value, that reaches all parameters of a net."""
    return lambda net: net(paddle.ones([2, 4])).mean() * 0 + scale * step


def make_pair():
    paddle.seed(1)
    nets = paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 4)
    optimizers = [
        paddle.optimizer.Adam(parameters=net.parameters(), name=name)
        for net, name in zip(nets, ("actor", "critic"), strict=True)
    ]
    return *nets, *optimizers


def separate(step, actor, critic, a, c):
    """All backward passes come before all updates."""
    value(1, step)(actor).backward()
    value(10, step)(critic).backward()
    a.step(), c.step()
    a.clear_grad(), c.clear_grad()


def accumulated(step, actor, critic, a, c):
    for _ in range(2):
        value(0.5, step)(actor).backward()
        value(5, step)(critic).backward()
    c.step(), a.step()
    a.clear_grad(), c.clear_grad()


def gan(step, generator, critic, g, c):
    """The generator's loss reaches the critic, which forgets it."""
    value(10, step)(critic).backward()
    c.step()
    value(1, step)(lambda x: critic(generator(x))).backward()
    g.step()
    g.clear_grad(), c.clear_grad()


def together(step, actor, critic, a, c):
    loss = value(1, step)(actor) + value(10, step)(critic)
    loss.backward()
    a.step(), c.step()
    a.clear_grad(), c.clear_grad()


def rare(step, actor, critic, a, c):
    """The actor's update comes every second step only."""
    value(10, step)(critic).backward()
    c.step(), c.clear_grad()
    if step % 2:
        value(1, step)(actor).backward()
        a.step(), a.clear_grad()


LOOPS = {
    accumulated: (1, 10),
    gan: (1, 10),
    together: (11, 11),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_each_optimizer_has_its_own_loss(loop, tmp_path):
    parts = make_pair()
    records = [
        open_record(tmp_path / name, optimizer, model=net)
        for name, net, optimizer in zip("ac", parts[:2], parts[2:], strict=True)
    ]
    for step in range(1, NUM_STEPS + 1):
        loop(step, *parts)
    for record in records:
        record.close()
    for name, scale, kind in zip(
        "ac", LOOPS[loop], ("actor", "critic"), strict=True
    ):
        run = read_record(tmp_path / name)
        expected = [scale * step for step in range(1, NUM_STEPS + 1)]
        assert run.column("loss").tolist() == expected
        facts = run.sessions[0].facts
        assert (facts["optimizer"], facts["optimizer_name"]) == ("Adam", kind)
        shared = ["Adam of Linear"] if loop is together else []
        assert facts["shares_loss_with"] == shared
        last = scale * NUM_STEPS / (2 if loop is accumulated else 1)
        assert run.end["last_loss"] == last


def test_a_step_of_hapi_has_its_number_and_loss(tmp_path):
    printed = []

    class Keep(paddle.callbacks.Callback):
        def on_train_batch_end(self, step, logs=None):
            printed.append(float(np.ravel(logs["loss"])[0]))

    net, _, optimizer, _ = make_pair()
    model = paddle.Model(net)
    model.prepare(optimizer, paddle.nn.MSELoss())
    record = open_record(tmp_path, optimizer, model=net)
    rows = np.random.default_rng(1).normal(size=(2, 48, 4)).astype("float32")
    data = paddle.io.TensorDataset([paddle.to_tensor(x) for x in rows])
    model.fit(data, batch_size=16, epochs=2, verbose=0, callbacks=[Keep()])
    record.close()
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(1, 7)]
    assert run.column("loss") == pytest.approx(printed, rel=1e-5)


def test_updates_without_backward_are_steps(tmp_path):
    net, _, optimizer, _ = make_pair()
    record = open_record(tmp_path, optimizer, model=net)
    for _ in range(20):
        loss = net(paddle.ones([2, 4])).square().mean()
        for parameter, gradient in zip(
            net.parameters(), paddle.grad(loss, net.parameters()), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()
    record.close()
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(1, 21)]
    assert (run.tensors("norm") > 0).all()
    assert "loss" not in run.columns


def test_the_last_loss_is_kept_without_an_update(tmp_path):
    net, other, optimizer, _ = make_pair()
    record = open_record(tmp_path, optimizer, model=net)
    separate(1, net, other, optimizer, optimizer)
    value(float("nan"), 2)(net).backward()
    record.leave(FloatingPointError("loss is nan"))
    end = read_record(tmp_path).end
    assert end["last_loss"] != end["last_loss"]
    assert (end["kind"], end["step"]) == ("exception", 2)


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from watch.test_losses import make_pair, {loop}
parts = make_pair()
for step in range(1, 6):
    {loop}(step, *parts)
"""


@pytest.mark.slow
@pytest.mark.parametrize("loop", [separate, gan, together, rare])
def test_adagc_run_tells_losses_from_the_first_step_on(loop, tmp_path):
    tests = __file__.rpartition("/watch/")[0]
    script = SCRIPT.format(tests=tests, loop=loop.__name__)
    (tmp_path / "train.py").write_text(script)
    words = ["-m", "paddle_adagc.run", "--watch", "--record", "rec"]
    ended = run_python(tmp_path, *words, sys.executable, "train.py")
    assert ended.returncode == 0, ended.stderr
    found = {}
    for name in ("rec", "rec-2"):
        run = read_record(tmp_path / name)
        optimizer = run.sessions[0].facts["optimizer_name"]
        found[optimizer] = run.column("loss").tolist()
    a, c = LOOPS.get(loop, (1, 10))
    steps = [1, 3, 5] if loop is rare else [1, 2, 3, 4, 5]
    assert found == {
        "actor": [a * step for step in steps],
        "critic": [c * step for step in range(1, 6)],
    }
