# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The state of a clip: one shape from the device to the disk."""

from __future__ import annotations

import dataclasses
import math
import numbers
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.rule import FULL_SUPPORT

_COUNTS = ("step", "warmup_start")
_DICTS = ("config", "origin")  # that hold no numbers of tensors
_VECTORS = ("gamma", "support")
_ABOUT = {"warmup_start": 0, "origin": {}}


class OtherClipError(ValueError):
    """A state is that of another class of clips."""


@dataclasses.dataclass(frozen=True)
class ClipState:
    """State of a clip, of the whole model or of one rank's tensors."""

    step: int  # optimizer steps made
    config: dict[str, Any]  # the clip's arguments
    keys: tuple[str, ...]  # names of the tensors, [num_tensors]
    gamma: Any
    """float32 ``[num_tensors]``, Paddle or NumPy; inf: no norm so far."""

    support: Any = None
    """Warm-up steps that agree with gamma, of the same form; None: not
    counted."""

    warmup_start: int = 0  # steps made when the warm-up began
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of a Trainer's checkpoint: ``run``, its name, and ``step`` of the
    Trainer."""

    def vectors(self) -> dict[str, Any]:
        """Return the vectors that there are, by name."""
        found = {name: getattr(self, name) for name in _VECTORS}
        return {name: v for name, v in found.items() if v is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return the form of ``state_dict()``."""
        by_key = {
            name: dict(zip(self.keys, _unbind(vector), strict=True))
            for name, vector in self.vectors().items()
        }
        return {**self.about(), **by_key}

    def about(self) -> dict[str, Any]:
        """Return what ``state_dict()`` says beside the vectors."""
        about: dict[str, Any] = {"step": self.step, "config": self.config}
        if self.warmup_start:
            about["warmup_start"] = self.warmup_start
        if self.origin:
            about["origin"] = {**self.origin}
        return about

    @classmethod
    def from_dict(cls, state: Any) -> ClipState:
        """Read the form of ``state_dict()``; numbers of any kind."""
        _check_form(state)
        rest = {**_ABOUT, **state}
        config, origin = ({**rest.pop(name)} for name in _DICTS)
        step, start = (_count(name, rest.pop(name)) for name in _COUNTS)
        if start > step:
            raise ValueError(
                f"the state's warmup_start={start} is after its step={step}"
            )
        if other := rest.keys() - {*_VECTORS}:
            raise OtherClipError(
                f"the state holds {sorted(other)}, which AdaGC does not keep: "
                "it is another clip's"
            )
        if "gamma" not in rest:
            raise ValueError(f"the state lacks 'gamma': it has {[*state]}")
        keys = tuple(rest["gamma"])
        vectors: dict[str, np.ndarray] = {}
        for name, by_key in rest.items():
            if other := by_key.keys() ^ {*keys}:
                raise ValueError(
                    f"the state's {name} is not about the same tensors as its "
                    f"other numbers: one of them lacks {sorted(other)[:5]}"
                )
            numbers_of = [_number(name, key, by_key[key]) for key in keys]
            vectors[name] = np.array(numbers_of, np.float32)
        gamma, support = vectors["gamma"], vectors.get("support")
        return cls(step, config, keys, gamma, support, start, origin)

    def fitted(self, arguments: Collection[str], votes: bool) -> ClipState:
        """Return what a clip with these arguments takes over; refuse others.

        Args:
            arguments: Names of the clip's.
            votes: It counts support in its warm-up; what a state lacks of it
                is full, and what it has is left out otherwise.
        """
        foreign = [name for name in self.config if name not in arguments]
        if foreign:
            raise OtherClipError(
                f"the state was made by a clip with the arguments {foreign}, "
                "which ClipGradByAdaGC does not have: it is another clip's"
            )
        gamma, support = self.gamma, self.support if votes else None
        if votes and support is None:
            is_known = np.isfinite(np.asarray(self.gamma, np.float32))
            support = (FULL_SUPPORT * is_known).astype(np.float32)
        must = "positive (inf for a tensor without a norm so far)"
        self._check("gamma", gamma, gamma > 0, must)
        if support is not None:
            is_right = (support >= 0) & np.isfinite(support)
            self._check("support", support, is_right, "finite and at least 0")
        return dataclasses.replace(self, gamma=gamma, support=support)

    def _check(
        self, name: str, vector: np.ndarray, is_right: np.ndarray, must: str
    ) -> None:
        for i in np.flatnonzero(~is_right):
            raise ValueError(
                f"{name} of {self.keys[i]!r} is {vector[i]}: it must be {must}"
            )

    def values_of(self, keys: Sequence[str]) -> tuple[np.ndarray, Any]:
        """Return gamma and support of these tensors; new ones have started."""
        place = {key: i for i, key in enumerate(self.keys)}
        index = [place.get(key, -1) for key in keys]  # -1: what is appended
        gamma = np.append(self.gamma, np.float32(math.inf))[index]
        if self.support is None:
            return gamma, None
        return gamma, np.append(self.support, np.float32(0))[index]

    def renamed(self, prefixes: Mapping[str, str]) -> ClipState:
        """Return the same with other prefixes of keys, the longest that fits.

        A dot at their end counts for nothing; ``""`` begins every key.
        """
        prefixes = {a.rstrip("."): b.rstrip(".") for a, b in prefixes.items()}
        keys = [_renamed(key, prefixes) for key in self.keys]
        for prefix in prefixes:
            if not any(_begins_with(key, prefix) for key in self.keys):
                raise ValueError(
                    f"rename has {prefix!r}, with which no key of the state "
                    f"begins; the first is {next(iter(self.keys), None)!r}"
                )
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"rename gives two tensors the key {twice!r}")
        return dataclasses.replace(self, keys=tuple(keys))

    def to_numpy(self) -> ClipState:
        """Return the same with NumPy vectors; waits for the device."""
        numpy: dict[str, Any] = {
            name: np.asarray(vector) for name, vector in self.vectors().items()
        }
        return dataclasses.replace(self, **numpy)


