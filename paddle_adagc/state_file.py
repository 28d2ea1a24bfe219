# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The file of a clip's state.

It is one safetensors file: a float32 vector ``[num_tensors]`` per quantity,
such as AdaGC's ``gamma``, and as JSON in the file's metadata the tensors' keys,
the step and the clip's arguments. Nothing in it can execute code on loading.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from paddle_adagc.files import atomic_write
from paddle_adagc.state import GLOBAL, ClipState

STATE_FILE = "adagc_state.safetensors"

_FORMAT = "paddle_adagc.state.3"
_FORMAT_2 = "paddle_adagc.state.2"  # one list of keys per quantity
_CHECKSUM = "sha256"
_OLD_METADATA = {"format", "keys", "scalars", "step", "config"}


def save_state(
    state: dict[str, Any],
    directory: str | os.PathLike[str],
    file_name: str = STATE_FILE,
) -> Path:
    """Write a clip's ``state_dict()``, replacing an older one.

    The file, with its checksum, appears whole or not at all.

    Args:
        state: ``step``, ``config``, and per kept quantity a dict of key -> one
            number, such as AdaGC's ``gamma``.
        directory: Created if it does not exist.
        file_name: One for each clip, where there are several.

    Returns:
        Path of the file.
    """
    whole = ClipState.from_dict(state).to_numpy()
    vectors = {**whole.values, **whole.scalars}
    metadata = {
        "format": _FORMAT,
        "keys": json.dumps(whole.keys),
        "scalars": json.dumps([*whole.scalars]),
        "step": json.dumps(whole.step),
        "warmup_start": json.dumps(whole.warmup_start),
        "config": json.dumps(whole.config),
    }
    metadata[_CHECKSUM] = _checksum(metadata, vectors)
    return atomic_write(Path(directory) / file_name, save(vectors, metadata))


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
    return read_state(Path(directory) / file_name).to_dict()


def read_state(path: str | os.PathLike[str]) -> ClipState:
    """Read what :func:`save_state` wrote, in this format or the one before.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, or not a clip's state.
    """
    if not Path(path).exists():
        raise FileNotFoundError(
            f"{path} does not exist: was the checkpoint written by a run "
            "with one of this package's clips?"
        )
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    try:
        _check_checksum(metadata, vectors)
        return _state_of(metadata, vectors)
    except KeyError as error:
        raise ValueError(f"{path} is damaged: no {error}") from error
    except (RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _state_of(
    metadata: Mapping[str, str], vectors: Mapping[str, np.ndarray]
) -> ClipState:
    known = (_FORMAT, _FORMAT_2)
    if metadata.get("format") not in known:
        raise ValueError(
            f"its format is {metadata.get('format')!r}, not one of {known}"
        )
    keys, step, config = (
        json.loads(metadata[name]) for name in ("keys", "step", "config")
    )
    if metadata["format"] == _FORMAT_2:
        keys_by_name = keys
    else:
        scalars = json.loads(metadata["scalars"])
        keys_by_name = {
            name: [GLOBAL] if name in scalars else keys for name in vectors
        }
    for name, its_keys in keys_by_name.items():
        if len(its_keys) != len(vectors[name]):
            raise ValueError(
                f"{len(its_keys)} keys for {len(vectors[name])} values of "
                f"{name}"
            )
    kept = {
        name: dict(zip(its_keys, vectors[name], strict=True))
        for name, its_keys in keys_by_name.items()
    }
    start = json.loads(metadata.get("warmup_start", "0"))
    return ClipState.from_dict(
        {"step": step, "warmup_start": start, **kept, "config": config}
    )


def _check_checksum(
    metadata: Mapping[str, str], vectors: Mapping[str, np.ndarray]
) -> None:
    """Refuse a file that was changed; older ones have no checksum."""
    if metadata.keys() <= _OLD_METADATA:
        return
    if metadata.get(_CHECKSUM) != _checksum(metadata, vectors):
        raise ValueError("its SHA-256 differs from that in the file")


def _checksum(
    metadata: Mapping[str, str], vectors: Mapping[str, np.ndarray]
) -> str:
    """Return the SHA-256 of a file's numbers and of what stands beside them."""
    about = {k: v for k, v in metadata.items() if k != _CHECKSUM}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(vectors):
        vector = vectors[name]
        digest.update(f"{name} {vector.dtype.str} {vector.shape}".encode())
        digest.update(vector.tobytes())
    return digest.hexdigest()
