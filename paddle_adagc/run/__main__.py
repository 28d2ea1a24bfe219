# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``python -m paddle_adagc.run``."""

import sys

from paddle_adagc.run import main

sys.exit(main())
