# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find which images, captions and packages this machine lacks."""

from __future__ import annotations

import glob
import importlib.util
import re
from pathlib import Path

from paddle_adagc.lab.data.config import DataConfig
from paddle_adagc.lab.data.inspection import DataFindings


def inspect_pairs(config: DataConfig) -> DataFindings:
    """Look for tar shards, their tokenizer and the package that reads them."""
    if config.kind != "webdataset":
        return DataFindings([], [])
    missing = []
    if importlib.util.find_spec("webdataset") is None:
        missing.append("webdataset: pip install '.[image-text]'")
    if not _may_have_shards(str(config.shards)):
        missing.append(f"data: there are no shards {config.shards}")
    if not Path(str(config.tokenizer)).is_file():
        missing.append(f"data: there is no tokenizer {config.tokenizer}")
    return DataFindings([f"webdataset, {config.shards}"], missing)


def _may_have_shards(pattern: str) -> bool:
    """Tell whether files match a pattern, with anything in its braces."""
    return bool(glob.glob(re.sub(r"\{[^{}]*\}", "*", pattern)))
