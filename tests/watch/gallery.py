# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs of many fates, made in seconds.

What happens to a run is done to its data, gradients or rate.
"""

import dataclasses
import math
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np
from watch.network import FINISHED, KEYS, Training

EVERY = range(len(KEYS))
NUM_STEPS = 400


@dataclasses.dataclass
class Case:
    """A fate, and what a report may say of it."""

    may: str
    """Allowed kinds of the verdict | what is told of the tensors or the rate
    (a dash: nothing) | what may be advised | what has to be. A hyphen stands
    for a space."""

    onset: Container[int] = ()
    """Allowed steps of the event."""

    is_over: Container[bool | None] = (True,)
    made: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of its :class:`.Training`."""

    num_steps: int = NUM_STEPS
    ends: dict[str, Any] = dataclasses.field(default_factory=lambda: FINISHED)
    said: str = ""
    """What has to be said, between bars."""

    not_said: str = ""


def train(name: str, folder: Path, **changes: int) -> Path:
    """Write the record of a case; changes: ``seed``, ``width``, ``batch``."""
    case = CASES[name]
    training = Training(**{"seed": 5, **case.made, **changes})
    return training.write(folder, training.run(case.num_steps), case.ends)


def only(what: str, first: int, last: int = 0) -> Callable[[int], str]:
    """Data of another kind in one step, or up to another."""
    return lambda step: what if first <= step <= (last or first) else ""


def scaled(
    places: range, factor: float, first: int, last: int = 0
) -> Callable[[int, list[np.ndarray]], None]:
    def change(step: int, gradients: list[np.ndarray]) -> None:
        if first <= step <= (last or first):
            for i in places:
                gradients[i] *= factor

    return change


def growing(step: int, gradients: list[np.ndarray]) -> None:
    for i in (4, 5):
        gradients[i] *= 1.12 ** max(0, min(step - 200, 60))


def rate(factor: float, last: int) -> Callable[[int], float]:
    return lambda step: 0.01 * (factor if 240 <= step <= last else 1)


def calm(**made: Any) -> Case:
    return Case("calm | | nothing", made=made)


def bad(
    what: str, step: int, may: str = "nothing skip lower switch", seed: int = 5
) -> Case:
    """One batch of another kind."""
    may = f"loss-spike | most several none | {may}"
    made = {"data": only(what, step), "seed": seed}
    return Case(may, {step}, (True, None), made)


CASES = {
    "calm": calm(),
    "calm, warm-up and decay": calm(
        rate=lambda s: (
            0.006 * min(s / 50, 0.5 + 0.5 * math.cos(math.pi * s / NUM_STEPS))
        )
    ),
    "calm, data of two kinds": calm(
        data=lambda step: "kind" if (step * 2654435761) % 97 < 30 else ""
    ),
    "one batch, early": bad("random", 25, seed=7),
    "one batch, late": bad("random", 300, "nothing"),
    "one batch, in the descent": bad("random", 45, seed=9),
    "one batch, last step": bad(
        "random", NUM_STEPS, "return skip lower switch | return"
    ),
    "labels": bad("labels", 200),
    "one tensor x 3": Case(
        "calm norm-spike | tensor - | nothing",
        {200},
        made={"gradients": scaled(EVERY[4:5], 3.0, 200)},
    ),
    "one tensor x 1,000": Case(
        "norm-spike | tensor | nothing",
        {200},
        made={"gradients": scaled(EVERY[4:5], 1e3, 200)},
        said="and the global norm rose|left a norm of 1,|"
        "Only layers.2.fc.weight left|nothing to do",
        not_said="loss rose|record.switch|tenth",
    ),
    "growing layer": Case(
        "norm-shift loss-spike loss-shift | layer | "
        "look return lower switch | look",
        range(205, 230),
        (True, False, None),
        {"gradients": growing},
    ),
    "NaN in one gradient, AdaGC": Case(
        "gradient-nan | nonfinite | nothing",
        {200},
        made={"adagc": True, "gradients": scaled(EVERY[2:3], math.nan, 200)},
        said="of 8: 0 at step 199, 1 at step 200, 0 at step 201.|"
        "At step 200 Inf or NaN was in layers.1.fc.weight.|nothing to do",
        not_said="loss was NaN",
    ),
    "NaN in one gradient": Case(
        "loss-nan | nonfinite | return look skip switch | "
        "return look skip switch",
        {200},
        (False,),
        {"gradients": scaled(EVERY[2:3], math.nan, 200)},
        said="1 of 8 gradients had Inf or NaN. At step 201 the loss was NaN|"
        "At step 200 Inf or NaN was in layers.1.fc.weight.|"
        "0 at step 199, 1 at step 200, 8 at step 201.|AdaGC sets|"
        "--skip-above 8",
        not_said="global norm was|left a norm|layers.0",
    ),
    "all norms x 1e6 for good": Case(
        "norm-shift | most | nothing",
        {200},
        made={"gradients": scaled(EVERY, 1e6, 200, NUM_STEPS)},
        said="global norm rose|nothing",
        not_said="loss rose|Switch",
    ),
    "NaN loss raised": Case(
        "stopped | | return | return",
        num_steps=379,
        ends={
            "kind": "exception",
            "text": "ValueError: Loss contains inf or nan values",
            "last_loss": math.nan,
        },
        said="after step 379 with ValueError: Loss contains inf|"
        "The last loss was NaN or Inf.",
    ),
    "NaN to the end": Case(
        "loss-nan | nan | return look skip switch | return look",
        {350},
        (False,),
        {"data": only("nan", 350)},
        said="the loss was NaN or Inf. |Gradients with Inf or NaN, of 8: "
        "0 at step 349, 8 at step 350, 8 at step 351.|"
        "NaN or Inf are 51 of the 51 losses|batch of step 350, and at the loss",
        not_said="layers.|global norm was|left a norm",
    ),
    "rate x 15": Case(
        "loss-shift | rate | return rate | return rate",
        range(240, 248),
        (False,),
        {"rate": rate(15, NUM_STEPS)},
    ),
    "rate x 30 for five steps": Case(
        "loss-spike loss-shift | rate | return rate | rate",
        range(240, 245),
        (True, False, None),
        {"rate": rate(30, 244)},
        said="was 0.01 before step 240, then up to 0.3, and 0.01 from step 245 "
        "on|Before, in steps 177 to 240, the loss was|Find out why",
        not_said="Lower|usual again|nothing to do",
    ),
    "lasting shift": Case(
        "loss-spike loss-shift | most several none | return lower switch",
        {300},
        (True, False, None),
        {"data": only("shift", 300, NUM_STEPS)},
    ),
    "stale second moment": Case(
        "loss-spike loss-shift norm-spike norm-shift | most several | "
        "nothing return lower switch",
        {300},
        (True, False),
        {
            "gradients": scaled(EVERY, 0.02, 100, 299),
            "rate": lambda step: 0.03,
        },
    ),
    "a full disk": Case(
        "stopped | | disk | disk",
        ends={"kind": "disk", "text": "No space left on device"},
        said="No space left",
    ),
    "a killed rank": Case(
        "stopped | | return | return",
        ends={"kind": "rank", "text": "rank 1 was lost"},
    ),
}
