# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read the state of ``ClipGradByAdaptiveNorm``, ERNIE's and Paddle's AdaGC.

A callback of ERNIE's pre-training writes it into each checkpoint, a pickle for
each process: ``adaptivenorm_clip_state.pth``, or with several processes
``adaptivenorm_clip_state_{rank}.pth``. It is a dict of Paddle's name of a
parameter -> ``norm_value``, which is gamma, and counts. Beside them stand
``steps`` and the clip's arguments.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import paddle.distributed as dist

from paddle_adagc.parallel.agreement import of_all_ranks
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.rule import FULL_SUPPORT

if TYPE_CHECKING:
    from paddle_adagc.clips.adagc import ClipGradByAdaGC

logger = logging.getLogger(__name__)

_FILE = "adaptivenorm_clip_state{}.pth"
_ROUNDING = 1e-5  # relative difference between ranks
_ARGUMENTS = ("clip_ratio", "beta", "start_clip_steps", "shard_clip")


class _Saved:
    """Stands for an array or a dtype: keeps what a pickle says of it."""

    def __init__(self, *arguments: Any) -> None:
        self.parts = arguments

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.parts += state


_KNOWN = {
    "builtins.tuple": tuple,
    "__builtin__.tuple": tuple,
    "_codecs.encode": lambda text, _: text.encode("latin1"),
}
_ARRAY = r"numpy\.(dtype|ndarray|_?core\.multiarray\.(_reconstruct|scalar))"


class _Reader(pickle.Unpickler):
    """Makes dicts, tuples, numbers and texts, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse what ``paddle.save`` does not need for numbers."""
        if f"{module}.{name}" in _KNOWN:
            return _KNOWN[f"{module}.{name}"]
        if re.fullmatch(_ARRAY, f"{module}.{name}"):
            return _Saved
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}, which no such state needs and which "
            "could run a stranger's code"
        )


class _Part(NamedTuple):
    """What one process saved."""

    steps: int
    arguments: dict[str, Any]
    gamma: dict[str, float]  # inf: to start from the next norm


def load_adaptive_norm(
    clip: ClipGradByAdaGC, directory: str | os.PathLike[str] | None
) -> dict[str, Any]:
    """Read a checkpoint of ``ClipGradByAdaptiveNorm`` for a clip of this model.

    In a distributed run every rank has to call it: each reads the file of its
    own number, and gets the whole model's state. The log says what differs.

    Args:
        clip: Bound to the model; it does not change.
        directory: The checkpoint; None: this rank has none.

    Returns:
        A dict for ``clip.set_state_dict()``. A tensor starts from its next norm
        where the file has no positive number, and so do the units of a
        parameter.

    Raises:
        FileNotFoundError: No rank has a file.
        RuntimeError: The clip is not bound.
        ValueError: A file is no such state, or of another model, step or
            number of processes; or some rank lacks its file.

    Example:
        >>> from paddle_adagc.adaptive_norm import load_adaptive_norm
        >>> state = load_adaptive_norm(clip, "checkpoint-1000")
        >>> clip.set_state_dict(state)
    """
    ranks = clip._progress.ranks
    mine: Any
    try:
        mine = directory and _part_of_rank(Path(directory), ranks.layout)
    except ValueError as error:
        mine = error  # for all ranks to know
    parts = of_all_ranks(mine)
    if not any(parts):
        raise FileNotFoundError(f"no {_FILE.format('*')} in {directory}")
    if not ranks.layout:
        raise RuntimeError("call clip.bind(model) first")
    try:
        part = _joined(parts)
    except ValueError as error:
        raise ValueError(
            f"{directory}: {error}. To start with the warm-up, remove these "
            "files or set adaptive_norm_force_clear_state"
        ) from None
    if dist.get_rank() == 0:
        _say(part)
    support = {
        key: FULL_SUPPORT if math.isfinite(value) else 0.0
        for key, value in part.gamma.items()
    }
    config = {
        "lambda_rel": part.arguments["clip_ratio"],
        "beta": part.arguments["beta"],
        # It warms up while steps <= start_clip_steps, from 0.
        "t_start": part.arguments["start_clip_steps"] + 1,
    }
    about = {"step": part.steps, "config": config}
    return {**about, "gamma": part.gamma, "support": support}


