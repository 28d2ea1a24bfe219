# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plan a run's memory and communication: ``tools/plan.py CONFIG --gpus N``."""

import checkout  # noqa: F401

from paddle_adagc.lab.cli.plan import main

if __name__ == "__main__":
    raise SystemExit(main())
