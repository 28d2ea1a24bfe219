# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The pages of the studies are what their results give."""

import numpy as np
import pytest
from adagc_lab.studies.creep import CREEP
from adagc_lab.studies.price import PRICE
from pages import load_tool

tool = load_tool("study")


@pytest.mark.parametrize("name", tool.NAMES)
def test_page_and_figures_are_those_of_the_results(name):
    assert tool.main([name, "--check"]) == 0


@pytest.mark.parametrize(
    ("study", "names"),
    [(CREEP, ["norm"]), (PRICE, ["mean_loss", "validation_loss"])],
    ids=["creep", "price"],
)
def test_other_results_change_page_and_figures(study, names):
    records = study.read_records()
    for number, record in enumerate(records):
        for name in names:
            record[name] = (np.array(record[name]) * (2 + number)).tolist()
    assert all(
        text != path.read_text("utf-8")
        for path, text in study.made_files(records).items()
    )


def test_runs_have_separate_folders():
    for study in (CREEP, PRICE):
        runs = {(run.name, run.first_step) for run in study.runs}
        assert len(runs) == len(study.runs)
