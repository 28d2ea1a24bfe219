# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models to Hugging Face's format and back: ``python tools/convert.py``."""

import checkout  # noqa: F401

from paddle_adagc.lab.cli.convert import main

if __name__ == "__main__":
    raise SystemExit(main())
