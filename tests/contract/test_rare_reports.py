# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a report says of slow, lasting and repeated changes."""

import numpy as np
import pytest
from contract.test_rare_records import GLOBAL_NORM, SHADOW
from watch.network import write

from paddle_adagc.watch.command import make_page
from paddle_adagc.watch.measure import Steps, add_numbers

KEYS = [f"layers.{i}.w" for i in range(6)]


def training(num, noise=0.02, seed=0):
    """Losses of about 2, and six norms of about 0.4."""
    rng = np.random.default_rng(seed)
    losses = 2 * np.exp(noise * rng.normal(size=num))
    return losses, 0.4 * np.exp(0.05 * rng.normal(size=(num, 6)))


def page_of(
    folder,
    losses,
    norms,
    *,
    clip=GLOBAL_NORM,
    numbers=None,
    **facts,
):
    """The page of a run; ``numbers`` has more of single steps."""
    norms = np.asarray(norms, np.float32)
    steps = range(1, len(losses) + 1)
    rows = [
        {"step": step, "loss": float(loss), **(numbers or {}).get(step, {})}
        for step, loss in zip(steps, losses, strict=True)
    ]
    tables = {
        "norm": norms,
        "gamma": norms + 0,
        "h": np.where(np.isnan(norms), np.nan, 1),
    }
    given = Steps(rows, KEYS, tables)
    add_numbers(given, None)
    facts = {"clip": clip, "shadow": SHADOW, **facts}
    return make_page(write(folder, given, facts, {"kind": "finished"}))


def codes(page):
    return {one["code"] for one in page["actions"]}


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_divergence_of_some_hundred_steps_is_told(tmp_path, factor):
    losses, norms = training(1000)
    growth = np.clip((np.arange(1000) - 300) / 700, 0, 1)
    page = page_of(tmp_path, losses * factor**growth, norms)
    assert not page["events"]
    verdict = page["verdict"]
    assert verdict["kind"] == ("calm" if factor == 1 else "slow rise")
    assert "did not rise suddenly" in verdict["text"]
    told = "and 5.669 ± 0.026 in steps 937 to 1,000." in verdict["text"]
    assert told == (factor > 1)


def test_a_spike_long_after_a_lasting_change_is_an_event(tmp_path):
    losses, norms = training(2200)
    norms[299:] *= 7
    losses[1999:] = 4
    norms[1999] *= 10
    page = page_of(tmp_path, losses, norms)
    first, second = page["events"]
    assert (first["kind"], first["first"]) == ("norm shift", 300)
    assert (second["kind"], second["first"]) == ("loss shift", 2000)
    assert "in steps 1,936 to 1,999" in page["verdict"]["text"]
    assert "before step 2,000." in page["actions"][0]["text"]


def test_a_loss_that_stayed_higher_is_judged_beyond_spikes_of_the_norm(
    tmp_path,
):
    losses, norms = training(1000, noise=0.01)
    losses[299] *= 1.5
    losses[300:] *= 1.05
    for step in (320, 345, 370):
        norms[step - 1] *= 12
    page = page_of(tmp_path, losses, norms)
    assert page["verdict"]["kind"] == "loss shift"
    assert "before step 300." in page["actions"][0]["text"]


def test_nothing_is_to_do_where_bad_gradients_were_left_out(tmp_path):
    losses, norms = training(600)
    for step in (300, 305, 309):
        norms[step - 1, 2] = np.inf
    skipped = {"skipped": True, "reason": "global_grad_norm"}
    numbers = dict.fromkeys((300, 305, 309), skipped)
    page = page_of(tmp_path, losses, norms, numbers=numbers)
    assert codes(page) == {"nothing"}
    assert "as many batches" not in str(page["actions"])


@pytest.mark.parametrize("clip", [GLOBAL_NORM, "ClipGradByAdaGC(t_start=0)"])
def test_a_loss_of_inf_has_the_counts_of_its_gradients(tmp_path, clip):
    losses, norms = training(600)
    losses[299] = np.inf
    text = page_of(tmp_path, losses, norms, clip=clip)["verdict"]["text"]
    said = "with Inf or NaN, of 6: 0 at step 299, 0 at step 300, 0 at step 301."
    assert said in text


def test_what_the_first_steps_do_not_show_is_not_denied(tmp_path):
    """A layer without a gradient before has no usual norm."""
    losses, norms = training(600)
    norms[:299, 4] = 0
    norms[299:, 4] = 50
    losses[299:305] = 9
    text = page_of(tmp_path, losses, norms)["verdict"]["text"]
    assert "the global norm rose" in text
    assert "No single tensor stands out" not in text


def test_a_ratio_has_the_step_in_which_it_was(tmp_path):
    losses, norms = training(600)
    norms[300:360, 2] *= 1.1 ** np.arange(1, 61)
    norms[360:, 2] *= 1.1**60
    losses[340:] *= 1.5
    text = page_of(tmp_path, losses, norms)["verdict"]["text"]
    assert "Only layers.2.w left its usual norm, at step 30" in text
    assert " times its usual norm at step 3" in text


def test_one_spike_outranks_three_gradients_with_nan(tmp_path):
    losses, norms = training(2400)
    for step in (500, 1000, 1500):
        norms[step - 1, 1] = np.inf
    losses[1999] = 6
    norms[1999] *= 9
    clip = "ClipGradByAdaGC(t_start=0)"
    page = page_of(tmp_path, losses, norms, clip=clip)
    assert page["verdict"]["kind"] == "loss spike"


def test_norms_that_the_record_lacks_are_named(tmp_path):
    losses, norms = training(600)
    losses[299] = 9
    norms[280:295] = np.nan  # without a row, as after thinning
    text = page_of(tmp_path, losses, norms)["verdict"]["text"]
    assert "lacks the tensors' norms of some of these steps" in text


def test_what_if_says_that_it_leaves_overrides_out(tmp_path):
    losses, norms = training(600)
    clip = "ClipGradByAdaGC(overrides={'x': {'lambda_rel': 4.0}})"
    page = page_of(tmp_path, losses, norms, clip=clip)
    assert "overrides of the run's clip" in page["what_if"]["note"]
