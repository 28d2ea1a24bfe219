# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""AdaGC's variants of this project: judged, and not recommended.

None is in the paper; ``docs/method.md`` has the judgements. Configs name them
by ``clip.lambda_dev`` and ``clip.preset``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import paddle
from paddle import Tensor
from paddle.nn.clip import ClipGradBase

from paddle_adagc import rule
from paddle_adagc.checks import check_choice, check_not_negative, check_positive
from paddle_adagc.clips import registry
from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.clips.step import Decision, Step
from paddle_adagc.state import Quantity

PRESETS = ("paper", "robust")
LAMBDA_REL = 2.0

_MANY_OUTLIERS = 8.0
"""So many of a tensor's outliers are doubted; from one more on, none is."""

_LEAK = 0.98
"""Of the count of outliers: it forgets within about 50 steps."""


class DeviationAdaGC(ClipGradByAdaGC):
    r"""AdaGC whose threshold knows the usual spread of a tensor's norm.

    A norm may exceed :math:`\gamma_i` by ``lambda_dev`` mean absolute
    deviations :math:`s_i`: the threshold is :math:`\max(\lambda_{rel}
    \gamma_i,\ \gamma_i + \lambda_{dev} s_i)`, and :math:`s_i \leftarrow \beta
    s_i + (1 - \beta)\, |\, \|h_i g_i\| - \gamma_i|` from the first step on. The
    usual changes of a norm then pass, and gamma can follow growing norms; a
    sudden outlier passes with at most that spread. Costs 4 more bytes per
    tensor.
    """

    optional_quantities = (
        *ClipGradByAdaGC.optional_quantities,
        "deviation",
    )

    def __init__(self, *, lambda_dev: float, **values: Any) -> None:
        self.lambda_dev = check_positive("lambda_dev", lambda_dev)
        super().__init__(**values)
        if self.overrides.names:
            raise ValueError(
                "with lambda_dev no tensor has values of its own: overrides "
                f"{self.overrides.settings}"
            )

    def arguments(self) -> dict[str, Any]:
        return {"lambda_dev": self.lambda_dev, **super().arguments()}

    def _quantities(self) -> list[Quantity]:
        deviation = Quantity(name="deviation", start=0.0, tolerance=1e-2)
        return [*super()._quantities(), deviation]

    def advance(self, step: Step) -> Decision:
        """Widen the threshold by the deviation."""
        h, new, _ = super().advance(step)
        norm, gamma = step.norm, step.state["gamma"]
        deviation = step.state["deviation"]
        if self._is_adaptive(step.index):
            wide = gamma + self.lambda_dev * deviation
            h = paddle.maximum(h, rule.adaptive_scale(norm, wide, 1.0))
            new["gamma"] = rule.moving_average(h * norm, gamma, self.beta)
        passed = h * norm
        change = (passed - gamma).abs()
        average = self.beta * deviation + (1.0 - self.beta) * change
        known = paddle.logical_and(_observed(passed), paddle.isfinite(gamma))
        new["deviation"] = paddle.where(known, average, deviation)
        return Decision(h, new)


class RobustAdaGC(ClipGradByAdaGC):
    r"""AdaGC that doubts a tensor's outliers while there are few.

    The larger an outlier, the less it is believed: cut down to the usual norm
    it still makes Adam take a full step in its direction. If there are many it
    is the model that has changed.

    ``lambda_rel`` is 2, and outliers are scaled by :math:`h_i^4` while there
    are fewer than 8 in the leaky count :math:`o_i \leftarrow 0.98\, o_i + 1 -
    h_i^4`. :math:`\gamma_i` is fed :math:`\|h_i g_i\|` as before, and can
    double in 70 steps. Costs 4 more bytes per tensor.
    """

    optional_quantities = (
        *ClipGradByAdaGC.optional_quantities,
        "outliers",
    )

    def __init__(
        self, *, lambda_rel: float = LAMBDA_REL, **values: Any
    ) -> None:
        super().__init__(lambda_rel=lambda_rel, **values)

    def arguments(self) -> dict[str, Any]:
        return {"preset": "robust", **super().arguments()}

    def _quantities(self) -> list[Quantity]:
        outliers = Quantity(name="outliers", start=0.0, absent=0.0)
        return [*super()._quantities(), outliers]

    def advance(self, step: Step) -> Decision:
        """Scale outliers down further, while there are few."""
        h, new, _ = super().advance(step)
        new["outliers"] = outliers = step.state["outliers"]
        if not self._is_adaptive(step.index):
            return Decision(h, new)
        cube = h * h * h
        count = _LEAK * outliers + (1.0 - h * cube)
        new["outliers"] = paddle.where(_observed(step.norm), count, outliers)
        # Continuous: ranks whose norms differ by rounding stay together.
        doubt = (_MANY_OUTLIERS + 1.0 - outliers).clip(min=0.0, max=1.0)
        return Decision(h * (doubt * cube + (1.0 - doubt)), new)


def _observed(norm: Tensor) -> Tensor:
    """Tell where a norm says something: not where it is 0 or not finite."""
    return paddle.logical_and(paddle.isfinite(norm), norm > 0)


def make_clip(
    name: str | None = None,
    preset: str = "paper",
    lambda_dev: float = 0.0,
    **values: Any,
) -> ClipGradBase:
    """:func:`paddle_adagc.make_clip`, and these variants of ``adagc``."""
    own: dict[str, Any] = {}
    if check_not_negative("clip.lambda_dev", lambda_dev):
        own["lambda_dev"] = lambda_dev
    if check_choice("clip.preset", preset, PRESETS) == "robust":
        own["preset"] = preset
    if name != "adagc" or not own:
        return registry.make_clip(name, **values, **own)
    registry.check_arguments(name, values)
    if len(own) == 2:
        raise ValueError(
            f"clip.preset {preset!r} and clip.lambda_dev {lambda_dev!r} are "
            "two rules: give one of them"
        )
    if lambda_dev:
        return DeviationAdaGC(lambda_dev=lambda_dev, **values)
    return RobustAdaGC(**values)


def argument_default(clip: Mapping[str, Any], argument: str) -> Any:
    """Return the default of a clip's argument, or raise KeyError."""
    make = registry.find_clip(clip["name"])
    if make is ClipGradByAdaGC and argument in ("preset", "lambda_dev"):
        return inspect.signature(make_clip).parameters[argument].default
    if clip.get("preset") == "robust" and argument == "lambda_rel":
        return LAMBDA_REL
    return inspect.signature(make).parameters[argument].default
