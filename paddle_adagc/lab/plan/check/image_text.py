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
"""What a check says about CLIP and its data."""

from __future__ import annotations

import glob
import importlib.util
import re
from pathlib import Path

from paddle_adagc.lab.data.config import DataConfig
from paddle_adagc.lab.models.vision_text.config import CLIPConfig
from paddle_adagc.lab.models.vision_text.sizes import (
    num_parameters,
    parameter_shapes,
)
from paddle_adagc.lab.plan.check.report import CheckReport
from paddle_adagc.lab.train.image_text import ImageTextTask


def add_model_and_data(report: CheckReport, task: ImageTextTask) -> None:
    """Add CLIP's size and data to a report, and what is missing here."""
    report.add("Model", _model_lines(task.model_config))
    data = task.config.data
    if data.kind == "webdataset":
        report.add("Data", [f"webdataset, {data.shards}"])
        missing = _missing_data(data)
        report.missing += missing
        if missing:
            return
    report.attempt(lambda: task.build_datasets(task.config.train.batch_size))


def _model_lines(model: CLIPConfig) -> list[str]:
    return [
        f"{num_parameters(model):,} parameters in "
        f"{len(parameter_shapes(model)):,} tensors, whole on every rank",
        f"images of {model.image_size} pixels in {model.num_patches} patches: "
        f"{model.vision_layers} layers, width {model.vision_width}, "
        f"{model.vision_heads} heads; patch dropout {model.patch_dropout}",
        f"captions of {model.context_length} tokens of "
        f"{model.vocab_size:,}: {model.text_layers} layers, width "
        f"{model.text_width}, {model.text_heads} heads",
    ]


def _missing_data(data: DataConfig) -> list[str]:
    missing = []
    if importlib.util.find_spec("webdataset") is None:
        missing.append("webdataset: pip install '.[image-text]'")
    if not _may_have_shards(str(data.shards)):
        missing.append(f"data: there are no shards {data.shards}")
    if not Path(str(data.tokenizer)).is_file():
        missing.append(f"data: there is no tokenizer {data.tokenizer}")
    return missing


def _may_have_shards(pattern: str) -> bool:
    """Whether there are files of that name, with anything in its braces."""
    return bool(glob.glob(re.sub(r"\{[^{}]*\}", "*", pattern)))
