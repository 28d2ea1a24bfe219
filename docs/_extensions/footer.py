# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The footer of each page: the version, and a link to the source."""

from pathlib import Path

import tomllib

import paddle_adagc


def on_config(config):
    """Set the footer (a hook of MkDocs)."""
    project = Path(config.config_file_path).with_name("pyproject.toml")
    urls = tomllib.loads(project.read_text("utf-8"))["project"]["urls"]
    source = f'<a href="{urls["Source"]}">Source</a>'
    config.copyright = f"paddle_adagc {paddle_adagc.__version__} · {source}"
