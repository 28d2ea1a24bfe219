# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip that acts on an optimizer, and the shadow that follows it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.nn import ClipGradByGlobalNorm, ClipGradByNorm
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.last_step import LastStep
from paddle_adagc.optimizer import innermost, put_into_optimizer
from paddle_adagc.parallel.layout import unwrap
from paddle_adagc.watch.measure import Factors
from paddle_adagc.watch.observe import model_parameters_of
from paddle_adagc.watch.shadow import (
    bind,
    check_shadow,
    default_shadow,
    find_model,
    make_shadow,
    unwrapped,
)


class Clips:
    """What clips an optimizer's gradients, and what is recorded of it.

    Args:
        optimizer: Any; wrappers are looked into.
        shadow: See :class:`.Record`.
        model: Names the tensors; None: it is looked for.

    Raises:
        TypeError, ValueError: The shadow cannot follow.
    """

    def __init__(
        self,
        optimizer: Any,
        shadow: ClipGradBase | bool | None,
        model: paddle.nn.Layer | None,
    ) -> None:
        self.optimizer = innermost(optimizer)
        self._find()
        self.shadow: ClipGradByAdaGC | None = None
        if isinstance(shadow, ClipGradBase):
            self.shadow = check_shadow(shadow)
            if any(unwrapped(clip) is shadow for clip in self._of_groups):
                raise ValueError(
                    f"shadow={shadow!r} is the optimizer's own clip: give "
                    "another one, or leave shadow out"
                )
        elif shadow is not False and not self.is_ours:
            self.shadow = default_shadow(self.acting)
        parameters = model_parameters_of(optimizer)
        if self.shadow is not None:
            bind(self.shadow, model, parameters)
        self.model = find_model(parameters) if model is None else model
        self.names: dict[str, str] = {}
        """The record's names of tensors that a clip has under Paddle's."""
        self.shared: list[str] = []
        """Names of other optimizers that take the same loss."""
        ours: list[Any] = [*filter(_is_ours, [self.shadow, self.acting])]
        is_bound = all(clip._progress.tensors.is_bound for clip in ours)
        if self.model is not None and not is_bound:
            named = unwrap(self.model).named_parameters()
            self.names = {parameter.name: name for name, parameter in named}

    def _find(self) -> None:
        clips = [group.get("grad_clip") for group in self._groups()]
        self._of_groups = clips or [self.optimizer._grad_clip]
        first = self._of_groups[0]
        is_one = all(_is_same(clip, first) for clip in self._of_groups)
        self.acting: Any = first if is_one else tuple(self._of_groups)
        """A clip, None, or those of groups that differ."""

    def _groups(self) -> list[dict[str, Any]]:
        groups = self.optimizer._param_groups
        return [group for group in groups if isinstance(group, dict)]

    @property
    def is_ours(self) -> bool:
        """Whether a clip of this package acts."""
        return _is_ours(self.acting)

    @property
    def source(self) -> ClipGradByAdaGC | None:
        """The clip whose numbers are recorded."""
        if self.shadow is not None:
            return self.shadow
        return self.acting if self.is_ours else None

    @property
    def num_updates(self) -> int:
        """Steps that the recorded clip has made."""
        return self.source.num_steps if self.source is not None else 0

    def snapshots(self) -> tuple[LastStep | None, LastStep | None]:
        """Return the last step of the recorded clip, and of another of ours."""
        if self.source is None:
            return None, None
        is_other = self.shadow is not None and self.is_ours
        acting = self.acting.snapshot() if is_other else None
        return self.source.snapshot(), acting

    @property
    def is_warming_up(self) -> bool:
        """Whether the last step was one of the acting clip's warm-up."""
        if self.shadow is not None or self.source is None:
            return False
        made = self.source.num_steps - 1 - self.source._progress.memory.start
        return made < self.source.t_start

    def switch(self) -> ClipGradByAdaGC:
        """Let the shadow act; see :meth:`.Record.switch`."""
        if self.shadow is None or not self.shadow.num_steps:
            raise RuntimeError("no shadow has followed a step, so none can act")
        clip, self.shadow = self.shadow, None
        clip._follows = False
        self._put(clip)
        return clip

    def switch_back(self, clip: ClipGradBase | None) -> None:
        """Let another clip act; see :meth:`.Record.switch_back`."""
        if not self.is_ours:
            raise RuntimeError(
                f"{self.acting!r} acts, which cannot follow as a shadow"
            )
        self.shadow = make_shadow(self.acting)
        self._put(clip)

    def _put(self, clip: ClipGradBase | None) -> None:
        put_into_optimizer(self.optimizer, clip)
        self._find()

    def factors(self) -> Factors | None:
        """Return what the clip does that acts; None: it is the recorded one."""
        if self.shadow is None and self.is_ours:
            return None
        clips, groups = self._of_groups, self._group_of_each()

        def factors(norm: np.ndarray, keys: Sequence[str]) -> np.ndarray | None:
            # Another pipeline stage has the tensors that have no group.
            unknown = 0 if len(clips) == 1 else -1
            index = np.array([groups.get(key, unknown) for key in keys])
            h = np.full(norm.shape, np.nan, np.float32)
            for group, clip in enumerate(clips):
                mine = _factors(clip, norm[:, index == group])
                if mine is None:
                    return None
                h[:, index == group] = mine
            return h

        return factors

    def _group_of_each(self) -> dict[str, int]:
        """Return the parameter group of each tensor, where there are some."""
        groups, found = self._groups(), dict[str, int]()
        if self.source is None or len(groups) < 2:
            return found
        tensors = self.source._progress.tensors
        for index, group in enumerate(groups):
            for parameter in group["params"]:
                with contextlib.suppress(ValueError):  # part of a buffer
                    for key in tensors.keys_of(parameter):
                        found[self.names.get(key, key)] = index
        return found

    @property
    def name(self) -> str:
        """The optimizer and the model, in words."""
        kind = type(self.optimizer).__name__
        model = self.model
        return kind if model is None else f"{kind} of {type(model).__name__}"

    def facts(self) -> dict[str, Any]:
        """Return the facts of a session, as JSON values."""
        optimizer, model = self.optimizer, self.model
        settings = {
            name: getattr(optimizer, f"_{name}", None)
            for name in ("beta2", "epsilon")
        }
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "clip": _description(self.acting),
            "shadow": self.shadow and _description(self.shadow),
            "optimizer": type(optimizer).__name__,
            "optimizer_name": getattr(optimizer, "_name", None),
            "model": None if model is None else type(model).__name__,
            "model_name": None if model is None else model.full_name(),
            **{n: x for n, x in settings.items() if isinstance(x, float)},
            "shares_loss_with": sorted(self.shared),
            "num_ranks": dist.get_world_size(),
            "paddle": paddle.__version__,
        }


