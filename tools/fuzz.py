# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read corrupt input: ``tools/fuzz.py``."""

import sys

from paddle_adagc.lab.cli.fuzz import main

if __name__ == "__main__":
    sys.exit(main())
