# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The state of a clip: one shape from the device to the disk.

Its file is one safetensors file, whatever layout the state comes from: a
float32 vector ``[num_tensors]`` per quantity, such as AdaGC's ``gamma``, and as
JSON in the metadata the tensors' keys, the step and the clip's arguments.
Nothing in it can execute code on loading.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import numbers
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import Tensor
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from paddle_adagc.checks import check_directory
from paddle_adagc.files import atomic_write, check_regular_file

logger = logging.getLogger(__name__)

GLOBAL = "global"
"""Key under which a dict holds a number about all tensors together."""

_COUNTS = ("step", "warmup_start")
_NO_DICTS = (*_COUNTS, "missing")
_DICTS = ("config", "origin", "units")  # that are no quantities
_ABOUT = {"warmup_start": 0, "missing": (), "origin": {}, "units": {}}
_FORMER = {
    "lambda_dev": 0.0,
    "preset": "paper",
    "share": "size",
    "unclipped": ["lm_head.weight"],
}
"""Arguments that clips had when they wrote states, and what is done now."""

ROUNDING = 1e-5
"""Relative difference between ranks that is still rounding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number that a rule carries per tensor, or one about all of them.

    Example:
        >>> from paddle_adagc.state import Quantity
        >>> Quantity(name="gamma", start=float("inf"), is_positive=True).start
        inf
    """

    name: str
    """Its name in ``step.state``, in states and in metrics."""

    start: float
    """Value before the first observation."""

    is_global: bool = False
    """One number for all tensors together."""

    is_positive: bool = False
    """A state with 0 is refused; ``inf`` (no observation) is not."""

    is_norm: bool = False
    """An L2 norm: those of a tensor's parts add in squares."""

    absent: float | None = None
    """Given for a count, which is no norm and no metric: its value where a
    state does not hold it, as the rule has dropped it or did not count."""


class OtherClipError(ValueError):
    """A state is that of another class of clips."""


