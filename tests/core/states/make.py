# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make the state files of an earlier revision, by its own code.

    git archive REVISION | tar x -C OLD
    PYTHONPATH=OLD python tests/core/states/make.py tests/core/states/REVISION

86c04d60 wrote format 2, 7c571a28 format 3 without a checksum, 4338e0ca format 3
with votes and a checksum.
"""

import importlib
import sys

import numpy as np
import paddle

MODULES = (
    "paddle_adagc",
    "paddle_adagc.state_file",
    *(f"paddle_adagc.clips.{name}" for name in ("agc", "zclip")),
    "paddle_adagc.clips.global_adagc",
)


def find(name):
    for module in MODULES:
        try:
            return getattr(importlib.import_module(module), name)
        except (AttributeError, ImportError):
            continue
    raise SystemExit(f"this revision has no {name}")


CASES = {  # class, arguments, steps
    "adagc": ("AdaGC", {"t_start": 3}, 5),
    "adagc-warmup": ("AdaGC", {"t_start": 9}, 4),
    "adagc-unbound": ("AdaGC", {"t_start": 3}, 5),
    "global_adagc": ("GlobalAdaGC", {"t_start": 3}, 5),
    "zclip": ("ZClip", {}, 5),
    "agc": ("AGC", {}, 2),
}


def main(directory):
    for name, (kind, arguments, num_steps) in CASES.items():
        with paddle.utils.unique_name.guard():
            model = paddle.nn.Sequential(
                *(paddle.nn.Linear(4, 6), paddle.nn.Tanh()),
                paddle.nn.Linear(6, 2),
            )
        clip = find(f"ClipGradBy{kind}")(**arguments)
        if name != "adagc-unbound":
            clip.bind(model)
        rng = np.random.default_rng(0)
        for _ in range(num_steps):
            clip(
                [
                    (p, paddle.to_tensor(rng.normal(size=p.shape), "float32"))
                    for p in model.parameters()
                ]
            )
        find("save_state")(clip.state_dict(), directory, f"{name}.safetensors")


if __name__ == "__main__":
    main(sys.argv[1])
