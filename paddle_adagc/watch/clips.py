# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The clip that acts on an optimizer, and the shadow that follows it."""

from __future__ import annotations

import contextlib
import gc
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.process_mesh import (
    get_unique_process_mesh_map,
)
from paddle.nn import ClipGradByGlobalNorm, ClipGradByNorm, Layer
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.optimizer import (
    innermost,
    put_into_optimizer,
    threshold_of,
)
from paddle_adagc.parallel.layout import sharding_wrapper, unwrap
from paddle_adagc.parallel.meshes import added_up
from paddle_adagc.watch.measure import Factors
from paddle_adagc.watch.observe import parameters_of


class Clips:
    """What clips an optimizer's gradients, and what is recorded of it.

    The arguments are those of :class:`.Record`.

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
        # In fleet's fuse_optimizer they are buffers that join several.
        original = getattr(optimizer, "_origin_parameter_list", None)
        parameters = original or parameters_of(optimizer)
        if self.shadow is not None:
            _bind(self.shadow, model, parameters)
        self.model = find_model(parameters) if model is None else model
        self.names: dict[str, str] = {}
        """The record's names of tensors that a clip has under Paddle's."""
        self.shared: list[str] = []
        """Names of other optimizers that take the same loss."""
        source = self.source
        is_bound = source is None or source._progress.tensors.is_bound
        if self.model is not None and not is_bound:
            named = unwrap(self.model).named_parameters()
            self.names = {parameter.name: name for name, parameter in named}

    def _find(self) -> None:
        clips = [group.get("grad_clip") for group in self._groups()]
        self._of_groups = clips or [self.optimizer._grad_clip]
        first = self._of_groups[0]
        is_one = all(_does_same(clip, first) for clip in self._of_groups)
        self.acting: Any = first if is_one else tuple(self._of_groups)
        """A clip, None, or those of groups that differ."""

    def _groups(self) -> list[dict[str, Any]]:
        groups = self.optimizer._param_groups
        return [group for group in groups if isinstance(group, dict)]

    @property
    def is_ours(self) -> bool:
        """Whether a clip of this package acts."""
        return is_adagc(self.acting)

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

    def switch(self) -> ClipGradByAdaGC:
        """Let the shadow act; see :meth:`.Record.switch`."""
        if self.shadow is None or not self.shadow.num_steps:
            raise RuntimeError("no shadow has followed a step, so none can act")
        clip, self.shadow = self.shadow, None
        clip._follows = False
        put_into_optimizer(self.optimizer, clip)
        self._find()
        return clip

    def factors(self) -> Factors | None:
        """Return what the clip does that acts; None: it is the recorded one."""
        if self.source is self.acting:
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
        return {
            "clip": _description(self.acting),
            "shadow": self.shadow and _description(self.shadow),
            "optimizer": type(optimizer).__name__,
            "optimizer_name": getattr(optimizer, "_name", None),
            "model": None if model is None else type(model).__name__,
            "shares_loss_with": sorted(self.shared),
        }


def _does_same(clip: Any, other: Any) -> bool:
    """Whether two clips, which fleet may have wrapped, do the same."""
    clip, other = unwrapped(clip), unwrapped(other)
    if clip is other or clip is None or is_adagc(clip):
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
        size[np.isinf(size)] = np.nan  # of Inf or NaN: which, is not known
    elif isinstance(clip, ClipGradByNorm):
        size = norm
    else:
        return None
    with np.errstate(all="ignore"):
        h = clip.clip_norm / np.maximum(size, clip.clip_norm)
    return np.broadcast_to(h, norm.shape).astype(np.float32)


# ---- the shadow and the model -----------------------------------------------


def is_adagc(clip: Any) -> bool:
    """Whether a clip is one of this package."""
    return isinstance(clip, ClipGradByAdaGC)


def default_shadow(acting: ClipGradBase | None) -> ClipGradByAdaGC:
    """Make the AdaGC that follows a run under another clip.

    Its warm-up has the global threshold of that clip, so that gamma starts from
    the norms that the run lets through; without one from the norms as they are.
    """
    inner = unwrapped(acting)
    threshold = threshold_of(inner)
    threshold = math.inf if threshold is None else float(threshold)
    return ClipGradByAdaGC(lambda_abs=threshold, init="warmup_ema")


def check_shadow(clip: ClipGradBase) -> ClipGradByAdaGC:
    """Return a clip of this package that can follow gradients.

    Raises:
        TypeError: It is no clip of this package.
        ValueError: It stops at Inf and NaN.
    """
    if not isinstance(clip, ClipGradByAdaGC):
        raise TypeError(
            f"shadow={clip!r}: give a clip of this package whose rule needs "
            "the norms alone, such as ClipGradByAdaGC()"
        )
    if clip.nonfinite == "raise":
        raise ValueError(
            f"shadow={clip!r} stops the run at Inf and NaN: give "
            "nonfinite='zero'"
        )
    return clip


def whole(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return pairs with copies of gradients that a mesh holds as summands.

    So that a clip which only measures leaves them as they are.
    """
    if not get_unique_process_mesh_map():
        return [*pairs]
    return [(p, g if g is None else added_up(g)) for p, g in pairs]


def unwrapped(clip: Any) -> Any:
    """Return the clip that fleet's own holds."""
    inner = getattr(clip, "_clip", None)
    return clip if is_adagc(clip) or inner is None else unwrapped(inner)


def find_model(parameters: Iterable[Any]) -> Layer | None:
    """Find the layer that holds an optimizer's parameters, by their names.

    It is looked for among all objects of this process: a training loop that
    knows nothing of this package does not name it. None: no layer has all.
    """
    # Stage 3 of group_sharded_parallel lets a step work on slices.
    names = {p.name.removeprefix("slice@") for p in parameters}
    best: tuple[tuple[int, int], Layer] | None = None
    for thing in gc.get_objects():
        if not issubclass(type(thing), Layer):  # reads no attribute of it
            continue
        try:
            mine = {p.name for p in thing.parameters()}
        except Exception:  # half made
            continue
        if names and names <= mine:
            num_layers = sum(1 for _ in thing.sublayers(include_self=True))
            size = (-len(mine), num_layers)  # a wrapper is looked through
            if best is None or size > best[0]:
                best = (size, thing)
    return best[1] if best else None


def _bind(
    clip: ClipGradByAdaGC, model: Layer | None, parameters: Sequence[Any]
) -> None:
    """Bind a shadow to the model, or to the one that is found."""
    if clip._progress.tensors.is_bound or clip.num_steps:
        return
    if model is None or dist.get_world_size() > 1:
        found = find_model(parameters)
        # The clip learns the ranks from group_sharded_parallel's wrapper.
        if model is None or (found is not None and sharding_wrapper(found)):
            model = found
    if model is None:
        warnings.warn(
            "no layer holds all of the optimizer's parameters: the record "
            "names them as Paddle does, linear_0.w_0",
            stacklevel=4,
        )
    else:
        clip.bind(model)
