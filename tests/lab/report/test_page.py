# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The page and its figures: what they show, that nothing is loaded."""

import base64
import re

from adagc_lab.report.focus import choose_focus
from adagc_lab.report.page import write_picture, write_report
from lab.report.made import NAMES, make_experiment, make_run


def figures_of(text):
    """The SVG texts of a page."""
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text)
    return [base64.b64decode(data).decode() for data in found]


def test_a_page_has_tables_figures_and_settings(tmp_path):
    runs = {
        "GlobalGC": [
            make_run(method="GlobalGC", seed=s, spikes={250: 2.0}, surge=248)
            for s in (1, 2)
        ],
        "AdaGC": [make_run(seed=s) for s in (1, 2)],
    }
    title = "1 < <b>A&B</b>"
    experiment = make_experiment(runs, title=title, dynamics_tensor=NAMES[0])
    page = write_report(tmp_path / "out/r.html", "T", [experiment])
    text = page.read_text("utf-8")
    assert "1 &lt; &lt;b&gt;A&amp;B&lt;/b&gt;" in text
    assert "2 seeds (1, 2), 400 steps a run" in text
    assert "Differences from GlobalGC" in text
    assert len(figures_of(text)) == 3
    assert "GlobalGC&#x27;s loss, at step 250" in text
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert str(tmp_path) not in text


def test_the_event_is_the_worst_rise_and_the_fault_before_it():
    calm = [make_run(seed=1, spikes={200: 1.0})]
    hit = [make_run(seed=2, spikes={301: 3.0}, surge=300, faults={300: "g"})]
    runs = {"GlobalGC": calm + hit}
    focus = choose_focus(make_experiment(runs))
    assert (focus.seed_index, focus.start) == (1, 260)
    assert focus.tensors[:2] == [NAMES[1], NAMES[0]]
    assert focus.reason.endswith("after the fault at step 300 (g)")


def test_a_run_that_diverged_is_shown_where_it_did():
    run = make_run(nan_from=300, status="diverged")
    focus = choose_focus(make_experiment({"AdaGC": [run]}))
    assert (focus.start, focus.stop) == (260, 305)


def test_without_tensors_there_is_no_picture(tmp_path):
    path = tmp_path / "p.svg"
    experiment = make_experiment({"AdaGC": [make_run(tensors=False)]})
    assert write_picture(path, experiment) is None
    page = write_report(tmp_path / "r.html", "T", [experiment])
    assert len(figures_of(page.read_text("utf-8"))) == 1
    lost = make_run(tensors=False, nan_from=0, status="diverged")
    page = write_report(page, "T", [make_experiment({"AdaGC": [lost]})])
    assert "∞" in page.read_text("utf-8")