@dataclasses.dataclass(frozen=True)
class ClipState:
    """State of a clip, of the whole model or of one rank's tensors."""

    step: int  # optimizer steps made
    config: dict[str, Any]  # the clip's arguments
    keys: tuple[str, ...]  # names of the tensors, [num_tensors]
    values: dict[str, Any]
    """Name of a quantity -> float32 ``[num_tensors]``, or ``[]`` of one about
    all tensors; Paddle or NumPy."""

    warmup_start: int = 0  # steps made when the warm-up began
    missing: tuple[str, ...] = ()
    """Tensors that other ranks own, whose numbers are out of date here."""

    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Of a Trainer's checkpoint: ``run``, its name, and ``step`` of the
    Trainer."""

    units: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Key of a parameter that holds units -> their keys."""

    def to_dict(self) -> dict[str, Any]:
        """Return the form of ``state_dict()``."""
        numbers_by_key = {
            name: dict(zip(self.keys, _unbind(value), strict=True))
            if value.ndim
            else {GLOBAL: value}
            for name, value in self.values.items()
        }
        about: dict[str, Any] = {"step": self.step, **self._more()}
        return {**about, **numbers_by_key, "config": self.config}

    def _more(self) -> dict[str, Any]:
        """Return what most states do not need to say."""
        more = {
            "warmup_start": self.warmup_start,
            "missing": [*self.missing],
            "origin": {**self.origin},
            "units": {key: [*parts] for key, parts in self.units.items()},
        }
        return {name: value for name, value in more.items() if value}

    @classmethod
    def from_dict(cls, state: Any) -> ClipState:
        """Read the form of ``state_dict()``; numbers of any kind."""
        _check_form(state)
        quantities = {**_ABOUT, **state}
        config, origin, units = ({**quantities.pop(name)} for name in _DICTS)
        missing = tuple(quantities.pop("missing"))
        step, start = (_count(name, quantities.pop(name)) for name in _COUNTS)
        if start > step:
            raise ValueError(
                f"the state's warmup_start={start} is after its step={step}"
            )
        if [*quantities] == ["norm"]:  # ZClip's in format 2
            norm = quantities["norm"]
            quantities = {name: {GLOBAL: v} for name, v in norm.items()}
        of_tensors = (n for n in quantities.values() if [*n] != [GLOBAL])
        keys: tuple[str, ...] = tuple(next(of_tensors, ()))
        values: dict[str, np.ndarray] = {}
        for name, by_key in quantities.items():
            is_global = [*by_key] == [GLOBAL]
            mine = (GLOBAL,) if is_global else keys
            if other := by_key.keys() ^ {*mine}:
                raise ValueError(
                    f"the state's {name} is not about the same tensors as its "
                    f"other numbers: one of them lacks {sorted(other)[:5]}"
                )
            vector = [_number(name, key, by_key[key]) for key in mine]
            shape = [] if is_global else [len(keys)]
            values[name] = np.array(vector, np.float32).reshape(shape)
        return cls(step, config, keys, values, start, missing, origin, units)

    def fitted(
        self,
        owner: str,
        arguments: Collection[str],
        quantities: Sequence[Quantity],
        optional: Collection[str],
    ) -> ClipState:
        """Return what a clip of the class ``owner`` takes over; refuse others.

        A state may lack ``optional`` quantities, or have them without use.
        """
        foreign = [
            name
            for name, value in self.config.items()
            if name not in arguments and _FORMER.get(name) != value
        ]
        if foreign:
            raise OtherClipError(
                f"the state was made by a clip with the arguments {foreign}, "
                f"which {owner} does not have: it is another clip's"
            )
        known = {q.name for q in quantities}.union(optional)
        if other := self.values.keys() - known:
            raise OtherClipError(
                f"the state holds {sorted(other)}, which {owner} does not "
                "keep: it is another clip's"
            )
        values = {}
        for q in quantities:
            if q.name not in self.values and q.absent is None:
                raise ValueError(
                    f"the state lacks {q.name!r}: it has "
                    f"{['step', *self.values]}"
                )
            start = q.start if q.absent is None else q.absent
            unknown = np.full(len(self.keys), start, np.float32)
            value = self.values.get(q.name, unknown)
            if value.ndim and self.missing:  # out of date
                is_missing = np.isin(self.keys, self.missing)
                value = np.where(is_missing, np.float32(q.start), value)
            values[q.name] = value
            if q.is_global != (value.ndim == 0):
                form = "one number" if q.is_global else "one per tensor"
                raise ValueError(
                    f"the state's {q.name} is not {form}: it is not a state of "
                    f"{owner}"
                )
            must = "finite and not negative"
            is_right = (value >= 0) & np.isfinite(value)
            if q.is_positive:
                must = "positive (inf for a tensor without a norm so far)"
                is_right = value > 0
            for i in np.flatnonzero(~is_right):
                key = GLOBAL if q.is_global else self.keys[i]
                raise ValueError(
                    f"{q.name} of {key!r} is {value.flat[i]}: it must be {must}"
                )
        return dataclasses.replace(self, values=values)

    def values_of(
        self, keys: Sequence[str], quantities: Sequence[Quantity]
    ) -> dict[str, Any]:
        """Return these tensors' values in order; start values of new ones."""
        place = {key: i for i, key in enumerate(self.keys)}
        index = [place.get(key, -1) for key in keys]  # -1: what is appended
        values = dict(self.values)
        for q in (q for q in quantities if not q.is_global):
            known = np.append(values[q.name], np.float32(q.start))
            values[q.name] = known[index]
        return values

    def with_whole_tensors(
        self, keys: Collection[str], quantities: Sequence[Quantity]
    ) -> ClipState:
        """Return the same with one tensor for units that are not of ``keys``.

        Norms add in squares; a count is that of the unit with the least. With
        other quantities the units stay. The log names each tensor.
        """
        place = {key: i for i, key in enumerate(self.keys)}
        joined = {
            key: [place[part] for part in parts]
            for key, parts in self.units.items()
            if key in keys and parts and not {*parts} & {*keys}
            if all(part in place for part in parts)
        }
        of_tensors = [q for q in quantities if not q.is_global]
        if not all(q.is_norm or q.absent is not None for q in of_tensors):
            joined = {}
        for key, parts in joined.items():
            logger.warning(
                "%s has one norm here, and %d units in the state: their norms "
                "are added in squares",
                key,
                len(parts),
            )
        gone = {i for parts in joined.values() for i in parts}
        rest = [i for i in range(len(self.keys)) if i not in gone]
        values = dict(self.values)
        for q in of_tensors:
            value = values[q.name].astype(np.float64)
            whole = [
                math.sqrt((value[parts] ** 2).sum())
                if q.is_norm
                else value[parts].min()
                for parts in joined.values()
            ]
            values[q.name] = np.append(value[rest], whole).astype(np.float32)
        keys = (*(self.keys[i] for i in rest), *joined)
        return dataclasses.replace(self, keys=keys, values=values)

    def renamed(self, prefixes: Mapping[str, str]) -> ClipState:
        """Return the same with other prefixes of keys, the longest that fits.

        They have no dot at the end; ``""`` is a prefix of every key.
        """
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
        units = {
            _renamed(key, prefixes): [
                _renamed(part, prefixes) for part in parts
            ]
            for key, parts in self.units.items()
        }
        missing = tuple(_renamed(key, prefixes) for key in self.missing)
        return dataclasses.replace(
            self, keys=tuple(keys), units=units, missing=missing
        )

    def to_numpy(self) -> ClipState:
        """Return the same with NumPy vectors; waits for the device."""
        values = {name: np.asarray(v) for name, v in self.values.items()}
        return dataclasses.replace(self, values=values)


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
    mine: Mapping[str, Any], loaded: Mapping[str, Any], idle: Collection[str]
) -> None:
    """Warn of arguments that have other values in a loaded state.

    Of these the ``idle`` ones have no effect.
    """
    differing = [
        f"{name}={mine[name]!r} (state: {value!r})"
        for name, value in loaded.items()
        if name in mine and mine[name] != value
    ]
    if differing:
        names = [n for n in loaded if n in idle and mine[n] != loaded[n]]
        unused = f"; the warm-up is over: {', '.join(names)} do nothing now"
        warnings.warn(
            "the loaded state was made with other arguments than this "
            f"clip resumes with: {', '.join(differing)}" + unused * bool(names),
            stacklevel=4,
        )


