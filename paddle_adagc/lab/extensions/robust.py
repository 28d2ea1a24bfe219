# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The robust preset of AdaGC: a config's ``clip.preset: robust``.

Not in the paper. The larger an outlier, the less it is believed: cut down to
the usual norm it still makes Adam take a full step in its direction. If there
are many it is the model that has changed. ``docs/method.md`` has the judgement.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import paddle
from paddle import Tensor
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_choice
from paddle_adagc.clips import registry
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.rule_state import State
from paddle_adagc.state import Quantity

PRESETS = ("paper", "robust")
LAMBDA_REL = 2.0

_MANY_OUTLIERS = 8.0
"""So many of a tensor's outliers are doubted; from one more on, none is."""

_LEAK = 0.98
"""Of the count of outliers: it forgets within about 50 steps."""


class RobustAdaGC(ClipGradByAdaGC):
    r"""AdaGC that doubts a tensor's outliers while there are few.

    ``lambda_rel`` is 2, and outliers are scaled by :math:`h_i^4` while there
    are fewer than 8 in the leaky count :math:`o_i \leftarrow 0.98\, o_i + 1 -
    h_i^4`. :math:`\gamma_i` is fed :math:`\|h_i g_i\|` as before, and can
    double in 70 steps. Costs 4 more bytes per tensor.
    """

    _optional = (*ClipGradByAdaGC._optional, "outliers")
    _unshown = (*ClipGradByAdaGC._unshown, "outliers")

    def __init__(
        self, *, lambda_rel: float = LAMBDA_REL, **values: Any
    ) -> None:
        super().__init__(lambda_rel=lambda_rel, **values)

    def _config(self) -> dict[str, Any]:
        return {"preset": "robust", **super()._config()}

    def _quantities(self) -> list[Quantity]:
        outliers = Quantity(name="outliers", start=0.0, absent=0.0)
        return [*super()._quantities(), outliers]

    def _advance(
        self, step: int, norm: Tensor, state: State
    ) -> tuple[Tensor, State]:
        h, new = super()._advance(step, norm, state)
        outliers = state["outliers"]
        if not self._is_adaptive(step):
            return h, {**new, "outliers": outliers}
        counted = count_outliers(norm, h, outliers)
        return doubted_scale(h, outliers), {**new, "outliers": counted}

    def _fused_advance(self, *arguments: Any) -> None:
        """There is no kernel of this rule."""


def doubted_scale(h: Tensor, outliers: Tensor) -> Tensor:
    """``h ** 4`` while a tensor has few outliers, ``h`` if it has many.

    Continuous, so that ranks whose norms differ by rounding stay together.
    """
    doubt = (_MANY_OUTLIERS + 1.0 - outliers).clip(min=0.0, max=1.0)
    return h * (doubt * (h * h * h) + (1.0 - doubt))


def count_outliers(norm: Tensor, h: Tensor, outliers: Tensor) -> Tensor:
    """Leaky count of a tensor's outliers, each as ``1 - h ** 4``.

    A norm that is 0 or not finite is no observation: the count stays.
    """
    count = _LEAK * outliers + (1.0 - h * (h * h * h))
    observed = paddle.logical_and(paddle.isfinite(norm), norm > 0)
    return paddle.where(observed, count, outliers)


def make_clip(
    name: str | None = None, preset: str = "paper", **values: Any
) -> ClipGradBase:
    """:func:`paddle_adagc.make_clip`, and the robust preset of ``adagc``."""
    is_robust = check_choice("clip.preset", preset, PRESETS) == "robust"
    if is_robust and name == "adagc":
        registry.check_arguments(name, values)
        return RobustAdaGC(**values)
    return registry.make_clip(
        name, **values, **({"preset": preset} if is_robust else {})
    )


def argument_default(clip: Mapping[str, Any], argument: str) -> Any:
    """Return the default of a clip's argument, or raise KeyError."""
    make = registry.CLIPS[clip["name"]]
    if make is ClipGradByAdaGC and argument == "preset":
        return "paper"
    if clip.get("preset") == "robust" and argument == "lambda_rel":
        return LAMBDA_REL
    return inspect.signature(make).parameters[argument].default
