# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fleet on CPU over gloo, by the engine of the tests (``tests/gloo_fleet``)."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = str(Path(__file__).parents[2] / "tests")


def enable() -> None:
    """Make ``paddle.distributed.fleet`` work on CPU over gloo.

    A backend for development and tests. Call it in every rank, before
    ``fleet.init`` or ``init_parallel_env``; calling it again does nothing.
    docs/parallelism.md says what it covers.
    """
    _find_engine()
    import gloo_fleet

    gloo_fleet.enable()


def free_port() -> int:
    """Choose a random port that nothing listens on."""
    _find_engine()
    from gloo_fleet import rendezvous

    return rendezvous.free_port()


def _find_engine() -> None:
    if _TESTS not in sys.path:
        sys.path.append(_TESTS)
