# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recording changes nothing, waits for nothing, and survives kills."""

import errno
import gc
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import backends
import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from core.record.training import make_training, train
from helpers import no_waiting_for_the_device

from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.watch import Record
from paddle_adagc.integrations.logs import warm_up_end
from paddle_adagc.optimizer import put_into_optimizer
from paddle_adagc.record import files, read_record
from paddle_adagc.watch.recorder import record_of
from paddle_adagc.record.replay import replay
from paddle_adagc.record.ring import count_small
from paddle_adagc.record.shadow import default_shadow
from paddle_adagc.watch.trainer import open_record
from paddle_adagc.record.writer import RecordWriter

NUM_STEPS = 150
CLIPS = {
    "global norm": lambda: paddle.nn.ClipGradByGlobalNorm(0.1),
    "norm": lambda: paddle.nn.ClipGradByNorm(0.02),
    "value": lambda: paddle.nn.ClipGradByValue(0.01),
    "none": lambda: None,
    "ours": lambda: ClipGradByAdaGC(t_start=20),
}


def ruin_at(bad):
    return lambda step, loss: loss * (50 if step == bad else 1)


def recorded(folder, clip, steps=range(NUM_STEPS), **options):
    """Weights of a recorded run, and its record."""
    model, optimizer = make_training(clip)
    record = Record(folder, optimizer, model, **options)
    weights = train(model, optimizer, steps, record=record)
    record.close()
    return weights, read_record(folder)


def test_a_gradient_with_nan_and_no_loss(tmp_path):
    model, optimizer = make_training(None)
    lines = []
    record = Record(tmp_path, optimizer, model, on_alarm=lines.append)
    model[0].weight.grad = paddle.full_like(model[0].weight, float("nan"))
    optimizer.step()
    record.step()
    record.close()
    assert lines == ["step 0: 1 tensors with Inf or NaN; 0.weight (Inf or NaN)"]


