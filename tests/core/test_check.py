# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m paddle_adagc`` says what the clip runs on, and if right."""

import re
import time

import numpy as np
import paddle
import pytest

from paddle_adagc import __main__ as check
from paddle_adagc.clips.gradients import GradientList

USED = {
    "host": r"C\+\+ loops",
    "cuda": "CUDA kernels",
    "operators": "Paddle's operators: .*",
}


def test_steps_are_those_of_numpy(backend, capsys):
    begin = time.process_time()  # of this process: the machine may be busy
    assert check.main([]) == 0
    assert time.process_time() - begin < 5
    out = capsys.readouterr().out
    assert re.search(rf"the clip uses  {USED[backend]}\n", out)
    assert f"paddle  {paddle.__version__}\n" in out
    assert re.search(rf"^ +numpy  {np.__version__}$", out, re.MULTILINE)
    assert re.search(r"clip steps  right, error \d\.\de-0[678] ", out)


@pytest.mark.parametrize("factor", [1.0001, float("nan")])
def test_a_wrong_clip_is_found(monkeypatch, capsys, factor):
    scale_ = GradientList.scale_
    monkeypatch.setattr(
        GradientList,
        "scale_",
        lambda self, h, discard: scale_(self, factor * h, discard),
    )
    assert check.main([]) == 1
    assert "clip steps  WRONG, error" in capsys.readouterr().out
