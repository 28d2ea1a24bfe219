# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Python runs this at its start: ``adagc-run`` puts the folder on its path."""

import sys

try:
    from paddle_adagc.integrations.run.bootstrap import install
except ImportError as error:
    print(
        f"adagc-run: {sys.executable} does not clip: {error}", file=sys.stderr
    )
else:
    install()
