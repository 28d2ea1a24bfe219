# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pretrain a decoder: ``python tools/pretrain.py CONFIG [key=value ...]``."""

import checkout  # noqa: F401

from paddle_adagc.lab.cli.pretrain import run

if __name__ == "__main__":
    run()
