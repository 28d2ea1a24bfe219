# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether the clip works on this machine, and by what it does.

``python -m paddle_adagc.check`` prints versions, the device, the backend with
the reason for it, and how far clip steps on the device are from NumPy's. The
exit status is 1 if they are wrong. ``--report`` prints the same as the
beginning of an issue, with the versions of other packages and the GPUs.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import time

import numpy as np
import paddle

import paddle_adagc
from paddle_adagc import ClipGradByAdaGC
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.kernels.cuda import runtime

_SHAPES = ([3, 5], [40_000], [7], [1])
_ALLOWED = 1e-5
_PACKAGES = ("numpy", "paddlenlp", "paddleformers", "paddlefleet")

_ISSUE = """\
### What happens

<the last lines, or the traceback>

### How to see it

<a command or a script, as short as possible; layout and number of ranks; the
clip, as `print(clip)` shows it>

### What should happen

<...>

### `python -m paddle_adagc.check --report`

```text
{rows}
```"""

_WORDS = {
    "HostTensors": "C++ loops",
    "DeviceTensors": "CUDA kernels",
    "OperatorTensors": "Paddle's operators",
}


def backend() -> str:
    """What the clip's passes run on, with the reason if it is operators."""
    (part,) = GradientList([paddle.ones([3])])._parts
    name = _WORDS[type(part).__name__]
    device = runtime.current_device()
    if name != "Paddle's operators":
        return name
    if os.environ.get("PADDLE_ADAGC_NATIVE", "1") == "0":
        return f"{name}: PADDLE_ADAGC_NATIVE=0"
    if device is not None:
        return f"{name}: {runtime.why_not(device)}"
    if paddle.device.get_device() == "cpu":
        return f"{name}: the C++ loops need g++"
    return f"{name}: the kernels are made for NVIDIA GPUs"


def largest_error() -> float:
    """Make 6 steps with a clip and with NumPy, 2 of them in the warm-up.

    Returns:
        Largest difference of a clipped value, relative to the largest value of
        its gradient; Inf if NaN came out.
    """
    clip = ClipGradByAdaGC(t_start=2)
    weights = [paddle.create_parameter(s, "float32") for s in _SHAPES]
    gamma = np.full(len(_SHAPES), np.inf)
    worst = 0.0
    for step in range(6):
        rng = np.random.default_rng(step)
        values = [
            (1 + 20 * (step == 4)) * rng.normal(size=shape).astype("float32")
            for shape in _SHAPES
        ]
        pairs = [
            (weight, paddle.to_tensor(value))
            for weight, value in zip(weights, values, strict=True)
        ]
        clip(pairs)
        norm = np.array([np.linalg.norm(v.astype("float64")) for v in values])
        if step < 2:
            h = np.full(len(norm), min(1.0 / np.linalg.norm(norm), 1.0))
            gamma = np.minimum(gamma, h * norm)
        else:
            h = np.minimum(1.04 * gamma / norm, 1.0)
            gamma = 0.99 * gamma + 0.01 * h * norm
        for (_, found), value, factor in zip(pairs, values, h, strict=True):
            wanted = factor * value
            error = np.abs(found.numpy() - wanted).max() / np.abs(wanted).max()
            worst = max(worst, np.nan_to_num(error, nan=np.inf).item())
    return worst


def main(arguments: list[str] | None = None) -> int:
    """Run the command; gives its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m paddle_adagc.check", description=__doc__
    )
    parser.add_argument(
        "--report", action="store_true", help="print the text of an issue"
    )
    is_report = parser.parse_args(arguments).report
    begin = time.perf_counter()
    rows = {
        "paddle_adagc": paddle_adagc.__version__,
        "paddle": paddle.__version__,
        "built for CUDA": paddle.version.cuda(),
        "Python": platform.python_version(),
        "device": paddle.device.get_device(),
        "the clip uses": backend(),
    }
    error = largest_error()
    is_right = error <= _ALLOWED
    rows["clip steps"] = (
        f"{'right' if is_right else 'WRONG'}, error {error:.1e} "
        f"(allowed {_ALLOWED:.0e}), {time.perf_counter() - begin:.1f} s"
    )
    if is_report:
        rows |= _surroundings()
    text = "\n".join(f"{name:>14}  {value}" for name, value in rows.items())
    print(_ISSUE.format(rows=text) if is_report else text)
    return int(not is_right)


def _surroundings() -> dict[str, str]:
    """Name what else an issue is about: packages, system, GPUs."""
    rows = {"system": f"{platform.system()} {platform.machine()}"}
    for name in _PACKAGES:
        try:
            rows[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for i in range(paddle.device.cuda.device_count()):
        rows[f"gpu {i}"] = paddle.device.cuda.get_device_name(i)
    return rows


if __name__ == "__main__":
    sys.exit(main())
