# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The table of trials is made of the results."""

import json

from soak.trials import PAGE, RESULTS, Trial, page, read_trials, write_trials


def test_the_page_is_made_of_the_results():
    text = PAGE.read_text("utf-8")
    assert page(text, read_trials(RESULTS)) == text


def test_results_of_the_same_kinds_are_replaced(tmp_path):
    path = tmp_path / "soak.jsonl"
    path.write_text(f"{json.dumps({'kind': 'cells', 'case': 'z'})}\n")
    write_trials(path, [Trial("kills", "a", "resumed")])
    write_trials(path, [Trial("damage", "b", "silent", count=3)])
    write_trials(path, [Trial("kills", "c", "fell back", "why")])
    assert [trial.case for trial in read_trials(path)] == ["b", "c"]
    assert len(path.read_text().splitlines()) == 3
    text = page("<!-- soak --><!-- end -->", read_trials(path))
    assert "| One file of a run or of its data damaged | 3 |" in text
