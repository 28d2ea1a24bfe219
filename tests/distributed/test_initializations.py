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
"""Scaled Embed and WeSaR under fleet's layouts train as one process."""

import pytest
from distributed import training
from distributed.ranks import run_on_ranks
from distributed.training import DENSE, MOE, Layout, assert_same_run

UNTIED = {**DENSE, "tie_word_embeddings": False}
WESAR = {"options": {**UNTIED, "initialization": "wesar"}}
WESAR_MOE = {"options": {**MOE, "initialization": "wesar"}}
SCALED_EMBED = {"options": {**DENSE, "initialization": "scaled_embed"}}
CASES = {
    "tp2": (Layout(mp=2), [WESAR, WESAR_MOE, SCALED_EMBED]),
    "sp with tp2 x pp2": (
        Layout(mp=2, pp=2, sequence_parallel=True),
        [WESAR, SCALED_EMBED],
    ),
    "ep2": (Layout(ep=2, sharding=2, split_param=True), [WESAR_MOE]),
}


@pytest.mark.parametrize("case", CASES)
def test_run_is_that_of_one_process(case):
    layout, runs = CASES[case]
    ranks = run_on_ranks(
        training.train_all, layout.world_size, layout=layout, runs=runs
    )
    for arguments, of_ranks in zip(runs, zip(*ranks, strict=True), strict=True):
        assert_same_run(of_ranks, training.train_alone(**arguments))
