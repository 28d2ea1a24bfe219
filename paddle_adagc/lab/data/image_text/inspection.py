# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
