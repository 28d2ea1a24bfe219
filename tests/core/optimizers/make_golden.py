# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make `golden/optimizers.npz` with PyTorch and two packages of optimizers.

For each case the weights of every tensor after 10, 50 and 100 steps, from the
start weights and gradients of `draws.py` in float32; weights of PyTorch's shape
``[out, in]`` are transposed. Newton-Schulz in `torch.optim.Muon` runs in
bfloat16; the cases "muon ..." lift that to float32, the case "muon, bfloat16"
does not. "spam" is without the warm-up after a reset, whose cosine the package
computes otherwise than the authors. None of these packages is needed to use or
to test paddle_adagc, so this script has an environment of its own:

    pip install torch==2.13.0 lion-pytorch==0.2.5 torch-optimi==0.3.3 \
        pytorch-optimizer==4.1.0
    PYTHONPATH=tests python tests/core/optimizers/make_golden.py
"""

from pathlib import Path
from unittest import mock

import numpy as np
import torch
from core.optimizers.draws import SHAPES, draw_gradients, draw_weights
from lion_pytorch import Lion
from optimi import StableAdamW
from pytorch_optimizer import SPAM

SAVED = (10, 50, 100)
MATRICES = [len(shape) == 2 for shape in SHAPES]
LR = 0.01
CASES = {
    "lion": lambda p: Lion(p, LR, betas=(0.9, 0.99), weight_decay=0.5),
    "lion, other betas": lambda p: Lion(p, LR, betas=(0.95, 0.98)),
    "stable_adamw": lambda p: StableAdamW(p, LR, weight_decay=0.1),
    "stable_adamw, other betas": lambda p: StableAdamW(
        p, LR, betas=(0.5, 0.95), eps=1e-3, weight_decay=0.0
    ),
    "spam": lambda p: SPAM(
        p, LR, warmup_epoch=0, threshold=5, update_proj_gap=30, eps=1e-12
    ),
    "muon": lambda p: torch.optim.Muon(p, LR),
    "muon, rms": lambda p: torch.optim.Muon(
        p,
        LR,
        momentum=0.8,
        nesterov=False,
        weight_decay=0.5,
        adjust_lr_fn="match_rms_adamw",
    ),
    "muon, bfloat16": lambda p: torch.optim.Muon(p, LR),
}


def run(case, index):
    """Weights of one tensor, float32, by step."""
    weight = torch.tensor(draw_weights()[index], dtype=torch.float32)
    if MATRICES[index]:
        weight = weight.T.contiguous()
    parameter = torch.nn.Parameter(weight)
    optimizer = CASES[case]([parameter])
    saved = {}
    for step in range(max(SAVED)):
        gradient = torch.tensor(draw_gradients(step)[index]).float()
        if MATRICES[index]:
            gradient = gradient.T.contiguous()
        parameter.grad = gradient
        optimizer.step()
        if step + 1 in SAVED:
            array = parameter.detach().numpy().copy()
            saved[step + 1] = array.T if MATRICES[index] else array
    return saved


def main():
    """Write the file."""
    arrays = {}
    for case in CASES:
        keep = mock.patch.object(
            torch.Tensor, "bfloat16", lambda self: self.clone()
        )
        is_exact = case.startswith("muon") and "bfloat16" not in case
        with keep if is_exact else mock.MagicMock():
            for index, is_matrix in enumerate(MATRICES):
                if is_matrix or not case.startswith("muon"):
                    for step, array in run(case, index).items():
                        arrays[f"{case}/{index}/{step}"] = array
    path = Path(__file__).parent / "golden" / "optimizers.npz"
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main()