def check_is_whole(state: ClipState, partial: bool) -> None:
    """Refuse one rank's state that is to be taken for the whole model's."""
    if state.missing and not partial:
        more = ", ..." if len(state.missing) > 3 else ""
        raise ValueError(
            f"the state is of one rank under sharding, and lacks "
            f"{len(state.missing)} tensors that other ranks own "
            f"({', '.join(state.missing[:3])}{more}): save "
            "clip.full_state_dict(), which every rank calls. With partial=True "
            "these tensors start from their next norms"
        )


def _check_form(state: Any) -> None:
    """Refuse what is not a dict of dicts, with a step and a config."""
    if not isinstance(state, dict):
        what, hint = f"a {type(state).__name__}, not a dict", ""
        if isinstance(state, (str, os.PathLike)):
            what, hint = f"the path {str(state)!r}", ": load_state() reads it"
        elif hasattr(state, "state_dict"):
            hint = ": call its state_dict()"
        raise TypeError(f"the state is {what}{hint}")
    for name in ("step", "config"):
        if name not in state:
            raise ValueError(
                f"the state lacks {name!r}: it has {[*state][:5]}. Is it a "
                "model's or an optimizer's? Give what clip.state_dict() "
                "returned"
            )
    for name, part in state.items():
        if name not in _NO_DICTS and not isinstance(part, dict):
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
    if array.dtype == np.uint16:
        raise ValueError(
            f"{array} is of dtype uint16, perhaps the bits of a bfloat16: cast "
            "it to float32 before it becomes an array"
        )
    if array.size != 1 or array.dtype.kind not in "fiu":
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
    """Write a clip's ``state_dict()`` to a file, whole or not at all.

    The same state gives the same bytes.

    Args:
        state: ``step``, ``config``, and per quantity a dict of key -> one
            number, such as AdaGC's ``gamma``.
        directory: Created if it does not exist.
        file_name: One for each clip, where there are several.

    Returns:
        Path of the file.

    Raises:
        PermissionError: ``directory`` takes no files.
        TypeError: ``state`` is not a dict, or the arguments are swapped.
        ValueError: It is not a clip's state, or ``directory`` is a file.

    Example:
        >>> from paddle_adagc import ClipGradByAdaGC, load_state, save_state
        >>> clip = ClipGradByAdaGC()
        >>> save_state(clip.state_dict(), "checkpoint-1000").name
        'adagc_state.safetensors'
        >>> clip.set_state_dict(load_state("checkpoint-1000"))
    """
    if isinstance(directory, Mapping):
        raise TypeError(
            "the arguments are swapped: write save_state(state, directory)"
        )
    whole = ClipState.from_dict(state)
    vectors = {name: v.reshape(-1) for name, v in whole.values.items()}
    about = {
        "keys": whole.keys,
        "scalars": [n for n, v in whole.values.items() if not v.ndim],
        "step": whole.step,
        "warmup_start": 0,
        "config": whole.config,
        **whole._more(),
    }
    metadata = {"format": _FORMAT}
    metadata |= {name: json.dumps(value) for name, value in about.items()}
    metadata[_CHECKSUM] = _checksum(metadata, vectors)
    directory = check_directory("directory", directory)
    content = _with_sorted_header(save(vectors, metadata))
    return atomic_write(directory / file_name, content)


