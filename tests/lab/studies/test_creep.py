# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The course of a run under the creep, from numbers that one computes."""

from types import SimpleNamespace

import numpy as np
from adagc_lab.studies import StudyRun
from adagc_lab.studies.creep import course


def test_course_by_hand():
    steps = np.arange(200.0)
    run = SimpleNamespace(
        loss=steps,
        h=np.stack([np.ones(200), np.full(200, 0.5), np.zeros(200)], axis=1),
        tensors={"norm": np.full((200, 2), [3.0, 4.0], np.float32)},
        metrics={"second_moment_root": steps, "update_norm": steps / 3},
    )
    found = course(run, StudyRun("AdaGC", "c.yaml", first_step=100))
    assert found["norm"] == [5.0, 5.0]
    assert found["h"] == [0.5, 0.5]
    assert found["loss"] == found["mean_loss"] == [124.5, 174.5]
    assert found["largest_loss"] == [149.0, 199.0]
    assert found["update"] == [41.5, 58.1667]