@pytest.mark.parametrize("name", CLIPS)
def test_any_clip_goes_on_bit_for_bit(name, tmp_path):
    plain = train(*make_training(CLIPS[name]()), range(NUM_STEPS))
    weights, run = recorded(tmp_path / "a", CLIPS[name]())
    for mine, theirs in zip(weights, plain, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert run.step.tolist() == [*range(NUM_STEPS)]
    assert np.isfinite(run.column("loss")).all()
    assert run.keys[:2] == ["0.weight", "0.bias"]
    assert np.isfinite(run.tensors("gamma")).all()
    norms = run.tensors("norm").astype("float64")
    expected = np.sqrt((norms**2).sum(1))
    assert run.column("global_grad_norm") == pytest.approx(expected, rel=1e-5)
    assert ("clipped_grad_norm" in run.columns) == (name != "value")
    assert ("shadow_h_min" in run.columns) == (name != "ours")


@pytest.mark.parametrize("name", ["global norm", "norm", "none", "ours"])
def test_norm_after_the_clip(name, tmp_path):
    """It is computed from the norms before; here it is measured as well."""
    clip, after = CLIPS[name](), []
    model, optimizer = make_training(clip)
    record = Record(tmp_path / "a", optimizer)
    update = optimizer._create_optimization_pass

    def measure(pairs, *rest, **more):
        squares = [float(g.square().sum()) for _, g in pairs]
        after.append(sum(squares) ** 0.5)
        return update(pairs, *rest, **more)

    for step in range(40):
        optimizer.__dict__["_create_optimization_pass"] = measure
        train(model, optimizer, [step], record=record)
    record.close()
    found = read_record(tmp_path / "a").column("clipped_grad_norm")
    assert found == pytest.approx(after, rel=1e-4)


def in_groups(*clips):
    """A training whose parameter groups have these clips."""
    model, _ = make_training(None)
    parameters, size = model.parameters(), 8 // len(clips)
    groups = [
        {"params": parameters[i * size :][:size], "grad_clip": clip}
        for i, clip in enumerate(clips)
    ]
    return model, paddle.optimizer.AdamW(1e-3, parameters=groups)


@pytest.mark.parametrize(
    "bounds", [(0.01, 0.01), (0.01, 0.1), (None, 0.01)], ids=str
)
def test_paddle_clips_each_parameter_group(bounds, tmp_path):
    """By a norm of its own, also where the clip is the same."""
    of = paddle.nn.ClipGradByGlobalNorm
    clips = {bound: bound and of(bound) for bound in bounds}
    model, optimizer = in_groups(*(clips[bound] for bound in bounds))
    record = Record(tmp_path, optimizer, model)
    expected = []

    def measure(step, model):
        squares = [float(p.grad.square().sum()) for p in model.parameters()]
        norms = np.sqrt([sum(squares[:4]), sum(squares[4:])])
        after = np.minimum(norms, [bound or np.inf for bound in bounds])
        expected.append(np.hypot(*after))

    train(model, optimizer, range(5), record=record, after=measure)
    record.close()
    run = read_record(tmp_path)
    found = run.column("clipped_grad_norm")
    assert found == pytest.approx(expected, rel=1e-4)
    is_one = bounds[0] == bounds[1]
    assert ("clips of groups" in run.sessions[0]["clip"]) != is_one
    shadow = run.sessions[0]["shadow"]
    assert ("lambda_abs=0.01" in shadow) == is_one, shadow


def test_groups_with_clips_of_ours_are_recorded_together(tmp_path):
    model, optimizer = in_groups(ClipGradByAdaGC(), ClipGradByAdaGC())
    for i, group in enumerate(optimizer._param_groups):
        group["grad_clip"].bind(model[2 * i : 2 * i + 2])
    record = Record(tmp_path, optimizer, model, skip_above=10)

    def raise_one(step, model):
        if step == 90:
            model[3].weight.grad *= 1e5

    train(model, optimizer, range(100), record=record, after=raise_one)
    assert record.num_skipped == 1
    record.close()
    run = read_record(tmp_path)
    assert len(run.keys) == 8
    assert run.column("global_grad_norm")[90] > 1e3
    assert (
        "clipped_grad_norm" not in run.columns
        or np.isnan(run.column("clipped_grad_norm")[:90]).all()
    )
    (alarm,) = {a["guilty"][0] for a in run.alarms if a["guilty"]}
    assert alarm == "3.weight"
    steps = [g["grad_clip"].num_steps for g in optimizer._param_groups]
    assert steps == [99, 99]


def test_a_shadow_beside_a_clip_of_ours(tmp_path):
    """One steps by groups, under Paddle's names; a step is left out."""
    acting = ClipGradByAdaGC(t_start=5)
    model, _ = make_training(None)
    weights, biases = model.parameters()[::2], model.parameters()[1::2]
    groups = [{"params": biases}, {"params": weights}]
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=groups)
    put_into_optimizer(optimizer, acting)
    shadow = ClipGradByAdaGC(t_start=5, lambda_rel=2.0)
    record = Record(tmp_path, optimizer, model, shadow=shadow, skip_above=10)
    lowest, left = [], []

    def note(_):
        summary = acting.summary()
        lowest.append(summary["h_min"])
        left.append(summary["clipped_grad_norm"])

    for step in range(100):
        train(model, optimizer, [step], record=record, change=ruin_at(90))
        note(step)
    record.close()
    run = read_record(tmp_path)
    made = np.arange(100) != 90
    assert run.step[run.column("skipped") == 1].tolist() == [90]
    for name, values in (("h_min", lowest), ("clipped_grad_norm", left)):
        found = run.column(name)[made]
        assert found == pytest.approx(np.array(values)[made], rel=1e-4)
    assert (run.column("shadow_h_min")[made] >= run.column("h_min")[made]).all()


