# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs that are stopped in the middle."""

import contextlib
from unittest import mock

import pytest

from paddle_adagc.lab.train.trainer import PretrainTrainer


@contextlib.contextmanager
def interrupted_at(num_steps):
    """Expect and cause a Ctrl-C after so many steps of a run."""
    training_step = PretrainTrainer.training_step

    def stopping(self, *args, **kwargs):
        if self.state.global_step == num_steps:
            raise KeyboardInterrupt
        return training_step(self, *args, **kwargs)

    with (
        mock.patch.object(PretrainTrainer, "training_step", stopping),
        pytest.raises(KeyboardInterrupt),
    ):
        yield
