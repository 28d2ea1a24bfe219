# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``adagc-run``: any training command, unchanged, with a clip of this package.

Read :mod:`.command` first. :mod:`.settings` reads the command's files,
:mod:`.isolation` refuses what keeps it out, :mod:`.supervise` runs the command,
:mod:`.summary` ends it. In its processes :mod:`.bootstrap` starts what
:mod:`.arguments`, :mod:`.inject` and :mod:`.steps` change there; a
:class:`.process.Process` checks the clip and :mod:`.reports`.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``adagc-run``; see :func:`.command.main`."""
    from paddle_adagc.integrations.run import command

    return command.main(arguments)
