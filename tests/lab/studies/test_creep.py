# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The page of the creep is what its results give."""

from types import SimpleNamespace

import numpy as np
from pages import load_tool

tool = load_tool("creep")


def test_page_and_figures_are_those_of_the_results():
    assert tool.main(["--check"]) == 0


def test_other_results_change_page_and_figures():
    records = tool.read_records()
    records[1]["norm"] = [2 * value for value in records[1]["norm"]]
    assert all(
        text != path.read_text("utf-8")
        for path, text in tool.made_files(records).items()
    )


def test_course_by_hand():
    steps = np.arange(200.0)
    run = SimpleNamespace(
        loss=steps,
        h=np.stack([np.ones(200), np.full(200, 0.5), np.zeros(200)], axis=1),
        tensors={"norm": np.full((200, 2), [3.0, 4.0], np.float32)},
        metrics={"second_moment_root": steps, "update_norm": steps / 3},
        run={},
    )
    found = tool.course(run, "AdaGC", 100)
    assert found["norm"] == [5.0, 5.0]
    assert found["h"] == [0.5, 0.5]
    assert found["loss"] == found["mean_loss"] == [124.5, 174.5]
    assert found["largest_loss"] == [149.0, 199.0]
    assert found["update"] == [41.5, 58.1667]
