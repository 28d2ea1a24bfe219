# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The file of a clip's state: one safetensors file, from whatever layout.

float32 vectors ``[num_tensors]``, ``gamma`` and in the warm-up ``support``, and
as JSON in the metadata the tensors' keys, the step and the clip's arguments.
Nothing in it can execute code on loading.
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
from paddle_adagc.state import ClipState

STATE_FILE = "adagc_state.safetensors"

_FORMAT = "paddle_adagc.state.4"
_CHECKSUM = "sha256"


def save_state(
    state: dict[str, Any],
    directory: str | os.PathLike[str],
    file_name: str = STATE_FILE,
) -> Path:
    """Write a clip's ``state_dict()`` to a file, whole or not at all.

    Args:
        state: ``step``, ``config``, and ``gamma``, a dict of key -> one
            number; in the warm-up ``support``, too.
        directory: Created if it does not exist. Not that of
            ``dist.save_state_dict``, whose loader refuses other files.
        file_name: One for each clip, where there are several.

    Returns:
        Path of the file.

    Raises:
        OSError: ``directory`` is a file, or takes no files.
        TypeError: ``state`` is not a dict.
        ValueError: It is not a clip's state.

    Example:
        >>> from paddle_adagc import ClipGradByAdaGC, load_state, save_state
        >>> clip = ClipGradByAdaGC()
        >>> save_state(clip.state_dict(), "checkpoint-1000").name
        'adagc_state.safetensors'
        >>> clip.set_state_dict(load_state("checkpoint-1000"))
    """
    whole = ClipState.from_dict(state)
    about = {"keys": whole.keys, **whole.about()}
    vectors = whole.vectors()
    metadata = {"format": _FORMAT}
    metadata |= {name: json.dumps(value) for name, value in about.items()}
    metadata[_CHECKSUM] = _checksum(metadata, vectors)
    return atomic_write(Path(directory) / file_name, save(vectors, metadata))


def load_state(
    directory: str | os.PathLike[str], file_name: str = STATE_FILE
) -> dict[str, Any]:
    """Read what :func:`save_state` wrote under the same name.

    Args:
        directory: Folder with the file.
        file_name: Its name.

    Returns:
        A dict for a clip's ``set_state_dict()``.

    Raises:
        FileNotFoundError: There is no state in ``directory``.
        ValueError: The file is damaged or not a clip's state.

    Example:
        >>> from paddle_adagc import ClipGradByAdaGC, load_state, save_state
        >>> path = save_state(ClipGradByAdaGC().state_dict(), "checkpoint-1000")
        >>> load_state("checkpoint-1000")["step"]
        0
    """
    path = Path(directory) / file_name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is no file: was the checkpoint written by a run with one "
            "of this package's clips?"
        )
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _state_of(metadata, vectors).to_dict()
    except KeyError as error:
        raise ValueError(f"{path} is damaged: no {error}") from error
    except (RecursionError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _state_of(
    metadata: Mapping[str, str], vectors: Mapping[str, np.ndarray]
) -> ClipState:
    texts = {**metadata}
    checksum, form = texts.pop(_CHECKSUM, None), texts.get("format")
    if checksum != _checksum(texts, vectors):
        raise ValueError("its SHA-256 differs from that in the file")
    if texts.pop("format") != _FORMAT:
        raise ValueError(f"its format is {form!r}, not {_FORMAT!r}")
    about = {name: json.loads(text) for name, text in texts.items()}
    keys = about.pop("keys")
    for name, vector in vectors.items():
        if len(keys) != len(vector):
            raise ValueError(
                f"{len(keys)} keys for {len(vector)} values of {name}"
            )
        about[name] = dict(zip(keys, vector, strict=True))
    return ClipState.from_dict(about)


def _checksum(
    metadata: dict[str, str], vectors: Mapping[str, np.ndarray]
) -> str:
    """SHA-256 of a file's numbers and of what stands beside them."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(vectors):
        vector = vectors[name]
        digest.update(f"{name} {vector.dtype.str} {vector.shape}".encode())
        digest.update(vector.tobytes())
    return digest.hexdigest()