def _part_of_rank(
    folder: Path, layout: Mapping[str, TensorLayout]
) -> _Part | None:
    """Read this rank's file, under the keys of its model."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    names = {path.name for path in folder.glob(_FILE.format("*"))}
    numbers = [int(n) for n in re.findall(r"state_(\d+)\.pth", " ".join(names))]
    last = max(numbers, default=0)
    if names and (bool(numbers) != (num_ranks > 1) or last >= num_ranks):
        who = f"process {last} of several" if numbers else "a single process"
        raise ValueError(
            f"{who} saved it, and this run has {num_ranks}: resume with as many"
        )
    name = _FILE.format(f"_{rank}" if num_ranks > 1 else "")
    if name not in names:
        return None
    try:
        part = _parsed(folder / name)
    except Exception as error:  # wrong bytes raise anything
        raise ValueError(f"{name} is refused: {error}") from error
    if unknown := sorted(part.gamma.keys() - layout.keys()):
        raise ValueError(
            f"{name} is of another model, or of one whose layers were made in "
            f"another order: this one lacks {', '.join(unknown[:3])} "
            f"({len(unknown)} in all)"
        )
    gamma: dict[str, float] = {}
    for parameter, value in part.gamma.items():
        tensor = layout[parameter]
        units = {unit.key: math.inf for unit in tensor.units}
        gamma |= units or {tensor.key: value}
    return part._replace(gamma=gamma)


def _parsed(path: Path) -> _Part:
    """Read a file; run nothing of it."""
    with path.open("rb") as file:
        state = _Reader(file).load()
    if not isinstance(state, dict) or {"steps", *_ARGUMENTS} - state.keys():
        raise ValueError("it is no state of ClipGradByAdaptiveNorm")
    arguments = {name: state[name] for name in _ARGUMENTS}
    counts = state["steps"], arguments["start_clip_steps"]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError(f"steps or start_clip_steps is no count: {counts}")
    gamma = {}
    for name, about in state.items():
        if isinstance(about, dict):
            norm = _number(about.get("norm_value"))
            if norm is None:
                raise ValueError(f"norm_value of {name!r} is not one number")
            gamma[name] = norm if 0 < norm < math.inf else math.inf
    return _Part(state["steps"], arguments, gamma)


def _number(value: Any) -> float | None:
    """Return a saved number, array or tensor of one number."""
    if isinstance(value, tuple) and len(value) == 2:
        value = value[1]  # after a tensor's name
    if isinstance(value, _Saved):
        # Parts of an array end with dtype, order and bytes; a scalar's are
        # dtype and bytes. A dtype begins with its kind.
        dtype = next(p for p in value.parts[::-1] if isinstance(p, _Saved))
        kind, content = dtype.parts[0], value.parts[-1]
        if kind not in ("u2", "f2", "f4", "f8") or len(content) != int(kind[1]):
            return None
        if kind == "u2":  # bfloat16: the upper half of a float32
            kind, content = "f4", b"\0\0" + content
        value = float(np.frombuffer(content, f"<{kind}")[0])
    return value if type(value) in (float, int) else None


def _joined(parts: list[_Part | ValueError | None]) -> _Part:
    """Join the ranks' parts, which have to agree."""
    whole = None
    for rank, part in enumerate(parts):
        if isinstance(part, ValueError):
            raise ValueError(f"rank {rank}: {part}")
        if part is None:
            lacking = [str(i) for i, p in enumerate(parts) if p is None]
            raise ValueError(
                f"rank {', '.join(lacking)} of {len(parts)} has no file here"
            )
        whole = whole or part._replace(gamma={})
        if part[:2] != whole[:2]:
            raise ValueError(
                f"rank 0 saved {whole[:2]}, and rank {rank} {part[:2]}: these "
                "files do not belong together"
            )
        for key, norm in part.gamma.items():
            known = whole.gamma.setdefault(key, norm)
            if not np.isclose(norm, known, _ROUNDING, 0):
                raise ValueError(
                    f"norm_value of {key} is {norm} on rank {rank}, and "
                    f"{known} on a rank before"
                )
    assert whole is not None
    if whole.arguments["shard_clip"] and len(parts) > 1:
        raise ValueError("shard_clip=True: its norms are of parts of tensors")
    return whole


def _say(part: _Part) -> None:
    """Log what is taken over."""
    new = [key for key, value in part.gamma.items() if math.isinf(value)]
    text = (
        f"ClipGradByAdaptiveNorm: gamma of {len(part.gamma) - len(new)} "
        f"tensors after {part.steps} steps is taken over"
    )
    if new:
        names = ", ".join([*new[:3], "..."] if len(new) > 3 else new)
        text += (
            f"; {len(new)} tensors start from their next norms, as they are "
            f"units here, or have no positive norm_value there: {names}"
        )
    logger.warning(text)
