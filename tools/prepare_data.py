# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenise text for training: ``python tools/prepare_data.py``."""

import checkout  # noqa: F401

from paddle_adagc.lab.cli.prepare_data import main

if __name__ == "__main__":
    raise SystemExit(main())
