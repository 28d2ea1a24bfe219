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
"""The compared clips in hybrid parallelism, against one process."""

import pytest
from core.parallel import training
from core.parallel.ranks import run_on_ranks
from core.parallel.training import DENSE, MOE, Layout, assert_same_run

CLIPS = {
    "agc": {"name": "agc", "lambda_rel": 0.05},
    "zclip": {"name": "zclip", "warmup_steps": 5, "z_thres": 1.0},
    "global_adagc": {**training.ADAGC, "name": "global_adagc"},
    "tensor_wise": {"name": "tensor_wise", "share": "sqrt_size"},
    "value": {"name": "value", "lambda_abs": 0.5},
}
CASES = {
    "tp2": (Layout(mp=2), [*CLIPS], DENSE),
    "v1 x2": (Layout(sharding=2), [*CLIPS], DENSE),
    "tp2 x v1": (Layout(mp=2, sharding=2), ["agc", "tensor_wise"], DENSE),
    "v2 x2": (
        Layout(sharding=2, split_param=True),
        ["zclip", "global_adagc", "tensor_wise"],
        DENSE,
    ),
    "tp2 x pp2": (Layout(mp=2, pp=2), ["agc", "zclip", "tensor_wise"], DENSE),
    "ep2": (
        Layout(ep=2, sharding=2, split_param=True),
        ["zclip", "tensor_wise"],
        MOE,
    ),
}
NUM_STEPS = 15
_ALONE: dict[str, dict] = {}


def arguments(name, options):
    return {
        "options": options,
        "clip_settings": CLIPS[name],
        "num_steps": NUM_STEPS,
    }


def alone(name, options):
    """The run of one process."""
    key = f"{name} {options is MOE}"
    if key not in _ALONE:
        _ALONE[key] = training.train_alone(**arguments(name, options))
    return _ALONE[key]


def assert_same_runs(layout, names, options):
    ranks = run_on_ranks(
        training.train_all,
        layout.world_size,
        layout=layout,
        runs=[arguments(name, options) for name in names],
    )
    for name, results in zip(names, zip(*ranks, strict=True), strict=True):
        assert_same_run(results, alone(name, options))


@pytest.mark.parametrize("case", CASES)
def test_run_is_that_of_one_process(case):
    assert_same_runs(*CASES[case])
