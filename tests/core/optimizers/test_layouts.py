# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every optimizer under fleet's layouts, against one process."""

import functools

import pytest
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.models.rank_weights import initialize_weights
from adagc_lab.optimizers import SPAM, ClippedAdamW, StableAdamW
from adagc_lab.optimizers.update_clips import AGC, Clippy
from core.parallel import training
from core.parallel.layouts import CASES as LAYOUTS
from core.parallel.layouts import DENSE, MOE
from core.parallel.ranks import run_on_ranks
from helpers import long_but

from paddle_adagc.optimizers import Lion, Muon
from paddle_adagc.optimizers.muon import hidden_matrices
from paddle_adagc.parallel.layout import read_layout

CLIP = {"name": "adagc", "t_start": 3, "lambda_rel": 5.0, "lambda_abs": 5.0}
SLOW = {"epsilon": 1e-2}  # else rounding decides where gradients are tiny
SPIKES = {"threshold": 3.0, "reset_interval": 4, "warmup_steps": 3}
ELEMENT_WISE = {
    "lion": (Lion, {}),
    "spam": (SPAM, {**SPIKES, "clip_start": 1, **SLOW}),
}
UPDATE_CLIPS = {
    "agc": AGC(lambda_rel=0.05),
    "agc of embeddings": AGC(lambda_rel=0.05),
    "agc, paper": AGC(form="paper", lambda_rel=0.05),
    "clippy": Clippy(lambda_rel=1e-2, lambda_abs=1e-5),
    "clippy, paper": Clippy(form="paper", lambda_rel=1e-4, lambda_abs=1e-4),
}
OPTIMIZERS = {
    **ELEMENT_WISE,
    "muon": (Muon, {"adamw_epsilon": 1e-2}),
    "stable_adamw": (StableAdamW, SLOW),
    **{
        name: (ClippedAdamW, {"update_clip": clip, **SLOW})
        for name, clip in UPDATE_CLIPS.items()
    },
}


def make_optimizer(name, model, **common):
    make, arguments = OPTIMIZERS[name]
    if name == "muon":
        common["is_matrix_fun"] = hidden_matrices(model)
    if name == "agc of embeddings":
        layout = read_layout(model)
        common["is_embedding_fun"] = lambda key: layout[key].is_embedding
    return make(1e-3, parameters=model.parameters(), **arguments, **common)


CASES = {
    "tp2": (DENSE, OPTIMIZERS),
    "tp2, MoE": (MOE, ("muon", "agc")),
    "v1 x2": (DENSE, OPTIMIZERS),
    "tp2 x v1": (DENSE, ("muon", "agc")),
    "tp2 x pp2": (DENSE, ("muon",)),
    "v2 x2": (DENSE, ELEMENT_WISE),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", long_but(("tp2", "v1 x2", "v2 x2"), CASES))
def test_run_is_that_of_one_process(case):
    layout = LAYOUTS[case.removesuffix(", MoE")][0]
    options, names = CASES[case]
    runs = [
        {
            "options": options,
            "num_steps": 6,
            "clip_settings": CLIP,
            "make_optimizer": functools.partial(make_optimizer, name),
        }
        for name in names
    ]
    for run, ranks in zip(runs, training.on_ranks(layout, runs), strict=True):
        expected = training.alone(**run)
        training.assert_same_run(ranks, expected)
        if layout.sharding > 1 and not layout.split_param:
            sizes = [rank["num_states"] for rank in ranks]
            assert max(sizes) < expected["num_states"], "states are not shared"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "names"),
    [("v1 x2", ["lion", "muon", "spam", "agc"]), ("v2 x2", [*ELEMENT_WISE])],
)
def test_state_of_a_rank_resumes_bit_by_bit(case, names):
    for same in run_on_ranks(
        rolled_back, 2, layout=LAYOUTS[case][0], names=names
    ):
        assert same == [True] * len(names)


def rolled_back(layout, names):
    """Whether steps are repeated bit by bit from a state of this rank."""
    topology = layout.start()
    same = []
    for name in names:
        config = DecoderConfig(**DENSE)
        model = DecoderForCausalLM(config)
        initialize_weights(model, config, training.SEED)
        optimizer = make_optimizer(name, model)
        model, optimizer = layout.wrap(model, optimizer)

        def train(steps, model=model, optimizer=optimizer):
            for step in steps:
                ids, labels = layout.rows(training.batch(step), topology)
                layout.backward(model, model, optimizer, ids, labels)
                optimizer.step()
                optimizer.clear_grad()
            return [p.clone() for p in model.parameters()]

        saved = train(range(2))
        state = optimizer.state_dict().items()
        state = {key: value.clone() for key, value in state}
        first = train(range(2, 4))
        optimizer.set_state_dict(state)
        for parameter, value in zip(model.parameters(), saved, strict=True):
            parameter.set_value(value)
        again = zip(first, train(range(2, 4)), strict=True)
        same.append(all((a == b).all().item() for a, b in again))
    return same
