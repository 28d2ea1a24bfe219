# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numbers of a clip that is not this package's, such as GlobalGC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.last_step import Rows
from paddle_adagc.clips.lookup import Pairs
from paddle_adagc.clips.step import Decision, Step
from paddle_adagc.guards import eager
from paddle_adagc.parallel.units import Declared

_ROUNDING = 1e-6  # of a tensor's norm, measured before and after the clip


class MeasuredClip(ClipGradBase):
    """Call any clip; measure every tensor before and after it.

    A measured step reads the gradients twice, and sums norms over the ranks
    that hold parts of a tensor. The other steps only call the clip.

    Fleet replaces ``ClipGradByGlobalNorm`` by its own clip: measure that one,
    after fleet has wrapped the optimizer.

    Args:
        clip: Clip to call; the optimizer gets its result.
        is_due: Called at every step: is this one measured? It has to answer
            the same on all ranks. Default: every step is.

    Example:
        >>> import paddle
        >>> from paddle_adagc.clips.measured import MeasuredClip
        >>> model = paddle.nn.Linear(4, 2)
        >>> clip = MeasuredClip(paddle.nn.ClipGradByGlobalNorm(1.0))
        >>> clip.bind(model)
        >>> optimizer = paddle.optimizer.AdamW(
        ...     3e-4, parameters=model.parameters(), grad_clip=clip
        ... )
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
        >>> round(clip.summary()["clipped_grad_norm"], 3)
        1.0
    """

    def __init__(
        self,
        clip: Callable[[Any], Any],
        is_due: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self.clip = clip
        self._is_due = is_due
        self._after = _Probe()
        self._before = _Probe(self._after)
        self._is_fresh = False

    def __str__(self) -> str:
        """Return the clip's own description."""
        return str(self.clip)

    @property
    def innermost(self) -> Any:
        """The clip that is called, maybe by a function with a ``clip``."""
        clip: Any = self.clip
        while not isinstance(clip, ClipGradBase) and hasattr(clip, "clip"):
            clip = clip.clip
        return clip

    def bind(
        self, model: paddle.nn.Layer, units: Declared | None = None
    ) -> None:
        """Name the tensors as the model does; before fleet wraps anything.

        Args:
            model: Holds all parameters of the optimizer.
            units: As for :meth:`TensorScalingClip.bind`.
        """
        self._before.bind(model, units)
        self._after.bind(model, units)

    @eager
    def _dygraph_clip(self, params_grads: Pairs) -> Any:
        self._is_fresh = self._is_due()
        if self._is_fresh:
            self._before(params_grads)
        clipped = self.clip(params_grads)
        if self._is_fresh:
            self._after(clipped)
        return clipped

    def rows(self) -> Rows:
        """Return the last measured step of this rank's tensors, on the host.

        Columns: ``norm`` and ``clipped_norm``, before and after the clip, and
        ``h``, by which it shrank.
        """
        rows = self._before._rows()
        clipped = self._after._rows().columns["norm"]
        return Rows(rows.keys, {**rows.columns, "clipped_norm": clipped})

    def summary(self, *, tensors: bool = False) -> dict[str, Any]:
        """Return the last step as :meth:`TensorScalingClip.summary` does.

        In a distributed run every rank has to call it, and gets the same: one
        gather.

        Args:
            tensors: Add the numbers of each tensor.

        Returns:
            The numbers without ``step``; empty if the last step was not
            measured. ``nonfinite_total`` is about the measured steps.
        """
        if not self._is_fresh:
            return {}
        summary = self._before.summary(tensors=tensors)
        del summary["step"]
        return summary


class _Probe(TensorScalingClip):
    """Measures gradients and leaves them as they are.

    With a probe ``after`` the clip ``h`` is what the norms shrank by.
    """

    is_shadow = True

    def __init__(self, after: _Probe | None = None) -> None:
        super().__init__(nonfinite="propagate")
        self._behind = after

    def _rows(self) -> Rows:
        rows = super()._rows()
        if self._behind is not None:
            norm = rows.columns["norm"]
            left = self._behind._rows().columns["norm"]
            with np.errstate(invalid="ignore"):
                h = np.where(norm == 0, np.float32(1), left / norm)
            h[h > 1 - _ROUNDING] = 1
            rows.columns["h"] = h
        return rows

    def arguments(self) -> dict[str, Any]:
        """Return nothing: it has no state."""
        return {}

    def advance(self, step: Step) -> Decision:
        """Leave everything as it is."""
        return Decision(paddle.ones_like(step.norm), {})
