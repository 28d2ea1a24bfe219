# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One run: its record, faults, alarms, what it prints and how it ends."""

import json
import math

import numpy as np
import pytest
from adagc_lab.record.files import RECORD, RunRecord
from adagc_lab.train.console import summarise_run
from lab.train import runs
from pages import load_tool

from paddle_adagc.watch import read_record


def recorded(directory):
    return read_record(directory / RECORD)


def alarms_of(record):
    return [(a["series"], a["step"]) for a in record.run["alarms"]]


def command(directory, **changes):
    """Exit status of the command that trains in a directory, and its record."""
    config = directory.with_suffix(".yaml")
    config.write_text(json.dumps(runs.make_values(directory, **changes)))
    status = load_tool("pretrain").main([str(config)])
    return status, RunRecord.load(directory)


def test_run_leaves_a_complete_record(tmp_path):
    status, record = runs.run(runs.make_values(tmp_path, eval_every=4))
    assert status == record.run["status"] == "finished"
    assert record.num_steps == 12
    assert record.loss[-1] < record.loss[0] - 0.5
    assert runs.evaluated(record)[0] == [3, 7, 11]
    np.testing.assert_allclose(
        record.metrics["learning_rate"][:3], [0.005, 0.01, 0.01]
    )
    norm = np.sqrt((record.tensors["norm"].astype(float) ** 2).sum(1))
    np.testing.assert_allclose(
        norm, record.metrics["global_grad_norm"], rtol=1e-6
    )
    gamma = record.tensors["gamma"]
    assert (np.diff(gamma[:5], axis=0) <= 0).all()
    square = record.tensors["moment2"].astype(float)
    assert (square > 0).all()
    total = record.metrics["second_moment_root"] ** 2  # of positive numbers
    assert (total > 0.999 * np.sqrt((square**2).sum(1))).all()
    assert (total < 0.1 * norm.max() ** 2).all()
    update = record.metrics["update_norm"]
    assert (update > 0).all()
    np.testing.assert_allclose(update[1] / update[0], 2, rtol=0.3)
    assert record.run["data"]["num_files"] > 100
    assert record.run["wall_seconds"] > 0


@pytest.mark.parametrize("tensors", [True, False])
def test_faults_are_injected_recorded_and_summarised(tmp_path, tensors):
    scaled = {"kind": "gradient_scale", "magnitude": 1e4}
    faults = [
        {"kind": "random_tokens", "steps": [6]},
        {**scaled, "tensor": "lm_head.weight", "steps": [8]},
        *runs.nan_at(9, tensor="*mlp.up_proj*"),
    ]
    changes = {"faults": faults, "record": {"tensors": tensors}}
    values = runs.make_values(tmp_path, log_every=9, **changes)
    _, record = runs.run(values)
    assert {step: row[0]["kind"] for step, row in record.faults.items()} == {
        6: "random_tokens",
        8: "gradient_scale",
        9: "gradient_nan",
    }
    assert record.faults[9][0]["tensors"] == [
        "model.layers.0.mlp.up_proj.weight"
    ]
    assert np.isfinite(record.loss).all()
    ending = summarise_run(tmp_path)
    assert ending.is_sound
    text = "\n".join(ending.lines)
    assert text.startswith("finished: 12 steps in 00:0")
    assert f"loss: first {record.loss[0]:.4g}, " in text
    assert ending.lines[-1] == f"next: adagc-report {tmp_path}"
    if not tensors:
        return
    head = record.tensor_names.index("lm_head.weight")
    norm = record.tensors["norm"][:, head]
    assert norm[8] > 100 * norm[7]
    assert record.tensors["clipped_norm"][8, head] < 1.1 * norm[:8].max()
    assert record.metrics["nonfinite"][9] == 1


def test_run_that_diverges_ends_with_its_record(tmp_path, capsys):
    changes = {"clip": {"name": "global_norm"}, "faults": runs.nan_at(4)}
    status, record = command(tmp_path / "run", max_steps=40, **changes)
    assert (status, record.run["status"]) == (1, "diverged")
    assert np.isnan(record.loss[5])
    assert record.num_steps == 6
    lines = capsys.readouterr().out.splitlines()
    assert "  h_min " in lines[1]  # of another clip, too
    assert lines[-6].startswith("diverged: 6 steps")
    assert lines[-3].startswith("problem: the loss is not finite")
    assert lines[-1] == f"next: adagc-report {tmp_path / 'run'}"


def test_a_rising_loss_is_said_and_is_exit_status_1(tmp_path, capsys):
    """Without a clip a line has no numbers of one."""
    status, record = command(
        tmp_path / "run",
        max_steps=6,
        schedule={"kind": "constant", "learning_rate": 0.7},
        clip={"name": "none"},
        record={"tensors": False},
    )
    assert (status, record.run["status"]) == (1, "finished")
    assert (record.metrics["global_grad_norm"] > 0).all()
    *lines, problem, _, _ = capsys.readouterr().out.splitlines()
    assert problem.startswith("problem: the loss ended above")
    lines = [line for line in lines if "tok/s" in line]
    assert len(lines) == 2
    for line in lines:
        assert "  |g| " in line
        assert "clipped" not in line


