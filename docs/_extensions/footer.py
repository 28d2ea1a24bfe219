# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The footer of each page: the version, and a link to the paper."""

import paddle_adagc


def on_config(config):
    """Set the footer (a hook of MkDocs)."""
    paper = '<a href="https://arxiv.org/abs/2502.11034">Paper</a>'
    config.copyright = f"paddle_adagc {paddle_adagc.__version__} · {paper}"
