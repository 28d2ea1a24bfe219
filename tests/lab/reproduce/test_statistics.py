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
"""The exact paired test against hand-worked answers and scipy's definition."""

import itertools
import math

import numpy as np
import pytest

from paddle_adagc.lab.reproduce.statistics import (
    paired_differences,
    sign_flip_test,
)


def test_all_of_one_sign_gives_the_least_possible_p():
    for count in (1, 2, 5):
        below = sign_flip_test([-1.0 - i for i in range(count)], "less")
        assert below.p == below.smallest_p == 2.0**-count
        both = sign_flip_test([-1.0 - i for i in range(count)])
        assert both.p == both.smallest_p == min(1.0, 2.0 ** (1 - count))
    assert sign_flip_test([1.0, 2.0, 3.0], "less").p == 1.0


def test_hand_worked_pattern():
    # Sums of ±1 ±2 ±4: the seen one, 1 + 2 - 4 = -1, is the fourth lowest.
    test = sign_flip_test([1.0, 2.0, -4.0], "less")
    assert test.p == 4 / 8
    assert sign_flip_test([1.0, 2.0, -4.0], "greater").p == 5 / 8
    assert sign_flip_test([1.0, 2.0, -4.0]).p == 1.0


def test_equals_the_definition():
    series = np.random.default_rng(0).normal(0.4, 1, 7)
    signs = np.array(list(itertools.product((-1, 1), repeat=7)))
    means = (signs * np.abs(series)).mean(axis=1)
    seen = series.mean()
    assert sign_flip_test(series, "greater").p == (means >= seen - 1e-12).mean()
    assert (
        sign_flip_test(series).p == (np.abs(means) >= abs(seen) - 1e-12).mean()
    )


def test_zeros_are_no_evidence():
    assert sign_flip_test([0.0] * 5).p == 1.0
    assert sign_flip_test([0.0, 0.0, -1.0], "less").p == 0.5
    assert sign_flip_test([0.0, 0.0, -1.0], "less").smallest_p == 0.5
    assert sign_flip_test([0.0] * 5).smallest_p == 1.0


def test_infinite_differences_count_by_rank():
    # Ranks 1, 2.5, 2.5 with signs +, -, -: only the all-negative is lower.
    test = sign_flip_test([1.0, -math.inf, -math.inf], "less")
    assert test.p == 2 / 8


def test_a_run_that_diverged_is_infinitely_high():
    differences = paired_differences(
        [1.0, 2.0, math.nan], [math.nan, 1.5, math.inf]
    )
    assert differences.tolist() == [-math.inf, 0.5, 0.0]
    accuracies = paired_differences([-math.inf, 30.0], [40.0, -math.inf])
    assert accuracies.tolist() == [-math.inf, math.inf]


@pytest.mark.parametrize(
    ("differences", "message"),
    [([], "1 to 20"), ([1.0] * 21, "1 to 20"), ([1.0, math.nan], "NaN")],
)
def test_bad_differences_are_named(differences, message):
    with pytest.raises(ValueError, match=message):
        sign_flip_test(differences)


def test_other_mistakes():
    with pytest.raises(ValueError, match="do not pair up"):
        paired_differences([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="did you mean 'less'"):
        sign_flip_test([1.0], "lesser")
