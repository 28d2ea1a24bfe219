# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Score a trained model: ``python tools/evaluate.py MODEL``."""

import checkout  # noqa: F401

from paddle_adagc.lab.cli.evaluate import main

if __name__ == "__main__":
    raise SystemExit(main())
