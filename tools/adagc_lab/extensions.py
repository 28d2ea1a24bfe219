# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A variant of AdaGC that is judged here; the paper has none.

Configs name it by ``clip.preset``. Two others were judged before and left:
``docs/tried-rules.md``.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_choice
from paddle_adagc.clips import registry
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.step import Decision, Step
from paddle_adagc.state import Quantity

PRESETS = ("paper", "release")

_BETA2 = 0.999
"""AdamW's, in every run that the preset "release" is for."""

_RELEASED = 10.0
"""So many gammas of a norm count in the second moment, at most."""


class ReleaseAdaGC(ClipGradByAdaGC):
    r"""AdaGC whose clipped norms still count in Adam's second moment.

    Adam divides by the root of its second moment, which under AdaGC has seen
    clipped gradients alone: a step stays as large as if nothing were clipped.
    Here :math:`h_i` is multiplied by :math:`s_i`, so that Adam with
    :math:`\beta_2` 0.999 takes the step that it would take if its second
    moment had seen :math:`\min(\|g_i\|, 10 \gamma_i)`, and its first moment
    what AdaGC lets through. With the averages :math:`V_i` of the squares of
    the one and :math:`U_i` of those of :math:`s_i h_i \|g_i\|`, the factor
    keeps :math:`s_i^2 / U_i = 1 / V_i`. It starts at 1 and never grows: a
    constant factor changes nothing for Adam. Costs 8 more bytes per tensor.
    """

    optional_quantities = (
        *ClipGradByAdaGC.optional_quantities,
        "seen",
        "passed",
    )

    def arguments(self) -> dict[str, Any]:
        return {"preset": "release", **super().arguments()}

    def _quantities(self) -> list[Quantity]:
        own = [
            Quantity(name=n, start=0.0, absent=0.0) for n in ("seen", "passed")
        ]
        return [*super()._quantities(), *own]

    def advance(self, step: Step) -> Decision:
        """Scale by what Adam's second moment has not seen."""
        h, new, _ = super().advance(step)
        norm, state = step.norm, step.state
        norm = paddle.where(
            paddle.isfinite(norm), norm, paddle.zeros_like(norm)
        )
        clipped = h * norm
        counted = clipped
        if step.index >= self._num_warmup:
            wide = paddle.minimum(norm, _RELEASED * state["gamma"])
            counted = paddle.maximum(clipped, wide)
        square = (1.0 - _BETA2) * clipped.square()
        seen = _BETA2 * state["seen"] + (1.0 - _BETA2) * counted.square()
        passed = _BETA2 * state["passed"]
        others = seen - square
        factor = paddle.where(
            paddle.logical_and(passed > 0, others > passed),
            passed / others,
            paddle.ones_like(norm),
        )
        new["seen"], new["passed"] = seen, passed + factor * square
        return Decision(h * factor.sqrt(), new)


def make_clip(
    name: str | None = None, preset: str = "paper", **values: Any
) -> ClipGradBase:
    """:func:`paddle_adagc.make_clip`, and this variant of ``adagc``."""
    if check_choice("clip.preset", preset, PRESETS) == "paper":
        return registry.make_clip(name, **values)
    if name != "adagc":
        return registry.make_clip(name, **values, preset=preset)
    registry.check_arguments(name, values)
    return ReleaseAdaGC(**values)
