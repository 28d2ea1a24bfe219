# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lines of a record: complete ones are read, damaged ones are named."""

import json

import numpy as np
import pytest

from paddle_adagc.lab.record.rows import columns, read_names, read_rows


def test_a_line_without_its_end_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": 0, "loss": 2.0, "faults": [{"kind": "x"}]}, {"step": 1}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text + '{"step": 2}')
    assert read_rows(path) == rows


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "a list, not an object"),
        ('{"step": 2}', "step 2, where 1 belongs"),
        ('{"step": true}', "step True"),
        ('{"step": 1, "loss": "2"}', "the loss is '2'"),
        ('{"step": 1, "faults": {}}', "not a list of faults"),
        ('{"step": 1, "faults": [{}]}', "not a list of faults"),
        ('{"step": 1, "faults": [1]}', "not a list of faults"),
        ('{"step": 1, "x": 1' + "0" * 400 + "}", "x is too large"),
        ("[" * 100_000, "recursion"),
        ("{", "Expecting"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, line, message):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n' + line + "\n")
    with pytest.raises(ValueError, match=f"line 2: damaged .*{message}"):
        read_rows(path)


def test_numbers_become_columns():
    rows = [{"loss": 1, "x": 2.5, "note": "a"}, {"loss": None, "on": True}]
    found = columns(rows)
    assert list(found) == ["loss", "on", "x"]
    np.testing.assert_array_equal(found["loss"], [1.0, np.nan])
    np.testing.assert_array_equal(found["x"], [2.5, np.nan])
    assert columns([{"note": "a"}])["loss"].shape == (1,)


@pytest.mark.parametrize("text", ["{", "{}", '["a", 1]'])
def test_damaged_names_are_named(tmp_path, text):
    path = tmp_path / "tensors.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"tensors\.json: damaged"):
        read_names(path)
    path.write_text('["a", "b"]')
    assert read_names(path) == ["a", "b"]
