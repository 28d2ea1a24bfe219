# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a report advises about runs that few make."""

import math
import shlex
from pathlib import Path

import numpy as np
from contract.test_rare_records import calm, write_run

from paddle_adagc.watch.command import make_page


def advice_of(folder):
    page = make_page(folder)
    return {one["code"]: one for one in page["actions"]}, page


def test_weights_that_a_gradient_made_nan_are_not_resumed_from(tmp_path):
    """The Trainer raises at the next loss, before a step of it."""
    for number in (30, 60):
        checkpoint = tmp_path / f"my run/checkpoint-{number}"
        checkpoint.mkdir(parents=True)
        for name in ("trainer_state.json", "scheduler.pdparams"):
            (checkpoint / name).touch()
    steps = range(1, 61)
    folder = write_run(
        tmp_path / "my run/record",
        steps,
        calm(steps),
        bad=[60],
        kind="exception",
        text="ValueError: Loss contains nan",
        last_loss=math.nan,
    )
    advice, page = advice_of(folder)
    assert "Before, in steps 1 to 59, the loss was" in page["verdict"]["text"]
    assert "before step 60" in advice["return"]["text"]
    command, path = shlex.split(advice["return"]["command"])
    assert command == "--resume_from_checkpoint"
    assert path == str(tmp_path / "my run/checkpoint-30")
    assert "0.bias" in advice["look"]["text"]


def test_a_report_asked_for_within_the_record_finds_checkpoints(
    tmp_path, monkeypatch
):
    test_weights_that_a_gradient_made_nan_are_not_resumed_from(tmp_path)
    monkeypatch.chdir(tmp_path / "my run/record")
    assert advice_of(Path("."))[0]["return"]["command"].endswith(
        "checkpoint-30'"
    )


def test_the_steps_to_leave_out_are_those_of_the_spike_at_hand(tmp_path):
    steps = range(1, 4098)
    spikes = [*range(400, 4000, 300), 4095]
    losses = np.array(calm(steps))
    losses[np.subtract(spikes, 1)] = 9
    losses[4095:] = 4
    skip = advice_of(write_run(tmp_path, steps, losses))[0]["skip"]
    assert "before step 4,095" in skip["text"]
    assert skip["command"].startswith('"skip_data_intervals": [[4095, ')


def test_a_step_that_a_gradscaler_left_out_is_named(tmp_path):
    steps = range(1, 401)
    losses = calm(steps)
    losses[299] = math.nan
    folder = write_run(
        tmp_path, steps, losses, bad=[300], numbers={300: {"overflow": True}}
    )
    text = make_page(folder)["verdict"]["text"]
    assert "The GradScaler left the step out." in text


def test_skipping_is_no_advice_to_a_run_that_skipped(tmp_path):
    steps = range(1, 411)
    losses = [math.nan if step > 400 else 2.0 for step in steps]
    skipped = {
        step: {"skipped": True, "reason": "nan"} for step in range(401, 411)
    }
    advice, _ = advice_of(
        write_run(
            tmp_path,
            steps,
            losses,
            kind="exception",
            numbers=skipped,
            last_loss=math.nan,
        )
    )
    assert "skip" not in advice
    assert "10 steps were left out" in advice["look"]["text"]
