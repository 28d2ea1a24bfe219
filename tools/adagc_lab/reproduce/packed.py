# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses of all steps of a run in 16 bits each, some 6 KB a run, as JSON."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from adagc_lab.committed import rounded

MAX_STEPS = 10_000_000
"""Longest series that is read."""

LAST_CODE = 65_533
_INFINITE, _NAN = 65_534, 65_535
_FLOOR = 1e-12
"""Smaller losses are stored as this."""

ENCODING = "log16-delta-zlib-base64"


def encode_losses(losses: np.ndarray) -> dict[str, Any]:
    """Pack a run's losses, 16 bits a step, compressed, as JSON values.

    Losses are rounded on a logarithmic grid between the smallest and the
    largest finite one: codes 0 to 65,533; +Inf is 65,534 and NaN (or -Inf)
    65,535. The relative error is at most half a grid step,
    ``log(largest / smallest) / (2 * 65,533)``: 4e-5 if losses span a factor of
    100; the rounded ends of the grid add 1e-8 at most. The codes' differences,
    high bytes before low bytes, go through zlib and base64. A negative loss is
    a ValueError.
    """
    is_finite = np.isfinite(losses)
    finite = losses[is_finite]
    if finite.size and finite.min() < 0:
        raise ValueError(
            f"a loss of {finite.min()} is negative: only losses >= 0 are stored"
        )
    logs = np.log(np.maximum(finite, _FLOOR))
    low, high = (
        (rounded(logs.min()), rounded(logs.max())) if finite.size else (0, 0)
    )
    codes = np.full(losses.shape, _NAN, np.uint16)
    codes[losses == np.inf] = _INFINITE
    scale = LAST_CODE / (high - low) if high > low else 0.0
    nearest = np.rint((logs - low) * scale).clip(0, LAST_CODE)
    codes[is_finite] = nearest.astype(np.uint16)
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
    """Unpack to ``[num_steps]`` float64; a ValueError if it is damaged."""
    if packed.get("encoding") != ENCODING:
        raise ValueError(
            f"encoding {packed.get('encoding')!r} is unknown: expected "
            f"{ENCODING!r}"
        )
    try:
        count = packed["num_steps"]
        low, high = float(packed["low"]), float(packed["high"])
        if type(count) is not int or not 0 <= count <= MAX_STEPS:
            raise ValueError(f"num_steps is {count!r:.40}")
        content = base64.b64decode(packed["data"], validate=True)
        data = zlib.decompressobj().decompress(content, 2 * count + 1)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"a loss series is damaged: {error!r}") from error
    if len(data) != 2 * count:
        more = " or more" * (len(data) > 2 * count)
        raise ValueError(
            f"a loss series has {len(data)} bytes{more}, expected {2 * count}"
        )
    planes = np.frombuffer(data, np.uint8).reshape(2, count)[::-1]
    deltas = np.ascontiguousarray(planes.T).view("<u2")[:, 0]
    codes = np.cumsum(deltas, dtype=np.uint16)
    losses = np.exp(low + codes * ((high - low) / LAST_CODE))
    losses[codes == _INFINITE] = np.inf
    losses[codes == _NAN] = np.nan
    return losses
