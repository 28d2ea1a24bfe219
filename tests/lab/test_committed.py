# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers of committed files: rounded, and compared with a tolerance."""

import json
import math

import pytest
from adagc_lab.committed import as_json, differences, rounded
from pages import ROOT


def test_rounded_numbers_are_those_of_every_processor():
    one, other = 0.00562213673354108, 0.0056221367335410844
    assert one != other
    assert rounded(one) == rounded(other) == 0.00562213673
    assert rounded(1 / 3, 6) == 0.333333
    assert rounded(-math.inf) == -math.inf


def test_json_holds_rounded_and_infinite_numbers():
    value = {"a": [1 / 3, math.inf, 12345678901234], "é": None}
    text = '{"a": [0.333333333, "inf", 12345678901234], "é": null}\n'
    assert as_json(value) == text


@pytest.mark.parametrize(
    ("present", "computed", "said"),
    [
        ("a 1.5 b", "a 1.5 b", None),
        ("a 0.123456789 b", "a 0.123456790 b", None),
        ("+1,234.00000001, 3", "+1,234.0, 3", None),
        ("a −0.0 b", "a 0.0 b", None),
        ("1.5e-05,2.0", "1.50000001e-05,2.0", None),
        ("x\na: 0.5", "x\na: 0.500005", "line 2, a: is 0.5, computed 0.500005"),
        ("a 0.5", "a -0.5", r"difference 2"),
        ("a 10 b", "a 11 b", r"is 10, computed 11"),
        ("a 10000000001 b", "a 10000000002 b", "is 10000000001"),
        ("a 1.5 b", "a 1.5 c", "line 1: is 'a 1.5 b', computed 'a 1.5 c'"),
        ("a 1.5 b", "a 1.5, 2.5 b", "computed 'a 1.5, 2.5 b'"),
        ("1 in a3f4e1", "1 in a3f4e2", "line 1: is"),
        ("a", "a\nb", "is no line, computed 'b'"),
    ],
)
def test_differences(present, computed, said):
    found = differences(present, computed)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_committed_results_have_no_more_digits_than_processors_agree_on():
    def check(number):
        assert float(number) == rounded(float(number))

    for path in sorted((ROOT / "results").glob("*.json*")):
        text = path.read_text("utf-8")
        parts = [text] if path.suffix == ".json" else text.splitlines()
        for part in parts:
            json.loads(part, parse_float=check)
