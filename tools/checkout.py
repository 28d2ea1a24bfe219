# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Import this first: it says how to install the laboratory if it is missing."""

import importlib.util
import sys
from pathlib import Path

found = importlib.util.find_spec("paddle_adagc")
paths = found.submodule_search_locations if found else None
if not any((Path(path) / "lab").is_dir() for path in paths or ()):
    extra = "formers" if importlib.util.find_spec("paddleformers") else "nlp"
    sys.exit(
        "the laboratory is not installed ('pip install .' leaves it out): "
        f"pip install -e '{Path(__file__).resolve().parents[1]}[{extra}]'"
    )
