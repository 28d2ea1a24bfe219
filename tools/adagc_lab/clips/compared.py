# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Clips that AdaGC is compared with.

For any loop of one process, or of data-parallel ranks. Norms are float32; a
gradient with Inf or NaN becomes 0 and is no observation, as in AdaGC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import paddle
from paddle import Tensor, nn
from paddle.nn.clip import ClipGradBase

from paddle_adagc import rule
from paddle_adagc.checks import (
    check_decay,
    check_integer,
    check_positive,
)
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.parallel.topology import read_topology

if TYPE_CHECKING:
    from adagc_lab.train.config import ParallelConfig


class ComparedClip(ClipGradBase):
    """Multiply every tensor's gradient by a factor ``h`` of the rule.

    A rule is a subclass with :meth:`advance`. ``vectors`` and ``globals`` name
    what it keeps, for each tensor and for the model, with the first values.
    """

    vectors: Mapping[str, float] = {}
    globals: Mapping[str, Sequence[float]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.num_steps = 0
        self.keys: dict[str, str] = {}  # name of a parameter -> the model's
        self._names: list[str] = []
        self.state = {
            **{n: paddle.zeros([0], "float32") for n in self.vectors},
            **{n: paddle.to_tensor([*x]) for n, x in self.globals.items()},
        }

    def __str__(self) -> str:
        """Name for logs."""
        return type(self).__name__

    def bind(self, model: nn.Layer) -> None:
        """Name the tensors as the model does."""
        self.keys = {p.name: key for key, p in model.named_parameters()}

    def advance(self, norm: Tensor) -> Tensor:
        """Return ``h`` of norms, both float32 ``[num_tensors]``.

        The rule replaces ``self.state``. A norm is 0 without a gradient.
        """
        raise NotImplementedError

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: Any) -> Any:
        refuse_layout(type(self).__name__)
        pairs = {
            parameter.name: (parameter, gradient)
            for parameter, gradient in params_grads
            if gradient is not None
            and getattr(parameter, "need_clip", True) is not False
        }
        if not pairs:
            return params_grads
        self._grow([*pairs])
        nothing = None, None
        self.clip_([pairs.get(name, nothing) for name in self._names])
        self.num_steps += 1
        return params_grads

    def _grow(self, names: list[str]) -> None:
        """Give new tensors an index, and their first values."""
        new = [name for name in names if name not in self._names]
        if self._names and len(new) == len(names):
            raise RuntimeError(
                f"{self} was called for several parameter groups: give the "
                "optimizer one group"
            )
        for name, start in self.vectors.items():
            more = paddle.full([len(new)], start, "float32")
            self.state[name] = paddle.concat([self.state[name], more])
        self._names += new

    def clip_(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Clip the pairs of all known tensors in place."""
        gradients = GradientList([gradient for _, gradient in pairs])
        norm = rule.square_root(gradients.squared_norms())
        finite = paddle.isfinite(norm)
        h = self.advance(norm)
        h = paddle.where(finite, h, paddle.zeros_like(h))
        gradients.scale_(h, paddle.logical_not(finite))

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as JSON can hold it."""
        keys = [self.keys.get(name, name) for name in self._names]
        state = {name: value.tolist() for name, value in self.state.items()}
        return {"step": self.num_steps, "keys": keys, "state": state}

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what :meth:`state_dict` returned; :meth:`bind` comes before."""
        if state["state"].keys() != self.state.keys():
            raise ValueError(
                f"the state holds {sorted(state['state'])}, and {self} keeps "
                f"{sorted(self.state)}: it is another clip's"
            )
        names = {key: name for name, key in self.keys.items()}
        self.num_steps = state["step"]
        self._names = [names.get(key, key) for key in state["keys"]]
        self.state = {
            name: paddle.to_tensor(value, "float32")
            for name, value in state["state"].items()
        }


def refuse_layout(name: str, parallel: ParallelConfig | None = None) -> None:
    """Refuse ranks that hold different tensors, or parts of them.

    ``parallel`` has the degrees; None: those that fleet has now.
    """
    if parallel is None:
        topology = read_topology()
        axes = topology.model, topology.pipe, topology.sharding
        sizes = [axis.size for axis in axes]
    else:
        sizes = [parallel.tp, parallel.pp, parallel.sharding]
    kinds = "tensor parallelism", "pipeline parallelism", "sharding"
    for axis, size in zip(kinds, sizes, strict=True):
        if size > 1:
            raise ValueError(
                f"{name} under {axis} over {size} ranks: it is made for one "
                "process and for data parallelism; ClipGradByAdaGC works there"
            )


class GlobalClip(ComparedClip):
    """A clip by the norm over all tensors; a step with Inf or NaN is none."""

    def advance(self, norm: Tensor) -> Tensor:
        """Scale all tensors by the same factor."""
        total = rule.global_squared_norm(norm).sqrt().astype("float32")
        whole = paddle.isfinite(norm).all()
        h, new = self.decide(total)
        is_observed = paddle.logical_and(whole, total > 0)
        for name, value in new.items():
            old = self.state[name]
            self.state[name] = paddle.where(is_observed, value, old)
        return h.expand_as(norm)

    def decide(self, total: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return ``h`` and the new state, if the norm ``[1]`` counts."""
        raise NotImplementedError


class ClipGradByGlobalAdaGC(GlobalClip):
    """AdaGC's rule with one gamma on the norm over all tensors.

    Adaptive but not local: the variant that the paper's ablation ("Adaptivity
    Efficacy and Locality Granularity") compares AdaGC with.
    """

    globals: Mapping[str, Sequence[float]] = {"gamma": [math.inf]}

    def __init__(
        self,
        lambda_rel: float = 1.04,
        beta: float = 0.99,
        lambda_abs: float = 1.0,
        t_start: int = 100,
    ) -> None:
        super().__init__()
        self.lambda_rel = check_positive("lambda_rel", lambda_rel)
        self.lambda_abs = check_positive("lambda_abs", lambda_abs)
        self.beta = check_decay("beta", beta)
        self.t_start = check_integer("t_start", t_start, 0)

    def decide(self, total: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Apply AdaGC's rule to the norm over all tensors."""
        gamma = self.state["gamma"]
        if self.num_steps < self.t_start:
            h = rule.global_scale(total, self.lambda_abs)
            return h, {"gamma": rule.running_minimum(h * total, gamma)}
        h = rule.adaptive_scale(total, gamma, self.lambda_rel)
        new = rule.moving_average(h * total, gamma, self.beta)
        return h, {"gamma": new}


class ClipGradByZClip(GlobalClip):
    r"""ZClip (Kumar et al. 2025, arXiv 2504.02507), the authors' default.

    With :math:`n` the global norm, :math:`\mu` and :math:`\sigma^2` the moving
    mean and variance of the clipped norms, and :math:`z = (n - \mu) / (\sigma
    + 10^{-6})`:

    .. math::

        \tau &= \mu + z_{thres} \sigma / (z / z_{thres}) \text{ if } z >
        z_{thres}, \text{ else } n \\
        g &\leftarrow g \min(\tau, n_{max}) / n \\
        \mu &\leftarrow \alpha \mu + (1 - \alpha) \tau \\
        \sigma^2 &\leftarrow \alpha \sigma^2 + (1 - \alpha) (\tau - \mu)^2

    The first ``warmup_steps`` norms give the first :math:`\mu` and
    :math:`\sigma^2` (of the population); meanwhile only :math:`n_{max}` clips.
    The AdaGC paper has ``z_thres=2``.
    """

    globals: Mapping[str, Sequence[float]] = {
        "count": [0.0],
        "mean": [0.0],
        "variance": [0.0],
    }

    def __init__(
        self,
        alpha: float = 0.97,
        z_thres: float = 2.5,
        max_grad_norm: float | None = 1.0,
        warmup_steps: int = 25,
    ) -> None:
        super().__init__()
        self.alpha = check_decay("alpha", alpha)
        self.z_thres = check_positive("z_thres", z_thres)
        self.bound = _bound(max_grad_norm)
        self.warmup_steps = check_integer("warmup_steps", warmup_steps, 1)

    def decide(self, total: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Clip by the z-score of the norm over all tensors."""
        count, mean, variance = self.state.values()
        is_warm_up = count < self.warmup_steps
        spread = rule.square_root(variance)
        z = (total - mean) / (spread + 1e-6)
        is_outlier = paddle.logical_and(~is_warm_up, z > self.z_thres)
        tau = paddle.where(
            is_outlier, mean + self.z_thres**2 * spread / z, total
        )
        h = tau.clip(max=self.bound) / total
        h = paddle.where(total > 0, h, paddle.ones_like(h)).clip(max=1.0)
        # Running moments in the warm-up (Welford's), then moving averages.
        rest = paddle.full([1], 1 - self.alpha, "float32")
        weight = paddle.where(is_warm_up, 1 / (count + 1), rest)
        new = rule.between(mean, tau, weight)
        square = paddle.where(
            is_warm_up, (tau - mean) * (tau - new), (tau - new).square()
        )
        variance = rule.between(variance, square, weight)
        return h, {"count": count + 1, "mean": new, "variance": variance}


class ClipGradBySkipStep(GlobalClip):
    r"""Drop a step whose global norm stands out of those before it.

    As OLMo's skip-step optimizers (Allen Institute for AI, 2024), by the norm
    alone: with the mean :math:`\mu` and the standard deviation :math:`s` of the
    last ``window`` global norms, all gradients of a step with :math:`\|g\| >
    \mu + k s` become 0, once half a window is known. Else the global norm is
    clipped to ``max_grad_norm``. Dropped steps enter the window, too. The
    original leaves Adam's moments untouched; a clip cannot.
    """

    def __init__(
        self,
        sigma: float = 6.0,
        window: int = 128,
        max_grad_norm: float | None = 1.0,
    ) -> None:
        self.sigma = check_positive("sigma", sigma)
        self.globals = {"past": [0.0] * check_integer("window", window, 2)}
        self.bound = _bound(max_grad_norm)
        super().__init__()

    def set_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; of another window the newest norms are kept."""
        unknown = paddle.zeros_like(self.state["past"])
        super().set_state_dict(state)
        past = paddle.concat([self.state["past"], unknown])
        self.state["past"] = past[: unknown.shape[0]]

    def decide(self, total: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Drop the step, or clip it by the norm over all tensors."""
        past = self.state["past"]
        known, values = past > 0, past.astype("float64")
        count = known.astype("float64").sum()
        mean = values.sum() / count.clip(min=1.0)
        rest = paddle.where(known, values - mean, paddle.zeros_like(values))
        variance = rest.square().sum() / (count - 1).clip(min=1.0)
        is_known = count >= max(2, past.shape[0] // 2)
        largest = mean + self.sigma * variance.sqrt()
        is_dropped = paddle.logical_and(
            is_known, total.astype("float64") > largest
        )
        h = rule.global_scale(total, self.bound)
        h = paddle.where(is_dropped, paddle.zeros_like(h), h)
        return h, {"past": paddle.concat([total, past[:-1]])}


class ClipGradByGradientStabilizer(ComparedClip):
    r"""GradientStabilizer (Huang et al. 2025, arXiv 2502.17055).

    Every tensor's gradient keeps its direction; its norm :math:`n` becomes
    :math:`\hat m / (\sqrt{\hat v} + 10^{-8})`, with the moving averages
    :math:`m` of :math:`n` and :math:`v` of :math:`n^2`, corrected as Adam's
    over the steps with a norm above 0. Norms become about 1, larger or smaller
    than they were. Defaults are those of the authors' Stable-SPAM.
    """

    vectors: Mapping[str, float] = dict.fromkeys(
        ("count", "mean", "root_mean_square"), 0.0
    )

    def __init__(self, gamma1: float = 0.7, gamma2: float = 0.9) -> None:
        super().__init__()
        self.gamma1 = check_decay("gamma1", gamma1)
        self.gamma2 = check_decay("gamma2", gamma2)

    def advance(self, norm: Tensor) -> Tensor:
        """Set each norm to the ratio of its moving averages."""
        norm = norm.astype("float64")
        is_observed = paddle.logical_and(paddle.isfinite(norm), norm > 0)
        norm = paddle.where(is_observed, norm, paddle.ones_like(norm))
        count, mean, root = (x.astype("float64") for x in self.state.values())
        count = count + 1
        mean = rule.between(mean, norm, 1 - self.gamma1)
        square = rule.between(root.square(), norm.square(), 1 - self.gamma2)
        corrected = mean / (1 - paddle.full_like(count, self.gamma1) ** count)
        spread = square / (1 - paddle.full_like(count, self.gamma2) ** count)
        h = corrected / (spread.sqrt() + 1e-8) / norm
        new = {"count": count, "mean": mean, "root_mean_square": square.sqrt()}
        self.state = {
            name: paddle.where(is_observed, x.astype("float32"), old)
            for (name, x), old in zip(
                new.items(), self.state.values(), strict=True
            )
        }
        h = paddle.where(is_observed, h, paddle.ones_like(h))
        return h.astype("float32")


class ClipGradByTensorWiseGC(ComparedClip):
    r"""A fixed threshold per tensor, by its share of the model's values.

    :math:`h_i = \min(\lambda_{abs} (d_i / D) / \|g_i\|, 1)`, with :math:`d_i`
    the number of values of tensor :math:`i` and :math:`D` that of all tensors
    seen so far. Local but not adaptive: the variant that the paper's ablation
    ("Adaptivity Efficacy and Locality Granularity") compares AdaGC with.
    """

    def __init__(self, lambda_abs: float = 1.0) -> None:
        super().__init__()
        self.lambda_abs = check_positive("lambda_abs", lambda_abs)
        self._sizes: dict[str, int] = {}

    def clip_(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Count the values, then clip."""
        named = zip(self._names, pairs, strict=True)
        self._sizes |= {n: p.size for n, (p, _) in named if p is not None}
        super().clip_(pairs)

    def advance(self, norm: Tensor) -> Tensor:
        """Clip each tensor by its share of the bound."""
        sizes = [float(self._sizes[name]) for name in self._names]
        share = paddle.to_tensor(sizes, "float64") / sum(sizes)
        h = (self.lambda_abs * share).astype("float32") / norm
        return paddle.where(norm > 0, h.clip(max=1.0), paddle.ones_like(h))


def _bound(max_grad_norm: float | None) -> float:
    if max_grad_norm is None:
        return math.inf
    return check_positive("max_grad_norm", max_grad_norm)
