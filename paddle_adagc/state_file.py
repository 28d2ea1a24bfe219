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
"""A clip's state to and from disk.

One safetensors file: for each quantity that the clip keeps, such as AdaGC's
``gamma``, a float32 vector with one number per key, and as JSON in the file's
metadata the keys, the step and the clip's arguments. Nothing in it can execute
code on loading, and one logical tensor is one number whatever layout wrote
it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paddle_adagc.state import as_array

STATE_FILE = "adagc_state.safetensors"
_FORMAT = "paddle_adagc.state.2"


def save_state(
    state: dict[str, Any],
    directory: str | os.PathLike[str],
    file_name: str = STATE_FILE,
) -> Path:
    """Write a clip's ``state_dict()``, replacing an older one.

    The file appears whole or not at all.

    Args:
        state: ``step``, ``config``, and per kept quantity a dict of key -> one
            number, such as AdaGC's ``gamma``.
        directory: Created if it does not exist.
        file_name: One for each clip, where there are several.

    Returns:
        Path of the file.
    """
    target = Path(directory) / file_name
    target.parent.mkdir(parents=True, exist_ok=True)
    kept = {
        name: values
        for name, values in state.items()
        if name not in ("step", "config")
    }
    vectors = {
        name: np.array([float(as_array(v)) for v in values.values()], "f4")
        for name, values in kept.items()
    }
    metadata = {
        "format": _FORMAT,
        "keys": json.dumps({name: [*values] for name, values in kept.items()}),
        "step": json.dumps(state["step"]),
        "config": json.dumps(state["config"]),
    }
    temporary = target.with_name(f".{file_name}.{os.getpid()}")
    try:
        save_file(vectors, temporary, metadata)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def load_state(
    directory: str | os.PathLike[str], file_name: str = STATE_FILE
) -> dict[str, Any]:
    """Read what :func:`save_state` wrote under the same name.

    Returns:
        A dict for a clip's ``set_state_dict()``.

    Raises:
        FileNotFoundError: There is no state in ``directory``.
        ValueError: The file is damaged or not a clip's state.
    """
    path = Path(directory) / file_name
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: was the checkpoint written by a run "
            "with one of this package's clips?"
        )
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ValueError(
                    f"{path} has format {metadata.get('format')!r}, not "
                    f"{_FORMAT!r}"
                )
            keys = json.loads(metadata["keys"])
            vectors = {name: file.get_tensor(name) for name in keys}
            step, config = (json.loads(metadata[k]) for k in ("step", "config"))
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    for name, vector in vectors.items():
        if len(keys[name]) != len(vector):
            raise ValueError(
                f"{path} is damaged: {len(keys[name])} keys for "
                f"{len(vector)} values of {name}"
            )
    values = {
        name: dict(zip(keys[name], vector, strict=True))
        for name, vector in vectors.items()
    }
    return {"step": step, **values, "config": config}
