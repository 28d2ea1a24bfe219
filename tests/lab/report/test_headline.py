# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sentences on an experiment follow from its runs."""

from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.headline import headline


def test_spikes_and_damage_are_counted(make_run):
    runs = {
        "GlobalGC": [make_run(method="GlobalGC", steps=1500, spikes={1400: 2})],
        "AdaGC": [make_run(steps=1500)],
    }
    experiment = Experiment(title="T", description="", runs=runs)
    first, second = headline(experiment)
    assert first.startswith("GlobalGC: ")
    assert "spikes in 300 judged steps, worst loss jump 2.0" in first
    assert first.endswith("nat at step 1,400")
    assert second.startswith("AdaGC: no spikes in 300 judged steps, worst ")


def test_the_excess_over_the_clean_run(make_run):
    fault = {20: {"kind": "random_tokens", "tensors": []}}
    experiment = Experiment(
        title="T",
        description="",
        runs={"AdaGC": [make_run(steps=60, spikes={21: 3.0}, faults=fault)]},
        clean_runs={"AdaGC": [make_run(steps=60)]},
        skip_steps=6,
    )
    (line,) = headline(experiment)
    assert line.startswith("AdaGC: no step is judged: too few came before, ")
    assert line.endswith("nat × steps above the same run without faults")
