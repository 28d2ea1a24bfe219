# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reproduce the paper's tables and figures: ``tools/reproduce.py TARGET``."""

import checkout  # noqa: F401

from paddle_adagc.lab.cli.reproduce import main

if __name__ == "__main__":
    raise SystemExit(main())
