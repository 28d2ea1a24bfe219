# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Readable, grouped labels for the names of a model's tensors."""

from __future__ import annotations

import dataclasses
import re

_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.(.+)$")
_KINDS = (
    ("experts", ("expert",)),
    ("attention", ("attn", "attention")),
    ("norms", ("norm",)),
    ("feed-forward", ("mlp", "ffn", "feed_forward", "gate", "router")),
)
_ORDER = ("attention", "feed-forward", "experts", "norms", "other")


@dataclasses.dataclass(frozen=True)
class TensorGroup:
    """Tensors of one layer, or those before or after the layers."""

    label: str
    """``"layer 0"``, ``"embedding"`` or ``"output"``."""

    indices: list[int]
    """Positions of the tensors in the list of names, by kind."""

    labels: list[str]
    """One short label for each of ``indices``."""


def tensor_label(name: str) -> str:
    """Shorten a tensor's name: ``"layer 0 · attention.q_proj"``."""
    match = _LAYER.search(name)
    if match is None:
        return _short(name)
    return f"layer {match[1]} · {_short(match[2])}"


def group_tensors(names: list[str]) -> list[TensorGroup]:
    """Group tensors by layer and sort each layer's tensors by kind.

    Args:
        names: Structured names such as ``layers.0.attention.q_proj.weight``.

    Returns:
        The tensors before the layers, every layer, the tensors after them.
    """
    layers: dict[int, list[int]] = {}
    outside: list[int] = []
    for index, name in enumerate(names):
        match = _LAYER.search(name)
        if match is None:
            outside.append(index)
        else:
            layers.setdefault(int(match[1]), []).append(index)
    before = [i for i in outside if "embed" in names[i]]
    after = [i for i in outside if i not in before]
    groups = [("embedding", before)]
    groups += [
        (f"layer {n}", _by_kind(names, layers[n])) for n in sorted(layers)
    ]
    groups += [("output" if layers else "tensors", after)]
    return [
        TensorGroup(label, indices, [_inside(names[i]) for i in indices])
        for label, indices in groups
        if indices
    ]


def _inside(name: str) -> str:
    match = _LAYER.search(name)
    return _short(match[2] if match else name)


def _short(name: str) -> str:
    name = re.sub(r"^(model|llama|decoder)\.", "", name)
    name = name.removesuffix(".weight")
    name = re.sub(r"^mlp\.experts\.(\d+)\.", r"expert \1 · ", name)
    return name.replace("self_attn", "attention").replace("_layernorm", "_norm")


def _kind(name: str) -> str:
    for kind, marks in _KINDS:
        if any(mark in name for mark in marks):
            return kind
    return "other"


def _by_kind(names: list[str], indices: list[int]) -> list[int]:
    """Sort stably by kind: attention, feed-forward, experts, norms, other."""

    def order(index: int) -> int:
        match = _LAYER.search(names[index])
        assert match is not None
        inside = match[2]
        # `attention_norm` is a norm, not a part of the attention.
        last = inside.removesuffix(".weight").rsplit(".", 1)[-1]
        kind = "norms" if "norm" in last else _kind(inside)
        return _ORDER.index(kind)

    return sorted(indices, key=order)