def _with_sorted_header(content: bytes) -> bytes:
    """Return a safetensors file whose bytes follow from the state alone.

    safetensors writes metadata in a random order.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[end:]


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
        NotADirectoryError: ``directory`` is a file.
        ValueError: The file is damaged or not a clip's state.

    Example:
        >>> from paddle_adagc import ClipGradByAdaGC, load_state, save_state
        >>> path = save_state(ClipGradByAdaGC().state_dict(), "checkpoint-1000")
        >>> load_state("checkpoint-1000")["step"]
        0
    """
    path = Path(directory)
    if path.is_file():
        raise NotADirectoryError(
            f"{path} is a file: load_state takes its directory, "
            f"load_state({str(path.parent)!r}, {path.name!r})"
        )
    return read_state(path / file_name).to_dict()


def read_state(path: str | os.PathLike[str]) -> ClipState:
    """Read what :func:`save_state` wrote, in this format or the one before."""
    hint = (
        ": was the checkpoint written by a run with one of this package's "
        "clips?"
    )
    check_regular_file(path, hint)
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _state_of(metadata, vectors)
    except KeyError as error:
        raise ValueError(f"{path} is damaged: no {error}") from error
    except (RecursionError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _state_of(
    metadata: Mapping[str, str], vectors: Mapping[str, np.ndarray]
) -> ClipState:
    texts = {**metadata}
    checksum = texts.pop(_CHECKSUM, None)
    is_old = checksum is None and texts.keys() <= _OLD_METADATA
    if not is_old and checksum != _checksum(texts, vectors):
        raise ValueError("its SHA-256 differs from that in the file")
    form = texts.pop("format", None)
    if form not in (_FORMAT, _FORMAT_2):
        raise ValueError(
            f"its format is {form!r}, not one of {(_FORMAT, _FORMAT_2)}"
        )
    about = {name: json.loads(text) for name, text in texts.items()}
    keys, scalars = about.pop("keys"), about.pop("scalars", ())
    quantities = {}
    for name, vector in vectors.items():
        its_keys = [GLOBAL] if name in scalars else keys
        if form == _FORMAT_2:
            its_keys = keys[name]
        if len(its_keys) != len(vector):
            raise ValueError(
                f"{len(its_keys)} keys for {len(vector)} values of {name}"
            )
        quantities[name] = dict(zip(its_keys, vector, strict=True))
    return ClipState.from_dict({**quantities, **about})


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
