# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``ClipGradByAdaGC``: AdaGC as a ``grad_clip`` for Paddle's optimizers."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import paddle

from paddle_adagc import rule
from paddle_adagc.checks import (
    Argument,
    check_bool,
    check_choice,
    check_decay,
    check_integer,
    check_positive,
)
from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.gradients import NonFinite
from paddle_adagc.clips.overrides import Overrides
from paddle_adagc.clips.step import Decision, Step
from paddle_adagc.state import Quantity

Init = Literal["warmup_min", "warmup_ema"]


class ClipGradByAdaGC(TensorScalingClip):
    r"""Adaptive per-tensor gradient clipping (AdaGC, arXiv 2502.11034).

    With :math:`g_i` the gradient of tensor :math:`i`, :math:`\gamma_i` its
    reference norm, and steps :math:`t` counted from 0 (Algorithm 1):

    .. math::

        t < T_{start}:\quad & h = \min(\lambda_{abs} / \|g\|,\ 1), \qquad
        \gamma_i \leftarrow \min(\gamma_i,\ \|h g_i\|) \\
        t \ge T_{start}:\quad & h_i = \min(\lambda_{rel} \gamma_i / \|g_i\|,\
        1), \qquad \gamma_i \leftarrow \beta \gamma_i + (1 - \beta)
        \|h_i g_i\|

    A norm of zero leaves :math:`\gamma_i` alone. A tensor first seen after the
    warm-up starts from its first non-zero norm, unclipped; so does every tensor
    with ``t_start=0``.

    Not in the paper: a warm-up step that the others outvote does not set
    :math:`\gamma` (:func:`paddle_adagc.rule.supported_minimum`). One gradient
    times 1e6 makes such a step: through :math:`h` all other norms become tiny.
    Costs 4 more bytes per tensor until the end of the warm-up.

    Args:
        lambda_rel: :math:`\lambda_{rel}` > 0, by which a tensor's norm may
            exceed its reference.
        beta: :math:`\beta`, smoothing coefficient in [0, 1).
        lambda_abs: :math:`\lambda_{abs}`, global norm allowed in the warm-up,
            of one parameter group at a time; ``math.inf``: any.
        t_start: :math:`T_{start}`, number of warm-up steps.
        init: How gamma starts.

            - ``"warmup_min"``: as above, the paper's.
            - ``"warmup_ema"``, not in the paper: where the norms are. In the
              same warm-up :math:`\gamma_i` is a moving average of the norms
              before the clip. Afterwards it is fed :math:`\min(\|g_i\|,\
              \max(\lambda_{rel},\ 1 + T_{start} / t)\, \gamma_i)`. That is
              Algorithm 1 from step :math:`T_{start} / (\lambda_{rel} - 1)` on
              (2,500).
        strict: True: every warm-up step enters the minimum, as in Algorithm 1.
            It matters only with ``init="warmup_min"``.
        nonfinite: What to do with a gradient that holds Inf or NaN, or whose
            float32 norm overflows: ``"zero"`` it, ``"raise"`` (waits for the
            device and all ranks in every step; without fleet only a rank that
            finds it raises) or ``"propagate"`` it. gamma stays in every case,
            and the tensor is left out of the warm-up's global norm.
        overrides: Other values for some tensors: regular expression, which
            ``re.search`` looks for in the tensor's key -> dict of
            ``lambda_rel``, ``beta``; the clip's values replace missing ones.
            A key may match only one expression. None is Paddle's
            ``need_clip=False``: the gradient stays as it is in every phase, Inf
            and NaN too, and is in no norm.

    An argument can be changed between two steps (``clip.lambda_rel = 1.1``), on
    every rank of a distributed run; ``init``, ``strict`` and ``overrides``
    cannot.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of its range. In a step: a tensor matches
            two ``overrides``; or no tensor of any rank matches one (checked in
            the first step, without :meth:`bind` in the second).

    Example:
        >>> import paddle
        >>> from paddle_adagc import ClipGradByAdaGC
        >>> model = paddle.nn.Linear(4, 2)
        >>> clip = ClipGradByAdaGC(t_start=100)
        >>> clip.bind(model)
        >>> optimizer = paddle.optimizer.AdamW(
        ...     3e-4, parameters=model.parameters(), grad_clip=clip
        ... )
        >>> model(paddle.ones([3, 4])).sum().backward()
        >>> optimizer.step()
        >>> sorted(clip.metrics()["tensors"])
        ['bias', 'weight']
    """

    lambda_rel = Argument(check_positive)
    lambda_abs = Argument(
        lambda name, value: (
            math.inf if value == math.inf else check_positive(name, value)
        )
    )
    beta = Argument(check_decay)
    t_start = Argument(partial(check_integer, minimum=0))
    init = Argument(
        partial(check_choice, choices=get_args(Init)), is_fixed=True
    )
    strict = Argument(check_bool, is_fixed=True)
    overrides = Argument(lambda _, value: Overrides(value), is_fixed=True)

    optional_quantities: Sequence[str] = ("support",)

    def __init__(
        self,
        *,
        lambda_rel: float = 1.04,
        beta: float = 0.99,
        lambda_abs: float = 1.0,
        t_start: int = 100,
        init: Init = "warmup_min",
        strict: bool = False,
        nonfinite: NonFinite = "zero",
        overrides: Mapping[str, Mapping[str, float] | None] | None = None,
    ) -> None:
        super().__init__(nonfinite=nonfinite)
        self.overrides = {} if overrides is None else overrides
        if None in self.overrides.settings.values():
            self.leaves_out = self.overrides.leaves_out
        self.lambda_rel, self.lambda_abs = lambda_rel, lambda_abs
        self.beta, self.t_start, self.init = beta, t_start, init
        self.step_to_compare = max(self.t_start, 1)
        self.strict = strict
        self.keep(*self._quantities())
        if init != "warmup_ema":  # there gamma may grow by more
            self._warn_of_shrinking()

    def _warn_of_shrinking(self) -> None:
        effect = (
            "gamma can only shrink, so gradients shrink, too; the paper's "
            "value is 1.04"
        )
        if self.lambda_rel <= 1:
            warnings.warn(
                f"lambda_rel={self.lambda_rel}: {effect}", stacklevel=4
            )
        for pattern, own in self.overrides.settings.items():
            factor = (own or {}).get("lambda_rel", math.inf)
            if factor <= 1:
                warnings.warn(
                    f"lambda_rel={factor} for {pattern!r}: {effect}",
                    stacklevel=4,
                )

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        own = copy.deepcopy(self.overrides.settings)
        return {**super().arguments(), "overrides": own}

    def idle_arguments(self) -> Sequence[str]:
        """Return those of the warm-up, once it is over."""
        if self.warmup_left:
            return ()
        index = self.num_steps - self._memory.start
        starts = self.init == "warmup_ema" and self._grows_faster(index)
        rest = () if starts else ("t_start",)
        return ("lambda_abs", "strict", *rest)

    def _quantities(self) -> list[Quantity]:
        # Not observed so far.
        gamma = Quantity(
            name="gamma", start=math.inf, is_positive=True, is_norm=True
        )
        quantities = [gamma]
        if self._votes:
            full = rule.FULL_SUPPORT
            quantities += [Quantity(name="support", start=0.0, absent=full)]
        return quantities

    @property
    def _votes(self) -> bool:
        """Whether warm-up steps that differ from most do not set gamma."""
        return self.init == "warmup_ema" or not self.strict

    def advance(self, step: Step) -> Decision:
        """Apply Algorithm 1 to the norms of one call."""
        if self.overrides.awaits_tensors:
            self._check_overrides(step)
        if step.index >= self._num_warmup:
            if step.index == self.t_start + 1 and step.begins:
                self._warn_of_low_gammas()
            values: dict[str, Any]
            values = {"lambda_rel": self.lambda_rel, "beta": self.beta}
            if self.overrides.names:
                values |= self.overrides.vectors(step.keys, values)
            if self.init == "warmup_ema" and self._grows_faster(step.index):
                return self._still_starting(step, **values)
            return step.adaptive(**values)
        return self._warm_up(step)

    def _warn_of_low_gammas(self) -> None:
        """Warn of tensors whose norm is far above the warm-up's smallest.

        Looks at the first step after the warm-up, whose parameter groups have
        all been here; on each rank for itself. Waits for the device, this once.
        """
        if self.init != "warmup_min" or not self.t_start:
            return
        rows = self.snapshot().rows()
        norm, gamma, h = (rows.columns[x] for x in ("norm", "gamma", "h"))
        low = rows.choose(np.isfinite(norm) & (10 * gamma < norm) & (h < 1))
        if not low.keys:
            return
        names = ", ".join(low.keys[:3]) + ", ..." * (len(low.keys) > 3)
        h = low.columns["h"]
        growth = max((1 - self.beta) * (self.lambda_rel - 1), 0)
        warnings.warn(
            f"{len(low.keys)} of {len(rows.keys)} tensors ({names}) leave the "
            "warm-up with gamma below a tenth of their norm: step "
            f"{self.num_steps} multiplied their gradients by h of "
            f"{h.min():.2g} to {h.max():.2g}, and gamma grows by at most "
            f"{growth:.2%} a step. gamma is the smallest norm of the warm-up; "
            'init="warmup_ema" starts it where the norms are',
            stacklevel=9,
        )

    def _check_overrides(self, step: Step) -> None:
        """Refuse a pattern of no tensor, once all tensors are known.

        Where ranks hold different tensors: one gather per pattern, once.
        """
        # Unbound, it knows the tensors of all groups after a step from here on.
        if step.tensors.is_bound or (step.begins and self._calls):
            self.overrides.refuse_unused(step.keys, step.reducer.any_rank)

    @property
    def _num_warmup(self) -> int:
        return self.t_start

    def _grows_faster(self, index: int) -> bool:
        """Tell whether gamma may grow by more than Algorithm 1 allows."""
        values = [own for own in self.overrides.settings.values() if own]
        factors = [own.get("lambda_rel", self.lambda_rel) for own in values]
        lowest = min([self.lambda_rel, *factors])
        return rule.growth_bound(index, self.t_start, lowest) > lowest

    def _still_starting(
        self, step: Step, lambda_rel: rule.PerTensor, beta: rule.PerTensor
    ) -> Decision:
        """Clip as Algorithm 1; gamma may grow faster."""
        gamma = step.state["gamma"]
        bound = rule.growth_bound(step.index, self.t_start, lambda_rel)
        new = rule.bounded_average(step.norm, gamma, beta, bound)
        h = rule.adaptive_scale(step.norm, gamma, lambda_rel)
        return Decision(h, {"gamma": new})

    def _warm_up(self, step: Step) -> Decision:
        """GlobalGC. In a hybrid-parallel run: one all-reduce of 3 numbers."""
        norm, reducer = step.norm, step.reducer
        gamma, support = step.state["gamma"], step.state.get("support")
        if support is None and self._votes:  # t_start was raised after it
            support = paddle.full_like(gamma, rule.FULL_SUPPORT)
        counted = reducer.counted(norm)
        squared_norm = rule.global_squared_norm(counted)
        sums = [squared_norm, *rule.log_change(counted, gamma)]
        sums = reducer.global_sum(paddle.concat(sums)).split(3)
        squared_norm, change, count = sums
        total = squared_norm.sqrt().astype("float32")
        h = rule.global_scale(total, self.lambda_abs)
        new = {"gamma": gamma}
        if self.init == "warmup_ema":
            mean = rule.mean_change(change, count, paddle.ones_like(h))
            new["gamma"], new["support"] = rule.supported_average(
                norm, gamma, support, mean, rule.warmup_beta(self.t_start)
            )
        elif support is not None:
            mean = rule.mean_change(change, count, h)
            new["gamma"], new["support"] = rule.supported_minimum(
                h * norm, gamma, support, mean
            )
        else:
            new["gamma"] = rule.running_minimum(h * norm, gamma)
        return Decision(h.expand_as(norm), new)
