# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Look at a step of a run: ``tools/inspect_run.py RUN --step N``."""

import checkout  # noqa: F401

from paddle_adagc.lab.cli.inspect_run import main

if __name__ == "__main__":
    raise SystemExit(main())