def test_a_refused_record_leaves_the_clips_alone(tmp_path):
    own, other = ClipGradByAdaGC(), ClipGradByAdaGC()
    model, optimizer = make_training(own)
    for options, message in (
        ({"shadow": own}, "is the optimizer's own clip"),
        ({"shadow": other, "skip_above": -1.0}, "skip_above must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            Record(tmp_path, optimizer, model, **options)
    assert not own._follows
    assert not other._follows


@pytest.mark.parametrize("first", [0, 1])
def test_two_records_of_an_optimizer_end_in_any_order(first, tmp_path):
    model, optimizer = make_training(None)
    records = [
        Record(tmp_path / "a", optimizer, model, skip_above=10),
        Record(tmp_path / "b", optimizer, model),
    ]
    train(model, optimizer, range(80), record=records[0])
    records[first].close()
    other = records[1 - first]
    train(model, optimizer, range(80, 90), record=other, change=ruin_at(85))
    assert records[0].num_skipped == first
    other.close()
    assert record_of(optimizer) is None
    train(model, optimizer, range(90, 93), change=ruin_at(91))
    assert records[0].num_skipped == first


def test_another_s_clip_is_described_as_it_is(tmp_path):
    class Mine(paddle.nn.ClipGradByGlobalNorm):
        clip, t_start = 0.5, 3

    _, run = recorded(tmp_path, Mine(1.0), range(3))
    assert "GlobalNorm" in run.sessions[0]["clip"]
    assert warm_up_end(Mine(1.0), None) == 0


def test_the_learning_rate_is_that_of_the_update(tmp_path):
    schedule = paddle.optimizer.lr.LinearWarmup(1e-3, 4, 0.0, 1e-3)
    model, _ = make_training(None)
    optimizer = paddle.optimizer.SGD(schedule, parameters=model.parameters())
    record, used = Record(tmp_path, optimizer, model), []
    for step in range(5):
        used.append(schedule())
        train(model, optimizer, [step])
        schedule.step()
        record.step()
    record.close()
    assert read_record(tmp_path).column("learning_rate") == pytest.approx(used)


def test_a_loss_is_a_scalar(tmp_path):
    model, optimizer = make_training(None)
    record = Record(tmp_path, optimizer, model)
    train(model, optimizer, range(3), record=record)
    for loss in (paddle.ones([2]), np.ones(2), "x", [1.0]):
        with pytest.raises(TypeError, match="give a scalar"):
            record.step(loss)
    record.step(np.float32(1))
    record.close()
    assert len(read_record(tmp_path).step) == 4


def test_a_record_that_nobody_closed_is_written(tmp_path):
    def train_in_vain():
        model, optimizer = make_training(None)
        record = Record(tmp_path, optimizer, model)
        train(model, optimizer, range(20), record=record)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train_in_vain()
    gc.collect()
    assert len(read_record(tmp_path).step) == 20
    recorded(tmp_path, None, range(20, 30))
    assert len(read_record(tmp_path).step) == 30


def test_elements_without_a_gradient_are_not_small():
    model, optimizer = make_training(None)
    train(model, optimizer, range(2))
    moment = next(iter(optimizer._accumulators["moment2"].values()))
    assert count_small(optimizer)[0] == 0
    values = moment.numpy()
    values[:8], values[8] = 0, 1e-30
    moment.set_value(values)
    small, every = count_small(optimizer)
    size = sum(parameter.size for parameter in model.parameters())
    assert (small, every) == (values[8].size, size - values[:8].size)


@pytest.mark.parametrize("clip_name", ["global norm", "ours"])
@pytest.mark.parametrize("backend", ["operators", "cuda"])
def test_no_step_waits_between_two_copies(
    backend, clip_name, tmp_path, monkeypatch
):
    backends.use(backend, monkeypatch)
    clip = CLIPS[clip_name]()
    if clip_name == "ours":  # its one look at gamma is over after 3 steps
        clip.t_start = 1
    model, optimizer = make_training(clip)
    record = Record(tmp_path, optimizer, model, num_steps=64)
    train(model, optimizer, range(3), record=record)
    loss = paddle.ones([])
    loss.stop_gradient = False
    for parameter in model.parameters():
        parameter.grad = paddle.ones_like(parameter)
    with no_waiting_for_the_device(monkeypatch):
        for _ in range(60):
            optimizer.step()
            record.step(loss)
        optimizer.step()
        with pytest.warns(UserWarning, match="was read back"):
            record.step(loss)  # the copy of 64 steps
    if backend == "cuda":
        launches = backends.emulated_cuda().emulated_calls(b"cuLaunchKernel")
        assert launches >= 64
    record.close()


def test_a_resumed_run_goes_on_in_its_record(tmp_path):
    recorded(tmp_path, CLIPS["ours"](), range(100), num_steps=16)
    first = read_record(tmp_path)
    _, run = recorded(
        tmp_path, CLIPS["ours"](), range(70, 140), start=70, num_steps=16
    )
    assert run.step.tolist() == [*range(140)]
    assert run.tensor_steps.tolist() == [*range(140)]
    old, new = first.tensors("norm"), run.tensors("norm")
    np.testing.assert_array_equal(new[:70], old[:70])
    assert (new[70] != old[70]).any()
    _, run = recorded(tmp_path, CLIPS["ours"](), range(5))  # at the next step
    assert run.step[-1] == 144


def test_one_process_writes(tmp_path):
    model, optimizer = make_training(None)
    record = Record(tmp_path, optimizer)
    with pytest.raises(FileExistsError, match="is open in this process"):
        Record(tmp_path, optimizer)
    code = "import sys; from paddle_adagc.record.writer import RecordWriter; "
    code += "RecordWriter(sys.argv[1])"
    command = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, check=False)
    assert b"another process is writing to the record" in ended.stderr
    record.close()
    Record(tmp_path, optimizer).close()
    (tmp_path / files.RECORD).write_text("{")
    with pytest.raises(ValueError, match=r"record\.json is damaged"):
        Record(tmp_path, optimizer)
    clip = paddle.nn.ClipGradByNorm(1.0)
    with pytest.raises(TypeError, match="needs the norms"):
        Record(tmp_path / "b", optimizer, model, shadow=clip)
    with pytest.raises(FileNotFoundError, match="holds no record"):
        read_record(tmp_path / "b")


def test_a_full_disk_at_a_switch_ends_the_record_alone(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    model, optimizer = make_training(CLIPS["global norm"]())
    record = Record(tmp_path, optimizer, model)
    train(model, optimizer, range(10), record=record)
    monkeypatch.setattr(RecordWriter, "begin", fail)
    with pytest.warns(UserWarning, match="ends before step 10: .* No space"):
        clip = record.switch()
    assert optimizer._grad_clip is clip
    train(model, optimizer, range(10, 20), record=record)
    assert clip.num_steps == 20
    record.close()
    assert read_record(tmp_path).step.tolist() == [*range(10)]


def test_a_bound_of_each_tensor_is_no_global_threshold():
    shadow = default_shadow(paddle.nn.ClipGradByNorm(0.5))
    assert (shadow.init, shadow.lambda_abs) == ("warmup_ema", np.inf)


def test_a_full_disk_ends_the_record_alone(tmp_path, monkeypatch):
    plain = train(*make_training(None), range(40))

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    model, optimizer = make_training(None)
    record = Record(tmp_path, optimizer, model, num_steps=8)
    train(model, optimizer, range(16), record=record)
    monkeypatch.setattr(RecordWriter, "append_steps", fail)
    with pytest.warns(UserWarning, match="ends before step 16: .* No space"):
        weights = train(model, optimizer, range(16, 40), record=record)
    record.close()
    for mine, theirs in zip(weights, plain, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert read_record(tmp_path).step.tolist() == [*range(16)]
    record.leave()
    assert not [*tmp_path.glob("*.npz")]


@pytest.mark.parametrize("name", [files.STEPS, files.TENSORS])
def test_a_torn_end_is_cut_off(name, tmp_path):
    recorded(tmp_path, None, range(40), num_steps=8)
    path = tmp_path / name
    whole = path.read_bytes()
    end = whole[:-1].rfind(b"\n" if name == files.STEPS else b"\x93NUMPY")
    for cut in (end + 1, end + 9, len(whole) - 1):
        path.write_bytes(whole[:cut])
        run = read_record(tmp_path)
        assert run.tensors("norm").shape == (len(run.tensor_steps), 8)
        _, run = recorded(tmp_path, None, range(4), start=36)
        assert run.step.tolist() == [*range(40)]
        path.write_bytes(whole)
    if name == files.STEPS:
        path.write_bytes(whole[:end].replace(b":", b"#") + whole[end:])
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            read_record(tmp_path)


def test_the_size_is_bounded(tmp_path):
    """Rows away from the alarm are thinned; those around it stay whole."""
    writer = RecordWriter(tmp_path, max_bytes=10**6)
    keys = [f"layers.{i}.weight" for i in range(500)]
    writer.index(keys)
    rng = np.random.default_rng(0)
    exact = {}
    for first in range(0, 4000, 50):
        steps = np.arange(first, first + 50)
        norm = rng.lognormal(size=(50, 500)).astype("float32")
        tensors = {"norm": norm, "gamma": norm / 2, "h": norm * 0 + 0.5}
        keep = first == 1000
        if not keep:
            due = steps % writer.every == 0
            steps = steps[due]
            tensors = {n: t[due] for n, t in tensors.items()}
        writer.append_tensors(steps.tolist(), tensors, keep=keep)
        exact |= dict(zip(steps.tolist(), tensors["norm"], strict=True))
        assert (tmp_path / files.TENSORS).stat().st_size <= 1.2 * 10**6
    writer.close()
    run = read_record(tmp_path)
    norms = run.tensors("norm")
    assert run.every > 8
    assert {*range(1000, 1050)} <= {*run.tensor_steps.tolist()}
    for step, row in zip(run.tensor_steps.tolist(), norms, strict=True):
        tolerance = 0 if 1000 <= step < 1050 else 1 / 256
        np.testing.assert_allclose(row, exact[step], rtol=tolerance)


def test_a_replay_is_the_live_shadow(tmp_path):
    shadow = ClipGradByAdaGC(lambda_abs=0.1)
    acting = CLIPS["global norm"]()
    _, run = recorded(tmp_path, acting, range(500), shadow=shadow)
    norms = run.tensors("norm")
    found = replay(norms, ClipGradByAdaGC(lambda_abs=0.1), run.keys)
    for name, mine in (("h", found.h), ("gamma", found.gamma)):
        np.testing.assert_allclose(mine, run.tensors(name), rtol=1e-6)
    gamma = run.tensors("gamma")[299]
    later = replay(norms[300:], ClipGradByAdaGC(), run.keys, gamma)
    np.testing.assert_allclose(later.h, run.tensors("h")[300:], rtol=1e-6)
    looser = ClipGradByAdaGC(lambda_rel=3.0)
    assert replay(norms[300:], looser, run.keys, gamma).h.mean() > 0.97
    assert later.h.mean() < 0.97


def test_a_switch_is_one_by_hand(tmp_path):
    """From the shadow to AdaGC at step 120, and back at 140."""
    model, optimizer = make_training(CLIPS["global norm"]())
    record = Record(tmp_path, optimizer, model)
    train(model, optimizer, range(120), record=record)
    state = record.shadow.state_dict()
    clip = record.switch()
    train(model, optimizer, range(120, 140), record=record)
    record.switch_back(CLIPS["global norm"]())
    mine = train(model, optimizer, range(140, 160), record=record)
    assert record.shadow is clip
    record.close()
    run = read_record(tmp_path)
    assert run.step.tolist() == [*range(160)]
    assert clip.num_steps == 160

    model, optimizer = make_training(CLIPS["global norm"]())
    train(model, optimizer, range(120))
    optimizer._grad_clip = default_shadow(CLIPS["global norm"]())
    optimizer._grad_clip.bind(model)
    optimizer._grad_clip.set_state_dict(state)
    train(model, optimizer, range(120, 140))
    optimizer._grad_clip = CLIPS["global norm"]()
    theirs = train(model, optimizer, range(140, 160))
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_step_that_the_scaler_skips(tmp_path):
    """The shadow takes it back, and the record says so."""
    model, optimizer = make_training(None)
    record = Record(tmp_path, optimizer, model)
    train(model, optimizer, range(5), record=record)
    optimizer._set_auxiliary_var("found_inf", paddle.to_tensor(True))
    train(model, optimizer, [5], record=record)
    optimizer._set_auxiliary_var("found_inf", None)
    assert record.shadow.num_steps == 5
    record.close()
    rows = read_record(tmp_path).rows
    assert "global_grad_norm" in rows[4]
    assert "global_grad_norm" not in rows[5]
    assert [i for i, row in enumerate(rows) if row.get("overflow")] == [5]


def test_a_clip_takes_a_skipped_step_back_beside_a_shadow(tmp_path):
    """An overflow in the warm-up: gamma is that of a run without a shadow."""

    def trained(shadow):
        clip = ClipGradByAdaGC(t_start=4)
        model, optimizer = make_training(clip)
        clip.bind(model)
        record = Record(tmp_path, optimizer, model, start=0, shadow=shadow)
        for step in range(10):
            overflow = paddle.to_tensor(step in (2, 3))
            optimizer._set_auxiliary_var("found_inf", overflow)
            train(model, optimizer, [step], record=record)
        record.close()
        return clip.num_steps, clip.full_state_dict()["gamma"]

    assert trained(None)[0] == 8
    assert trained(ClipGradByAdaGC(t_start=0)) == trained(None)


@pytest.mark.parametrize("wrap", [lambda x: x, dist.shard_optimizer])
@pytest.mark.parametrize("name", ["global norm", "ours"])
def test_an_overflow_of_a_loop_is_one_step(wrap, name, tmp_path):
    """With gradients accumulated; its loss is not that of the next step."""
    model, optimizer = make_training(CLIPS[name]())
    optimizer = wrap(optimizer)
    record = open_record(tmp_path, optimizer, model=model)
    for step in range(8):
        for _ in range(2):
            (model(paddle.ones([2, 16])).square().mean() * 0 + 1).backward()
        overflow = paddle.to_tensor(step == 5)
        optimizer._set_auxiliary_var("found_inf", overflow)
        optimizer.step()
        optimizer.clear_grad()
    record.close()
    assert (record.shadow or optimizer._grad_clip).num_steps == 7
    run = read_record(tmp_path)
    assert run.column("loss").tolist() == [2.0] * 8
    assert np.flatnonzero(run.column("overflow") == 1) == [5]


def test_parameter_groups(tmp_path):
    model, _ = make_training(None)
    halves = [*model.parameters()][:4], [*model.parameters()][4:]
    optimizer = paddle.optimizer.AdamW(
        1e-3,
        parameters=[{"params": half} for half in halves],
        grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0),
    )
    record = Record(tmp_path, optimizer, model)
    train(model, optimizer, range(20), record=record)
    record.close()
    run = read_record(tmp_path)
    assert (run.tensors("norm") > 0).all()
    assert run.tensors("norm").shape == (20, 8)


def start_training(folder, num_steps=4000, save_steps=20):
    program = Path(__file__).with_name("training.py")
    return subprocess.Popen(
        [sys.executable, program, folder, str(num_steps), str(save_steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.long
def test_20_kills(tmp_path):
    """The record opens, lacks at most a ring, and the next run goes on."""
    chance, known = random.Random(1), 0
    for _ in range(20):
        process = start_training(tmp_path)
        saved = int(process.stdout.readline())
        time.sleep(chance.uniform(0, 0.5))
        process.kill()
        process.wait()
        saved = max([saved, *map(int, process.stdout)])
        run = read_record(tmp_path / "record")
        assert run.step.tolist() == [*range(run.step[-1] + 1)]
        assert run.step[-1] + 1 >= max(saved, known - 20)
        known = run.step[-1] + 1
    assert len(run.sessions) == 20


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["terminate", "exception"])
def test_what_is_on_the_device_is_written_at_an_end(stop, tmp_path):
    """Of two optimizers, as a GAN has."""
    code = (
        "import os, signal, sys\n"
        "from core.record.training import make_training, train\n"
        "from paddle_adagc.watch import Record\n"
        "held = []\n"
        "for name in 'ab':\n"
        "    model, optimizer = make_training(None)\n"
        "    held.append(Record(sys.argv[1] + name, optimizer, model))\n"
        "    train(model, optimizer, range(10), record=held[-1])\n"
        "if sys.argv[2] == 'terminate': os.kill(os.getpid(), signal.SIGTERM)\n"
        "raise KeyError('a crash')\n"
    )
    tests = str(Path(__file__).parents[2])
    program = f"import sys\nsys.path.insert(0, {tests!r})\n{code}"
    ended = subprocess.run(
        [sys.executable, "-c", program, f"{tmp_path}/", stop],
        capture_output=True,
        check=False,
    )
    assert ended.returncode == {"terminate": -15, "exception": 1}[stop]
    for name in "ab":
        assert read_record(tmp_path / name).step.tolist() == [*range(10)]


def test_many_events_leave_room_for_calm_rows(tmp_path):
    """Whole rows around events take half of the bound, the newest of them."""
    writer = RecordWriter(tmp_path, max_bytes=10**6)
    writer.index([f"{i}" for i in range(100)])

    def append(steps, keep):
        due = [s for s in steps if keep or s % writer.every == 0]
        one = np.ones((len(due), 100), "float32")
        tensors = dict.fromkeys(("norm", "gamma", "h"), one)
        writer.append_tensors(due, tensors, keep=keep)

    for event in range(500, 40_000, 500):
        append(range(event - 450, event - 32), False)
        append(range(event - 32, event + 50), True)
        assert (tmp_path / files.TENSORS).stat().st_size <= 1.2e6
    writer.close()
    run = read_record(tmp_path)
    assert {*range(39_468, 39_550)} <= {*run.tensor_steps.tolist()}
    calm = run.tensor_steps[(run.tensor_steps % 500 >= 50)]
    assert run.every <= 1024
    assert len(calm[calm < 20_000]) >= 10


def test_a_bound_below_one_row_ends(tmp_path):
    writer = RecordWriter(tmp_path, max_bytes=100)
    writer.index([f"{i}" for i in range(100)])
    one = np.ones((3, 100), "float32")
    tensors = dict.fromkeys(("norm", "gamma", "h"), one)
    for first in range(0, 30, 3):
        writer.append_tensors(range(first, first + 3), tensors, keep=first == 3)
    writer.close()
    assert 29 in read_record(tmp_path).tensor_steps


def test_an_error_of_the_record_does_not_end_the_training(
    tmp_path, monkeypatch
):
    def fail(*_, **__):
        raise ValueError("a fault")

    monkeypatch.setattr(RecordWriter, "append_tensors", fail)
    model, optimizer = make_training(None)
    record = Record(tmp_path, optimizer, model, num_steps=4)
    with pytest.warns(UserWarning, match="ends before step 0: a fault"):
        train(model, optimizer, range(8), record=record)
    assert isinstance(record.error, ValueError)
    record.close()


@pytest.mark.parametrize(
    ("numbers", "error"),
    [
        ({"step": 3}, ValueError),
        ({"session": 1}, ValueError),
        ({"masked": 512}, ValueError),
        ({"step_seconds": "0.1 s"}, ValueError),
        ({"accuracy": np.float32(1)}, TypeError),
    ],
)
def test_numbers_that_a_record_cannot_hold(numbers, error, tmp_path):
    record = Record(tmp_path, make_training(None)[1])
    with pytest.raises(error, match=next(iter(numbers))):
        record.step(1.0, **numbers)
    record.step(1.0, accuracy=0.5)
    record.close()
    assert read_record(tmp_path).column("accuracy").tolist() == [0.5]


FORKS = """
import multiprocessing, sys, time
from pathlib import Path
from core.record.training import make_training, train
from paddle_adagc.watch import Record
from paddle_adagc.record import files
folder = Path(sys.argv[1])
model, optimizer = make_training(None)
record = Record(folder, optimizer, model)
train(model, optimizer, range(10), record=record)
fork = multiprocessing.get_context("fork")
first, child = (fork.Process(target=time.sleep, args=[60]) for _ in range(2))
first.start()
train(model, optimizer, range(10, 70), record=record)
record.flush()
child.start()
lines = (folder / files.STEPS).read_text()
first.terminate()
first.join(20)
first.kill()  # a fork of a process with threads may not see its signal
first.join()
assert (folder / files.STEPS).read_text() == lines
record.close()
Record(folder, optimizer, model).close()  # while a child lives
child.kill()
child.join()
"""


@pytest.mark.slow
def test_forked_children_leave_the_record_alone(tmp_path):
    """Neither their SIGTERM nor their life concerns it.

    In a process of its own: what other tests leave of threads and handlers of
    signals would be forked, too.
    """
    command = [sys.executable, "-c", FORKS, tmp_path]
    tests = Path(__file__).parents[2]
    subprocess.run(command, check=True, timeout=120, cwd=tests)


def test_files_are_plain(tmp_path):
    """NumPy and a JSON reader suffice."""
    recorded(tmp_path, None, range(3))
    lines = (tmp_path / files.STEPS).read_text().splitlines()
    assert [json.loads(line).get("step") for line in lines] == [None, 0, 1, 2]
    with (tmp_path / files.TENSORS).open("rb") as file:
        array = np.load(file, allow_pickle=False)
    assert array["norm"].shape == (3, 8)
