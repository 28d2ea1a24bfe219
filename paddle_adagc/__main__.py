# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether the clip works on this machine, and by what it does.

``python -m paddle_adagc`` prints versions, devices, the backend with the
reason for it, and how far clip steps on the device are from NumPy's: what an
issue has to say. The exit status is 1 if the steps are wrong.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import sys
import time
import warnings
from argparse import ArgumentParser

import numpy as np

import paddle_adagc

# The functions import Paddle, so that --help does not.

_SHAPES = ([3, 5], [40_000], [7], [1])
_ALLOWED = 1e-5
_PACKAGES = ("numpy", "paddlenlp", "paddleformers", "paddlefleet")
_WORDS = {"HostTensors": "C++ loops", "DeviceTensors": "CUDA kernels"}


def backend() -> str:
    """What the clip's passes run on, with the reason if it is operators."""
    import paddle

    from paddle_adagc import kernels
    from paddle_adagc.clips.gradients import GradientList

    (part,) = GradientList([paddle.ones([3])])._parts
    name = type(part).__name__
    reason = kernels.why_not() or "the kernels are made for NVIDIA GPUs"
    return _WORDS.get(name, f"Paddle's operators: {reason}")


def largest_error() -> float:
    """Make 6 steps with a clip and with NumPy, 2 of them in the warm-up.

    Returns the largest difference of a clipped value, relative to the largest
    value of its gradient; Inf if NaN came out.
    """
    import paddle

    clip = paddle_adagc.ClipGradByAdaGC(t_start=2)
    weights = [paddle.create_parameter(s, "float32") for s in _SHAPES]
    gamma, worst = np.full(len(_SHAPES), np.inf), 0.0
    rng = np.random.default_rng(0)
    for step in range(6):
        size = 21 if step == 4 else 1
        values = [size * rng.normal(size=s).astype("float32") for s in _SHAPES]
        gradients = [*map(paddle.to_tensor, values)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of norms that are made up
            clip([*zip(weights, gradients, strict=True)])
        norm = np.array([np.linalg.norm(v.astype("float64")) for v in values])
        if step < 2:
            h = np.full(len(norm), min(1.0 / np.linalg.norm(norm), 1.0))
            gamma = np.minimum(gamma, h * norm)
        else:
            h = np.minimum(1.04 * gamma / norm, 1.0)
            gamma = 0.99 * gamma + 0.01 * h * norm
        for found, value, factor in zip(gradients, values, h, strict=True):
            wanted = factor * value
            error = np.abs(found.numpy() - wanted).max() / np.abs(wanted).max()
            worst = max(worst, np.nan_to_num(error, nan=np.inf).item())
    return worst


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = ArgumentParser("python -m paddle_adagc", description=__doc__)
    parser.parse_args(arguments)
    try:
        import paddle
    except ModuleNotFoundError as missing:
        parser.error(f"{missing}: pip install 'paddlepaddle>=3.1,<3.4'")
    begin = time.perf_counter()
    rows = {
        "paddle_adagc": paddle_adagc.__version__,
        "paddle": paddle.__version__,
        "built for CUDA": paddle.version.cuda(),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": paddle.device.get_device(),
        "the clip uses": backend(),
    }
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            rows[name] = importlib.metadata.version(name)
    for i in range(paddle.device.cuda.device_count()):
        rows[f"gpu {i}"] = paddle.device.cuda.get_device_name(i)
    for name, value in rows.items():
        print(f"{name:>14}  {value}", flush=True)
    error = largest_error()
    is_right = error <= _ALLOWED
    print(
        f"    clip steps  {'right' if is_right else 'WRONG'}, error "
        f"{error:.1e} (allowed {_ALLOWED:.0e}), "
        f"{time.perf_counter() - begin:.1f} s"
    )
    if not is_right:
        print(
            "\nThe clip computes wrong numbers on this machine. Please report "
            "this output.\nTo try Paddle's operators in place of the compiled "
            "kernels:\n    PADDLE_ADAGC_NATIVE=0 python -m paddle_adagc"
        )
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
