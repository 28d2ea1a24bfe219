# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kill, cut off and damage runs: ``tools/soak.py``."""

import sys

from paddle_adagc.lab.cli.soak import main

if __name__ == "__main__":
    sys.exit(main())
