# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every optimizer under fleet's layouts, against one process."""

import functools

import numpy as np
import pytest
from core.parallel import training
from core.parallel.ranks import run_on_ranks
from core.parallel.training import DENSE, LAYOUTS, MOE, Layout
from helpers import long_but

from paddle_adagc.optimizers.lion import Lion
from paddle_adagc.optimizers.muon import Muon, hidden_matrices
from paddle_adagc.optimizers.spam import SPAM
from paddle_adagc.optimizers.stable_adamw import StableAdamW
from paddle_adagc.optimizers.update_clips import (
    AGC,
    ClippedAdamW,
    Clippy,
    RMSClip,
)
from paddle_adagc.parallel.layout import read_layout

NUM_STEPS = 6
LR = 1e-3
CLIP = {"name": "adagc", "t_start": 3, "lambda_rel": 5.0, "lambda_abs": 5.0}
SLOW = {"epsilon": 1e-2}  # else rounding decides where gradients are tiny
ELEMENT_WISE = ("lion", "spam")
NAMES = (
    *ELEMENT_WISE,
    "muon",
    "stable_adamw",
    "agc",
    "agc of embeddings",
    "agc, paper",
    "clippy",
    "clippy, paper",
    "rms",
)


def make_optimizer(name, model, **common):
    embeddings = {
        key for key, tensor in read_layout(model).items() if tensor.is_embedding
    }
    clips = {
        "agc": AGC(lambda_rel=0.05),
        "agc of embeddings": AGC(lambda_rel=0.05),
        "agc, paper": AGC(form="paper", lambda_rel=0.05),
        "clippy": Clippy(lambda_rel=1e-2, lambda_abs=1e-5),
        "clippy, paper": Clippy(form="paper", lambda_rel=1e-4, lambda_abs=1e-4),
        "rms": RMSClip(threshold=0.05),
    }
    common |= {"learning_rate": LR, "parameters": model.parameters()}
    if name in clips:
        return ClippedAdamW(
            update_clip=clips[name],
            is_embedding_fun=(
                (lambda key: key in embeddings) if "embed" in name else None
            ),
            **SLOW,
            **common,
        )
    if name == "muon":
        return Muon(
            is_matrix_fun=hidden_matrices(model), adamw_epsilon=1e-2, **common
        )
    if name == "spam":
        return SPAM(
            threshold=3.0,
            reset_interval=4,
            warmup_steps=3,
            clip_start=1,
            **SLOW,
            **common,
        )
    makers = {
        "lion": Lion,
        "stable_adamw": functools.partial(StableAdamW, **SLOW),
    }
    return makers[name](**common)


def train(layout, topology, options, name):
    """The run of `training.train` with one of the optimizers."""
    return training.train(
        layout,
        topology,
        options,
        num_steps=NUM_STEPS,
        clip_settings=CLIP,
        make_optimizer=functools.partial(make_optimizer, name),
    )


def train_all(layout, options, names):
    """Several runs on this rank, one after the other."""
    topology = layout.start()
    return [train(layout, topology, options, name) for name in names]


@functools.cache
def alone(name, is_moe):
    """The run of one process."""
    return train(Layout(), None, MOE if is_moe else DENSE, name)


CASES = {
    "tp2": (DENSE, NAMES),
    "tp2, MoE": (MOE, ("muon", "agc")),
    "v1 x2": (DENSE, NAMES),
    "tp2 x v1": (DENSE, ("muon", "agc")),
    "tp2 x pp2": (DENSE, ("muon",)),
    "v2 x2": (DENSE, ELEMENT_WISE),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", long_but(("tp2", "v1 x2", "v2 x2"), CASES))
def test_run_is_that_of_one_process(case):
    layout = LAYOUTS[case.removesuffix(", MoE")]
    options, names = CASES[case]
    ranks = run_on_ranks(
        train_all,
        layout.world_size,
        layout=layout,
        options=options,
        names=names,
    )
    for name, results in zip(names, zip(*ranks, strict=True), strict=True):
        expected = alone(name, options is MOE)
        losses = np.mean([rank["losses"] for rank in results], axis=0)
        np.testing.assert_allclose(
            losses, expected["losses"], rtol=1e-5, err_msg=name
        )
        training.assert_close(
            training.merge([rank["weights"] for rank in results]),
            training.merge([expected["weights"]]),
            f"weights of {name}",
        )
        if layout.sharding > 1 and not layout.split_param:
            sizes = [rank["num_states"] for rank in results]
            assert max(sizes) < expected["num_states"], "states are not shared"