def _is_ours(clip: Any) -> bool:
    return isinstance(clip, ClipGradByAdaGC)


def _is_same(clip: Any, other: Any) -> bool:
    """Whether two clips, which fleet may have wrapped, do the same."""
    clip, other = unwrapped(clip), unwrapped(other)
    if clip is other or clip is None or _is_ours(clip):
        return clip is other
    return type(clip) is type(other) and vars(clip) == vars(other)


def _description(clip: Any) -> str:
    if isinstance(clip, tuple):
        return "clips of groups: " + ", ".join(map(_description, clip))
    return str(unwrapped(clip)) if clip is not None else "none"


def _factors(clip: Any, norm: np.ndarray) -> np.ndarray | None:
    """Return what a clip of Paddle does to tensors of given norms.

    None where the norms do not say it (``ClipGradByValue``).
    """
    clip = unwrapped(clip)
    if clip is None:
        return np.ones_like(norm)
    if isinstance(clip, ClipGradByGlobalNorm):
        squares = np.square(norm.astype(np.float64))
        size = np.sqrt(np.nansum(squares, 1, keepdims=True))
    elif isinstance(clip, ClipGradByNorm):
        size = norm
    else:
        return None
    with np.errstate(all="ignore"):
        h = clip.clip_norm / np.maximum(size, clip.clip_norm)
    return np.broadcast_to(h, norm.shape).astype(np.float32)
