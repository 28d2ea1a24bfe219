# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip's rule is given in a step, and what it decides."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc import rule
from paddle_adagc.clips.memory import State
from paddle_adagc.clips.tensors import Tensors
from paddle_adagc.kernels.cuda import adaptive_step
from paddle_adagc.parallel.reduce import Reducer
from paddle_adagc.state import Quantity

VALUES = "PADDLE_ADAGC_CHECK_VALUES"
"""Environment variable: 1 checks the values of every decision, too."""


class Decision(NamedTuple):
    """What a rule decides about one call."""

    h: Tensor
    """Factor of each gradient, float32 ``[num_tensors]``, from 0 to 1, or to
    the clip's ``largest_h``. Of no consequence where the norm is not finite."""

    state: State
    """New value of each quantity that the rule carries."""

    by_kernel: Any = None
    """The rest of the step, where the kernel that decided has done that too."""


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One call of a clip, as its rule sees it.

    Vectors have an entry for each tensor known so far, in the order of
    :attr:`keys`: on the same device, of the whole tensors, whichever parts of
    them this rank holds.
    """

    index: int
    """Counts optimizer steps from 0, or from ``restart_warmup()``."""

    squared_norm: Tensor
    """Squared L2 norm of each gradient, float32 ``[num_tensors]``."""

    state: State
    """Quantity -> its vector; start values for new tensors."""

    reducer: Reducer
    """Sums and gathers over ranks, for a rule that needs other tensors."""

    present: Sequence[int]
    """Indexes of the tensors with a gradient."""

    begins: bool
    """Whether this is the first call of an optimizer step."""

    tensors: Tensors
    """Names, sizes and layout of the tensors."""

    num_nonfinite: Tensor
    """Earlier steps with Inf or NaN, int32 ``[num_tensors]``."""

    nonfinite: str
    """The clip's argument."""

    is_on_gpu: bool
    """Whether the CUDA kernels have some of the gradients."""

    @functools.cached_property
    def norm(self) -> Tensor:
        """L2 norm of each gradient, float32 ``[num_tensors]``.

        0 without a gradient; Inf or NaN where the gradient holds one.
        """
        return rule.square_root(self.squared_norm)

    @property
    def keys(self) -> list[str]:
        """Name of each tensor; the model's, once the clip is bound."""
        return self.tensors.keys

    @property
    def sizes(self) -> list[int]:
        """Number of values of each whole tensor; 0: not known so far."""
        reducer = self.reducer
        return self.tensors.sizes(
            reducer.num_tp_ranks, reducer.num_expert_ranks
        )

    def adaptive(
        self, lambda_rel: rule.PerTensor, beta: rule.PerTensor
    ) -> Decision:
        """Apply Algorithm 1 lines 13 and 15 to the quantity ``gamma``.

        On an NVIDIA GPU by one kernel, if all tensors share the arguments.

        Args:
            lambda_rel: By which a norm may exceed its gamma: a number, or
                float64 ``[num_tensors]``.
            beta: Smoothing coefficient of gamma, of the same form.

        Returns:
            ``h`` and the new ``gamma``.
        """
        gamma = self.state["gamma"]
        is_known = isinstance(lambda_rel, float) and isinstance(beta, float)
        if self.is_on_gpu and is_known and self.nonfinite != "raise":
            done = adaptive_step(
                self.squared_norm,
                gamma,
                self.num_nonfinite,
                lambda_rel=lambda_rel,
                beta=beta,
                zeroes_nonfinite=self.nonfinite == "zero",
            )
            if done is not None:
                return Decision(done.h, {"gamma": done.gamma}, done)
        h = rule.adaptive_scale(self.norm, gamma, lambda_rel)
        average = rule.moving_average(h * self.norm, gamma, beta)
        return Decision(h, {"gamma": average})

    def checked(
        self,
        decision: Decision,
        quantities: Sequence[Quantity],
        largest_h: float = 1.0,
    ) -> Decision:
        """Return a decision in float32; refuse another form than announced.

        Nothing here waits for the device, unless the environment sets
        :data:`VALUES` to 1: the values of ``h`` are then checked, too.

        Args:
            decision: What a rule returned.
            quantities: What the rule announced by ``keep()``.
            largest_h: What ``h`` may be.

        Raises:
            ValueError: A vector is missing, unknown or of another shape.
        """
        h, state, by_kernel = decision
        size = self.squared_norm.shape[0]
        h, new = _float32("h", h, [size]), {}
        for quantity in quantities:
            name = quantity.name
            if name in state:
                shape = [1] if quantity.is_global else [size]
                new[name] = _float32(name, state[name], shape)
            elif quantity.absent is None:
                raise ValueError(
                    f"advance() returns no {name!r}, which keep() declared: "
                    f"return step.state[{name!r}] to leave it as it is"
                )
        if len(new) < len(state):
            raise ValueError(
                f"advance() returns {sorted(state.keys() - new.keys())}, which "
                "keep() did not declare"
            )
        if os.environ.get(VALUES) == "1":
            self._check_values(h, largest_h)
        return Decision(h, new, by_kernel)

    def _check_values(self, h: Tensor, largest: float) -> None:
        factors = h.numpy()
        is_right = (factors >= 0) & (factors <= largest)
        for index in np.flatnonzero(np.isfinite(self.norm.numpy()) & ~is_right):
            raise ValueError(
                f"advance() returns h={factors[index]} for "
                f"{self.keys[index]!r}: it must be between 0 and {largest:g}"
            )


def _float32(name: str, vector: Any, shape: list[int]) -> Tensor:
    """Refuse what is no vector of this shape; a rule may have made it float64.

    Of a constant of the default dtype, for example.
    """
    if not isinstance(vector, Tensor):
        raise ValueError(f"advance() returns {name}={vector!r}, no tensor")
    if vector.dtype == paddle.float32 and vector.shape == shape:
        return vector
    if vector.shape != shape or not vector.is_floating_point():
        raise ValueError(
            f"advance() returns {name} of shape {[*vector.shape]} and "
            f"{vector.dtype}: it must be float32 of shape {shape}"
        )
    return vector.astype("float32")
