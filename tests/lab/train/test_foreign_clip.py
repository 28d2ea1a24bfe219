# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in a file outside of the repository: the example of clip-rule.md."""

import os
import re

import numpy as np
import paddle
import pytest
from adagc_lab.record.files import RunRecord
from adagc_lab.train.checkpoints import last_checkpoint
from lab.train.runs import SCALED_HEAD, make_values, run, start
from pages import ROOT

from paddle_adagc import load_state, make_clip

PAGE = (ROOT / "docs/howto/clip-rule.md").read_text("utf-8")
NAME = "my_clips:ClipGradByZScore"


@pytest.fixture(autouse=True)
def my_clips(tmp_path, monkeypatch):
    code = re.search(r"(?s)```python\n(.*?)```", PAGE)[1]
    assert not re.search(r"\._(?!_)|\b_(?!_)", code)  # public names alone
    (tmp_path / "my_clips.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)


def test_it_trains_saves_loads_and_shows_its_numbers(tmp_path):
    clip = {"name": NAME, "z": 2.0}
    faults = [{**SCALED_HEAD, "steps": [8]}]
    values = make_values(
        tmp_path / "run", clip=clip, faults=faults, save_every=6
    )
    status, record = run(values)
    assert status == "finished"
    assert np.isfinite(record.loss).all()
    assert (record.h[8] < 1).any()
    state = load_state(last_checkpoint(tmp_path / "run"))
    again = make_clip(**clip)
    again.set_state_dict(state)
    assert again.num_steps == state["step"] == 12
    kept = again.state_dict()
    for name in ("mean", "deviation"):
        assert {*kept[name]} == {*record.tensor_names}
        assert [*map(float, kept[name].values())] == [*state[name].values()]
    parameter = paddle.create_parameter([2], "float32")
    fresh = make_clip(**clip)
    fresh([(parameter, paddle.full([2], 9.0))])
    numbers = fresh.metrics()["tensors"][parameter.name]
    assert {*numbers} == {"norm", "mean", "deviation", "h"}
    assert numbers["h"] == pytest.approx(3 / np.hypot(9, 9), rel=1e-5)


@pytest.mark.slow
def test_the_command_trains_with_it(tmp_path):
    values = make_values(tmp_path / "run", clip={"name": NAME}, save_every=6)
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    process = start(values, tmp_path, env={**os.environ, "PYTHONPATH": path})
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    record = RunRecord.load(tmp_path / "run")
    assert np.isfinite(record.loss).all()
    state = load_state(last_checkpoint(tmp_path / "run"))
    assert {*state["mean"]} == {*record.tensor_names}


@pytest.mark.parametrize(
    ("name", "values", "kind", "message"),
    [
        ("my_clips:Other", {}, ValueError, "'Other' of my_clips is None, no"),
        ("my_clips:paddle", {}, ValueError, "no class of clips"),
        ("no_such_clips:A", {}, ImportError, "no_such_clips"),
        (NAME, {"zz": 2.0}, ValueError, "did you mean 'z'"),
        (NAME, {"z": -1.0}, ValueError, "z must be positive"),
    ],
)
def test_mistakes(name, values, kind, message):
    with pytest.raises(kind, match=message):
        make_clip(name, **values)
