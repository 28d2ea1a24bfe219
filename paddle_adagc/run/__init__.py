# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``adagc-run``: any training command, unchanged, with AdaGC in its Trainer.

:mod:`.command` reads the options, sets the environment and becomes the
command. Each of its Pythons runs ``site/sitecustomize.py``, which waits for
Paddle and the Trainers; :mod:`.process` then clips, and says what is in force.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``adagc-run``; see :func:`.command.main`."""
    from paddle_adagc.run import command

    return command.main(arguments)
