# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Auto-parallel on real ranks: every mesh trains as one process."""

import functools

import pytest
from core.parallel import auto_training, training
from core.parallel.auto_training import MeshLayout
from core.parallel.ranks import run_on_ranks
from core.parallel.training import DENSE, Layout, assert_same_run
from helpers import slow_but

from paddle_adagc.state import load_state, save_state

CASES = {
    "tp2": MeshLayout(mp=2),
    "dp2": MeshLayout(dp=2),
    "stage 1 x2": MeshLayout(dp=2, stage=1),
    "stage 2 x2": MeshLayout(dp=2, stage=2),
    "tp2 x dp2": MeshLayout(mp=2, dp=2),
    "tp2 x stage 1": MeshLayout(mp=2, dp=2, stage=1),
}


def run(layout, **arguments):
    """What each rank gave back."""
    ranks = run_on_ranks(
        auto_training.train_all,
        layout.world_size,
        layout=layout,
        runs=[{"options": DENSE, **arguments}],
    )
    return [runs[0] for runs in ranks]


@functools.cache
def spread(case):
    return run(CASES[case])


@functools.cache
def alone():
    return training.train_alone(DENSE)


@pytest.mark.parametrize("case", slow_but("stage 1 x2", CASES))
def test_run_is_that_of_one_process(case):
    assert_same_run(spread(case), alone())
