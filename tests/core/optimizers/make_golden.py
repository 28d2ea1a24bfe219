# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make `golden/optimizers.npz` with PyTorch and three packages of optimizers.

For each case the weights of every tensor after 10, 50 and 100 steps of the runs
of `runs.py`, in float32; PyTorch's weights are ``[out, in]``. Newton-Schulz in
`torch.optim.Muon` runs in bfloat16; the cases "muon ..." lift that to float32,
the case "muon, bfloat16" does not. "spam" is without the warm-up after a reset,
whose cosine the package computes otherwise than the authors. The packages are
needed for nothing else here:

    pip install torch==2.13.0 lion-pytorch==0.2.5 torch-optimi==0.3.3 \
        pytorch-optimizer==4.1.0
    PYTHONPATH=tests python tests/core/optimizers/make_golden.py
"""

from pathlib import Path
from unittest import mock

import numpy as np
import torch
from core.optimizers.runs import SHAPES, draw_gradients, draw_weights
from lion_pytorch import Lion
from optimi import StableAdamW
from pytorch_optimizer import SPAM

LR = 0.01
SPIKES = {"warmup_epoch": 0, "threshold": 5, "update_proj_gap": 30}
OTHER = {"betas": (0.5, 0.95), "eps": 1e-3, "weight_decay": 0.0}
RMS = {"momentum": 0.8, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}
CASES = {
    "lion": (Lion, {"betas": (0.9, 0.99), "weight_decay": 0.5}),
    "lion, other betas": (Lion, {"betas": (0.95, 0.98)}),
    "stable_adamw": (StableAdamW, {"weight_decay": 0.1}),
    "stable_adamw, other betas": (StableAdamW, OTHER),
    "spam": (SPAM, {**SPIKES, "eps": 1e-12}),
    "muon": (torch.optim.Muon, {}),
    "muon, rms": (torch.optim.Muon, {**RMS, "weight_decay": 0.5}),
    "muon, bfloat16": (torch.optim.Muon, {}),
}


def to_torch(array):
    """Transpose a matrix from Paddle's ``[in, out]``."""
    return torch.tensor(array.T, dtype=torch.float32).contiguous()


def weights_of(case, index):
    """Steps, and one tensor's weights after them, float32."""
    parameter = torch.nn.Parameter(to_torch(draw_weights()[index]))
    make, arguments = CASES[case]
    optimizer = make([parameter], LR, **arguments)
    for step in range(1, 101):
        parameter.grad = to_torch(draw_gradients(step - 1)[index])
        optimizer.step()
        if step in (10, 50, 100):
            yield step, parameter.detach().numpy().copy().T


def main():
    """Write the file."""
    arrays = {}
    for case in CASES:
        is_muon = case.startswith("muon")
        own = torch.Tensor.bfloat16
        lifted = torch.Tensor.clone if is_muon and "bf" not in case else own
        with mock.patch.object(torch.Tensor, "bfloat16", lifted):
            for index, shape in enumerate(SHAPES):
                if not is_muon or len(shape) == 2:
                    for step, array in weights_of(case, index):
                        arrays[f"{case}/{index}/{step}"] = array
    path = Path(__file__).parent / "golden" / "optimizers.npz"
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main()