def _begins_with(key: str, prefix: str) -> bool:
    return f"{key}.".startswith(prefix and f"{prefix}.")


def _renamed(key: str, prefixes: Mapping[str, str]) -> str:
    fits = [prefix for prefix in prefixes if _begins_with(key, prefix)]
    if not fits:
        return key
    longest = max(fits, key=len)
    rest = key[len(longest) :].lstrip(".")
    return ".".join(filter(None, (prefixes[longest], rest)))


def warn_of_other_arguments(
    mine: Mapping[str, Any], loaded: Mapping[str, Any]
) -> None:
    """Warn of arguments that have other values in a loaded state."""
    differing = [
        f"{name}={mine[name]!r} (state: {value!r})"
        for name, value in loaded.items()
        if name in mine and mine[name] != value
    ]
    if differing:
        warnings.warn(
            "the loaded state was made with other arguments than this "
            f"clip resumes with: {', '.join(differing)}",
            stacklevel=5,
        )


def _check_form(state: Any) -> None:
    """Refuse what is not a dict of dicts, with a step and a config."""
    if not isinstance(state, dict):
        raise TypeError(
            f"the state is a {type(state).__name__}, not a dict: give what "
            "clip.state_dict() or load_state() returned"
        )
    for name in ("step", "config"):
        if name not in state:
            raise ValueError(
                f"the state lacks {name!r}: it has {[*state][:5]}. Is it a "
                "model's or an optimizer's? Give what clip.state_dict() "
                "returned"
            )
    for name, part in state.items():
        if name not in _COUNTS and not isinstance(part, dict):
            raise ValueError(f"the state's {name} must be a dict")


def _count(name: str, value: Any) -> int:
    if not isinstance(value, numbers.Integral) or int(value) < 0:
        raise ValueError(
            f"the state's {name}={value!r} is not a count of steps"
        )
    return int(value)


def _number(name: str, key: str, value: Any) -> np.ndarray:
    """Return a number of any kind as float32, ``[]``."""
    if isinstance(value, Tensor) and value.dtype == paddle.bfloat16:
        value = value.astype("float32")
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fi":  # bfloat16's bits: u
        raise ValueError(
            f"{name} of {key!r} is not one number: shape "
            f"{list(array.shape)}, dtype {array.dtype}"
        )
    wide = array.astype(np.float64).reshape([])
    with np.errstate(over="ignore"):
        number = wide.astype(np.float32)
    if np.isinf(number) != np.isinf(wide) or (number == 0) != (wide == 0):
        raise ValueError(f"{name} of {key!r} is {wide}: float32 cannot hold it")
    return number


def _unbind(vector: Any) -> Sequence[Any]:
    """Return the entries of ``[n]``, each of shape ``[]``."""
    if isinstance(vector, Tensor):
        return paddle.unbind(vector) if vector.shape[0] else []
    return list(vector)