def test_weights_that_are_nan_are_not_saved(tmp_path):
    changes = {"clip": {"name": "global_norm"}, "faults": runs.nan_at(2)}
    train = {"log_every": 6, "save_every": 2, "keep_checkpoints": 1}
    values = runs.make_values(tmp_path, **train, **changes)
    status, record = runs.run(values)
    assert (status, record.num_steps) == ("diverged", 4)
    assert runs.checkpoint_names(tmp_path) == ["checkpoint-2"]
    assert runs.run(values)[0] == "diverged"


def test_an_error_leaves_the_steps_before(tmp_path, capsys):
    def failing(loss):
        raise ValueError("out of memory")

    with runs.losses_at(7, failing):
        status, record = command(tmp_path / "run")
    assert "out of memory" in capsys.readouterr().err
    assert (status, record.run["status"]) == (2, "stopped")
    assert recorded(tmp_path / "run").step.tolist() == [*range(1, 8)]


@pytest.mark.parametrize("clip", ["adagc", "global_norm"])
def test_the_record_has_what_the_run_has(clip, tmp_path):
    """Factors measured outside of the clip are those of a clip of ours."""
    options = {"clip": {"name": clip}}
    if clip == "adagc":
        options = {
            "clip": {"name": clip, "t_start": 5},
            "faults": runs.nan_at(5),
        }
    _, record = runs.run(runs.make_values(tmp_path, **options))
    found = recorded(tmp_path)
    assert found.step.tolist() == [*range(1, 13)]
    assert found.keys == record.tensor_names
    samples = [row["samples"] for row in found.rows]
    assert samples == [[4 * i, 4 * i + 4] for i in range(12)]
    seen = np.isfinite(found.tensors("norm")) & (found.tensors("norm") > 0)
    if clip == "adagc":
        np.testing.assert_allclose(
            found.tensors("h")[seen], record.h[seen], rtol=1e-5
        )
        assert ("nonfinite", 6) in alarms_of(record)
    lowest = np.where(seen, record.h, 1).min(1)
    np.testing.assert_allclose(lowest, found.column("h_min"), rtol=1e-5)


def test_a_nan_loss_is_an_alarm_once_and_no_divergence(tmp_path, caplog):
    with runs.losses_at(3, lambda loss: loss * math.nan):
        status, record = runs.run(runs.make_values(tmp_path))
    assert (status, record.num_steps) == ("finished", 12)
    assert np.flatnonzero(np.isnan(record.loss)).tolist() == [3]
    assert ("loss", 4) in alarms_of(record)
    (logged,) = [r for r in caplog.messages if r.startswith("alarm: ")]
    assert logged.startswith("alarm: step 4: loss nan")
    text = "\n".join(summarise_run(tmp_path).lines)
    assert "alarms: loss 1" in text


# With 16 tokens a step, some of the experts get none.
EXPERTS = {
    "moe_num_experts": 12,
    "moe_intermediate_size": 8,
    "moe_num_shared_experts": 1,
    "moe_correction_bias": True,
    "router_aux_loss_coef": 0.01,
}


@pytest.mark.slow
def test_experts_and_faults_resume(tmp_path):
    fault = {"kind": "random_tokens", "start": 3, "every": 2}
    changes = {"batch_size": 1, "expert_bias_rate": 0.01, "faults": [fault]}
    changes |= {"clip": {"name": "adagc"}, "model": EXPERTS}
    values = runs.make_values("", save_every=4, eval_every=6, **changes)
    whole = runs.run_whole_and_cut(values, tmp_path)
    # 32 assignments of 16 tokens to 12 experts
    violation = whole.metrics["expert_max_violation"]
    assert (violation > 0).all()
    assert (violation <= 16 / (32 / 12) - 1).all()
    assert whole.metrics["idle_experts"].max() > 0


@pytest.mark.slow
def test_a_repeated_batch_begins_as_itself(tmp_path):
    fault = {"kind": "repeated_batch", "start": 3, "duration": 3}
    calm, repeated = (
        runs.run_in(
            tmp_path / str(len(faults)),
            runs.make_values(
                "", gradient_accumulation_steps=2, max_steps=8, faults=faults
            ),
        )
        for faults in ([], [fault])
    )
    np.testing.assert_array_equal(calm.loss[:4], repeated.loss[:4])
    # The second and third time the batch has been learned from.
    assert repeated.loss[5] < repeated.loss[4] < repeated.loss[3]
    assert (calm.loss[4:] != repeated.loss[4:]).all()
    assert sorted(repeated.faults) == [3, 4, 5]
