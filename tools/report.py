# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the HTML report of runs: ``tools/report.py RUN [RUN ...]``."""

import checkout  # noqa: F401

from paddle_adagc.lab.cli.report import main

if __name__ == "__main__":
    raise SystemExit(main())
