# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time clips and training steps: ``python tools/benchmark.py clip``."""

import checkout  # noqa: F401

from paddle_adagc.lab.cli.benchmark import main

if __name__ == "__main__":
    raise SystemExit(main())
