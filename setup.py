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
"""Metadata and dependencies of paddle_adagc."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (ROOT / "paddle_adagc/__init__.py").read_text()
).group(1)

PADDLE = "3.3.1"

# PaddleNLP's Trainer, memory-mapped datasets and our decoder.
NLP = [
    "paddlenlp==3.0.0b4",
    # aistudio-sdk 0.3 has no hub.download, which PaddleNLP imports.
    "aistudio-sdk<0.3",
    # Newer ones need NumPy 2, PaddleNLP needs NumPy 1 ...
    "pyarrow<21",
    # ... and datasets 4 and newer need those.
    "datasets<4",
    # The newest major version that this stack was run with.
    "protobuf<7",
    "omegaconf>=2.3",
    "pyyaml>=6",
    "dacite>=1.8",
]

# PaddleFormers conflicts with PaddleNLP's pins: an environment of its own.
ERNIE = [
    "paddleformers==1.2.0",
    # Its ernie_pretrain does not start without it, and it does not say so.
    "tensorboardX>=2.6",
    # As above.
    "pyarrow<21",
    "datasets<4",
    "omegaconf>=2.3",
    "pyyaml>=6",
    "dacite>=1.8",
]

# Tasks of tools/evaluate.py, beside [nlp]; it does without PyTorch.
EVAL = ["lm_eval==0.4.13"]

# Tar shards of images and captions.
CLIP = ["webdataset>=1.0"]

REPORT = ["matplotlib>=3.8", "jinja2>=3.1"]
TEST = ["pytest>=8", "hypothesis>=6", "ml-dtypes>=0.4"]

setup(
    name="paddle_adagc",
    version=VERSION,
    description="AdaGC: adaptive per-tensor gradient clipping for Paddle",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["paddle_adagc", "paddle_adagc.*"]),
    package_data={"paddle_adagc.kernels": ["*.cpp"]},
    install_requires=["numpy"],
    extras_require={
        # One of the two; both provide the module ``paddle``.
        "cpu": [f"paddlepaddle=={PADDLE}"],
        "gpu": [f"paddlepaddle-gpu=={PADDLE}"],
        "nlp": NLP,
        "ernie": ERNIE,
        "eval": EVAL,
        "clip": CLIP,
        "report": REPORT,
        "test": TEST,
        "dev": [*TEST, "ruff==0.17.5", "mypy==2.4.1"],
    },
)
