# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip's rule is given in a step, and what it decides."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from paddle import Tensor

from paddle_adagc import rule
from paddle_adagc.clips.memory import State
from paddle_adagc.clips.tensors import Tensors
from paddle_adagc.kernels.cuda import adaptive_step
from paddle_adagc.parallel.reduce import Reducer


class Decision(NamedTuple):
    """What a rule decides about one call."""

    h: Tensor
    """Factor of each gradient, float32 ``[num_tensors]``. Of no consequence
    where the norm is not finite."""

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

    squared_norm: Tensor  # of each gradient, float32 [num_tensors]
    state: State
    """Quantity -> its vector; start values for new tensors."""

    reducer: Reducer
    """Sums and gathers over ranks, for a rule that needs other tensors."""

    present: Sequence[int]  # indexes of the tensors with a gradient
    begins: bool  # this is the first call of an optimizer step
    tensors: Tensors
    num_nonfinite: Tensor  # int32 [num_tensors], before this step
    nonfinite: str
    is_on_gpu: bool  # the CUDA kernels have some of the gradients

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
        return self.tensors.sizes(self.reducer.num_tp_ranks)

    def adaptive(
        self, lambda_rel: rule.PerTensor, beta: rule.PerTensor
    ) -> Decision:
        """Apply Algorithm 1 lines 13 and 15 to the quantity ``gamma``.

        On an NVIDIA GPU by one kernel, if all tensors share the arguments.
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
