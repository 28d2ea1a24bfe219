# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fleet on CPU over gloo: a backend for development and tests.

Paddle's CPU build runs ``paddle.distributed`` over gloo, but fleet's tensor,
pipeline, sequence, sharding and expert parallelism call operators that have
no CPU kernel and process-group methods that gloo lacks. ``enable`` fills in
what is missing; importing this package changes nothing. It is correct, not
fast, and works on one machine: never train a real model on it.
"""

import os

import paddle

from gloo_fleet import fleet, process_group, rendezvous

__all__ = ["enable"]

_PATCHES = {**rendezvous.PATCHES, **process_group.PATCHES, **fleet.PATCHES}
"""Why Paddle 3.3.1 needs it -> (module or class, attribute, replacement)."""

_enabled = False


def enable() -> None:
    """Make ``paddle.distributed.fleet`` work on CPU over gloo.

    A backend for development and tests. Call it in every rank, before
    ``fleet.init`` or ``init_parallel_env``; calling it again does nothing.
    Sets ``PADDLE_DISTRI_BACKEND`` to ``gloo`` where it is not set.

    What it covers stands in docs/parallelism.md. A collective fails where a
    rank keeps the others waiting for more than 30 s, which is gloo's timeout.
    """
    global _enabled
    if _enabled:
        return
    if any(
        getattr(paddle, f"is_compiled_with_{device}")()
        for device in ("cuda", "xpu", "rocm")
    ):
        raise RuntimeError(
            "this Paddle was built for an accelerator: gloo_fleet "
            "is a backend for development and tests on CPU builds; here use "
            "fleet as it is"
        )
    os.environ.setdefault("PADDLE_DISTRI_BACKEND", "gloo")
    for patches in _PATCHES.values():
        for owner, name, replacement in patches:
            setattr(owner, name, replacement)
    _enabled = True
