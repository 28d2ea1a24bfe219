# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How steady a run's norms are, and what AdaGC would clip of them.

    python tools/pretrain.py configs/proxy/late_phase.yaml
    python tools/pretrain.py configs/proxy/late_phase.yaml \
        schedule.learning_rate=3e-4 train.batch_size=512 train.max_steps=9000 \
        --fork outputs/late_phase_512
    python tools/late_phase.py outputs/late_phase_512 --start 3000

A run under GlobalGC is accepted as a late phase, where AdaGC's price in calm
steps can be judged, if its median tensor's norm varies by at most 10% and has
grown by at most 1.3 since the lowest of the first 100 steps, and if AdaGC
(Algorithm 1 on the recorded norms) would clip at most half of the tensors, with
a median h of at least 0.97. The bounds were set before any such run.
"""

import numpy as np
from command import make_parser
from numpy.lib.stride_tricks import sliding_window_view

from paddle_adagc.lab.markdown import markdown_table
from paddle_adagc.lab.record.files import RunRecord

WARM_UP, WINDOW = 100, 51
BOUNDS = {
    "variation": (0.10, "at most"),
    "growth": (1.3, "at most"),
    "clipped": (0.5, "at most"),
    "median h": (0.97, "at least"),
}


def measure(norm: np.ndarray, clipped: np.ndarray) -> dict[str, float]:
    """Return what :data:`BOUNDS` names, of norms ``[num_steps, num_tensors]``.

    ``clipped`` has the norms after the run's clip, GlobalGC. Variation:
    standard deviation of the log norm around its running median of 51 steps,
    after the warm-up. Clipped, h: the second half of the steps.
    """
    used = (norm > 0).all(axis=0)
    norm = norm[:, used].astype(np.float64)
    lowest = clipped[:WARM_UP, used].min(axis=0).astype(np.float64)
    half = WINDOW // 2
    log = np.log(norm[WARM_UP:])
    median = np.median(sliding_window_view(log, WINDOW, axis=0), axis=-1)
    h, gamma = np.ones_like(norm), lowest
    for step in range(WARM_UP, len(norm)):
        h[step] = np.minimum(1.04 * gamma / norm[step], 1)
        gamma = 0.99 * gamma + 0.01 * h[step] * norm[step]
    late = h[len(h) // 2 :]
    return {
        "variation": float(np.median((log[half:-half] - median).std(axis=0))),
        "growth": float(np.median(np.exp(median[-1]) / lowest)),
        "clipped": float((late < 1).mean()),
        "median h": float(np.median(late)),
    }


def main() -> int:
    """Print the table; 1 if the run is not accepted."""
    parser = make_parser("late_phase", __doc__)
    parser.add_argument("run", help="run directory that recorded tensors")
    parser.add_argument("--start", type=int, default=0, help="first step")
    arguments = parser.parse_args()
    tensors = RunRecord.load(arguments.run).tensors
    norm, clipped = (
        tensors[name][arguments.start :] for name in ("norm", "clipped_norm")
    )
    if len(norm) < 2 * WARM_UP + WINDOW:
        parser.error(f"{len(norm)} steps from --start on: give at least 251")
    found = measure(norm, clipped)
    rows, accepted = [], True
    for name, (bound, word) in BOUNDS.items():
        value = found[name]
        holds = value <= bound if word == "at most" else value >= bound
        accepted &= holds
        rows.append([name, f"{value:.3g}", f"{word} {bound}", str(holds)])
    print(markdown_table(["median tensor", "here", "bound", "holds"], rows))
    print("accepted" if accepted else "not accepted")
    return not accepted


if __name__ == "__main__":
    raise SystemExit(main())
