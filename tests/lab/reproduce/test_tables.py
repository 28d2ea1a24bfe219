# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The committed tables are what the results give; prose cites only those."""

import re

import pandas as pd
import pytest
from adagc_lab.reproduce import pages, rates, tables
from pages import ROOT

PROSE = [
    ROOT / f"docs/{name}.md"
    for name in ("results", "results/paper", "results/tables")
]
HISTORY = ROOT / "results/history.csv"  # no code makes or reads it any more
PAPER = pd.read_csv(ROOT / "results/paper.csv", dtype=str)
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?![\w.]*\d)")
_LEFT_OUT = re.compile(
    r"`[^`]*`"  # names, commands
    r"|\]\([^)]*\)"  # links
    r"|^\d+\. |Assumption \d|Theorem \d|Figure \d\w?"
    r"|commit \w+|November \d+",
    re.MULTILINE,
)


def numbers(text):
    """Numbers of a text, without signs."""
    found = _NUMBER.findall(_LEFT_OUT.sub("]", text))
    return {number.strip(",").lstrip("+-−") for number in found}


@pytest.fixture(scope="module")
def known():
    """Every number that stands in a table, or defines a measure of one.

    The paper's own numbers are a source; ours beside them have to stand in
    another table.
    """
    blocks = [
        block
        for path in pages.pages_of(ROOT)
        for block in tables.blocks(path.read_text("utf-8"))
        if "| Our number |" not in block
    ]
    written = [HISTORY.read_text("utf-8"), *PAPER.iloc[:, 1]]
    found = numbers("\n".join([*blocks, *written]))
    # A peak's height and gap, the losses before it, the last steps, the steps
    # that are not judged, the limits, the old mass.
    return found | {"0.5", "0.1", "10", "50", "500", "200", "95", "5", "6"}


@pytest.mark.parametrize("page", PROSE, ids=lambda p: p.name)
def test_every_number_of_the_prose_is_in_a_table(page, known):
    prose = page.read_text("utf-8")
    for block in tables.blocks(prose):
        prose = prose.replace(block, "")
    assert not sorted(numbers(prose) - known)


def test_our_numbers_beside_the_paper_s_are_in_a_table(known):
    ours = numbers(" ".join([*PAPER["Here"], *PAPER["Our number"]]))
    assert not sorted(ours - known)


def test_the_tables_are_what_the_results_give():
    assert pages.differences(ROOT) == ""


def test_a_row_of_rates_has_the_same_seeds_at_every_rate():
    cells = pd.DataFrame(
        [
            *(("GlobalGC 1", 0.003, seed, 1.5) for seed in (1, 2)),
            *(("GlobalGC 1", 0.012, seed, 1.6) for seed in (1, 2, 3)),
            *(("GlobalGC 1", 0.024, seed, seed) for seed in (1, 2, 3)),
            ("AdaGC", 0.012, 2, 1.9),
        ],
        columns=["method", "rate", "seed", "loss"],
    ).assign(beta2="0.95", processor=["a"] * 8 + ["b"])
    globalgc, adagc = rates.rate_table(cells).splitlines()[2:]
    assert globalgc.startswith("| 0.95 | GlobalGC 1 | 3 | – | 1.600 | 2.000 |")
    assert adagc.startswith("| 0.95 | AdaGC | 1 | – | 1.900 | – |")
    # Seed 2 of AdaGC ran on another processor than GlobalGC 1's.
    paired = rates.rate_differences(cells.replace("b", "a"))
    assert "| 0.95 | 0.012 | 3 | +0.300, seeds: 1 |" in paired
    assert "| 0.95 | 0.012 | 3 | – |" in rates.rate_differences(cells)
