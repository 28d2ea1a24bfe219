# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A run's losses in 16 bits a step, compressed, as text.

Losses are rounded on a logarithmic grid between the smallest and the largest
finite one: codes 0 to 65,533; +Inf is 65,534 and NaN (or -Inf) 65,535. A loss
comes back with a relative error of at most half a grid step,
``log(largest / smallest) / (2 * 65,533)``: 4e-5 if losses span a factor of 100.
The codes' differences, high bytes before low bytes, go through zlib and base64.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

LAST_CODE = 65_533
_INFINITE = 65_534
_NAN = 65_535
_FLOOR = 1e-12
"""Smaller losses are stored as this."""

ENCODING = "log16-delta-zlib-base64"


def encode_losses(losses: np.ndarray) -> dict[str, Any]:
    """Pack a series of losses into JSON values.

    Args:
        losses: ``[num_steps]`` float64, finite ones not negative.

    Raises:
        ValueError: A finite loss is negative.
    """
    finite = losses[np.isfinite(losses)]
    if finite.size and finite.min() < 0:
        raise ValueError(
            f"a loss of {finite.min()} is negative: only losses >= 0 are stored"
        )
    logs = np.log(np.maximum(finite, _FLOOR))
    low, high = (
        (float(logs.min()), float(logs.max())) if finite.size else (0, 0)
    )
    codes = np.full(losses.shape, _NAN, np.uint16)
    codes[losses == np.inf] = _INFINITE
    scale = LAST_CODE / (high - low) if high > low else 0.0
    codes[np.isfinite(losses)] = np.rint((logs - low) * scale).astype(np.uint16)
    deltas = np.diff(codes, prepend=np.uint16(0)).astype("<u2")
    planes = deltas.view(np.uint8).reshape(-1, 2).T[::-1]
    packed = zlib.compress(planes.tobytes(), 9)
    return {
        "encoding": ENCODING,
        "num_steps": len(losses),
        "low": low,
        "high": high,
        "data": base64.b64encode(packed).decode(),
    }


def decode_losses(packed: dict[str, Any]) -> np.ndarray:
    """Unpack what :func:`encode_losses` made: ``[num_steps]`` float64.

    Raises:
        ValueError: Another encoding, or damaged data.
    """
    if packed.get("encoding") != ENCODING:
        raise ValueError(
            f"encoding {packed.get('encoding')!r} is unknown: expected "
            f"{ENCODING!r}"
        )
    count, low, high = packed["num_steps"], packed["low"], packed["high"]
    try:
        data = zlib.decompress(base64.b64decode(packed["data"], validate=True))
    except (ValueError, zlib.error) as error:
        raise ValueError(f"a loss series is damaged: {error}") from error
    if len(data) != 2 * count:
        raise ValueError(
            f"a loss series has {len(data)} bytes, expected {2 * count}"
        )
    planes = np.frombuffer(data, np.uint8).reshape(2, count)[::-1]
    deltas = np.ascontiguousarray(planes.T).view("<u2")[:, 0]
    codes = np.cumsum(deltas, dtype=np.uint16)
    losses = np.exp(low + codes * ((high - low) / LAST_CODE))
    losses[codes == _INFINITE] = np.inf
    losses[codes == _NAN] = np.nan
    return losses
