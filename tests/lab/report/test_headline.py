# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The sentences on an experiment follow from its runs."""

from paddle_adagc.lab.report.experiment import Experiment
from paddle_adagc.lab.report.tables import conclusion, headline


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


def test_the_conclusion_names_jump_and_end_of_each_method(make_run):
    runs = {
        "GlobalGC": [make_run(method="GlobalGC", steps=400, spikes={300: 2})],
        "AdaGC": [make_run(steps=400)],
    }
    experiment = Experiment(title="Tiny", description="", runs=runs)
    first, last = conclusion([experiment])
    assert first.startswith("Tiny: worst loss jump 2 nat under GlobalGC, 0.")
    assert "; final loss " in first
    assert first.endswith(" nat under AdaGC.")
    assert last.startswith("Fewer than 3 seeds are an illustration")
    seeds = [make_run(steps=40, seed=seed) for seed in (1, 2, 3)]
    several = Experiment(title="T", description="", runs={"AdaGC": seeds})
    assert len(conclusion([several])) == 1
