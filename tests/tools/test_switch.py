# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/training.md, run as they stand there."""

import shlex

import numpy as np
import pytest
from adagc_lab.record.files import RunRecord
from helpers import run_python
from pages import ROOT, blocks

PAGE = ROOT / "docs/training.md"


@pytest.mark.slow
def test_a_run_that_spikes_is_forked_before_the_spike(tmp_path):
    for folder in ("tools", "configs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    block = next(b for b in blocks(PAGE, "bash") if "--fork" in b)
    for line in block.replace("\\\n", " ").splitlines():
        command, *arguments = shlex.split(line)
        if command == "adagc-report":
            arguments = ["-m", "paddle_adagc.watch.command", *arguments]
        done = run_python(tmp_path, *arguments, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr
    before, fork = (
        RunRecord.load(tmp_path / "outputs" / name)
        for name in ("switch", "switch_adagc")
    )
    assert fork.run["forked_from"]["step"] == 150
    np.testing.assert_array_equal(fork.loss[:151], before.loss[:151])
    good = np.r_[305:350, 355:400]  # after each burst of bad batches
    assert before.loss[good].min() > 1 > 0.5 > fork.loss[good].max()
    report = (tmp_path / "outputs/switch.html").read_text()
    assert "switch_adagc" in report
