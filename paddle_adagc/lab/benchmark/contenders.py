# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip step is compared with, each ready to be timed."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import paddle
from paddle import Tensor, _C_ops
from paddle.nn.clip import _clip_by_global_norm_using_mp_type

from paddle_adagc import ClipGradByAdaGC, kernels
from paddle_adagc.kernels.operators import OperatorTensors, dense_float

Pairs = list[tuple[Tensor, Tensor]]
_FAR = 10.0
"""Gradients have a norm of about 1: thresholds of the tensors left alone."""

_NEAR = 0.8
"""Thresholds of the tensors that are clipped."""


class Contender(abc.ABC):
    """One way to clip a list of gradients.

    Args:
        pairs: Parameters and gradients, each of norm about 1.
        clipped: Whether each tensor is to be scaled.
    """

    name: str

    def __init__(self, pairs: Pairs, clipped: np.ndarray) -> None:
        self.pairs = pairs
        self.clipped = clipped

    def prepare(self, originals: Sequence[Tensor]) -> None:
        """Before each step, untimed: the gradients as they were.

        An optimizer asks each pair these two questions right before it calls
        its clip: so Python's objects are in the processor's cache, values not.
        """
        for (_, gradient), original in zip(self.pairs, originals, strict=True):
            paddle.assign(original, gradient)
        for parameter, gradient in self.pairs:
            parameter.stop_gradient, gradient.is_selected_rows()

    @abc.abstractmethod
    def step(self) -> Any:
        """Make the step that is timed."""


class AdaGC(Contender):
    """ClipGradByAdaGC in its adaptive phase."""

    name = "AdaGC"

    def __init__(self, pairs: Pairs, clipped: np.ndarray) -> None:
        super().__init__(pairs, clipped)
        model = paddle.nn.ParameterList([parameter for parameter, _ in pairs])
        self._clip = ClipGradByAdaGC(t_start=0)
        self._clip.bind(model)
        gamma = np.where(clipped, _NEAR, _FAR)
        keys = [name for name, _ in model.named_parameters()]
        self._state = {
            "step": 1,
            "gamma": dict(zip(keys, gamma, strict=True)),
            "config": {},
        }

    def prepare(self, originals: Sequence[Tensor]) -> None:
        """Also the thresholds of the first step."""
        self._clip.set_state_dict(self._state)
        super().prepare(originals)

    def step(self) -> Any:
        """One call of the clip."""
        return self._clip(self.pairs)


class AdaGCByOperators(AdaGC):
    """The same through Paddle's operators alone, as without a compiler."""

    name = "AdaGC, operators only"

    def step(self) -> Any:
        """One call of the clip, without the compiled loops."""
        with mock.patch.object(kernels, "BACKENDS", (OperatorTensors,)):
            return super().step()


class GlobalGC(Contender):
    """Paddle's ``ClipGradByGlobalNorm``, which scales every tensor.

    It has no 16-bit norms on a CPU: there by Paddle's own switch to float32.
    """

    name = "GlobalGC"

    def __init__(self, pairs: Pairs, clipped: np.ndarray) -> None:
        super().__init__(pairs, clipped)
        self._clip = paddle.nn.ClipGradByGlobalNorm(_NEAR)

    def step(self) -> Any:
        """One call of the clip."""
        previous = _clip_by_global_norm_using_mp_type(True)
        try:
            return self._clip(self.pairs)
        finally:
            _clip_by_global_norm_using_mp_type(previous)


class ByNorm(Contender):
    """Paddle's ``ClipGradByNorm``: a fixed threshold per tensor."""

    name = "ClipGradByNorm"

    def __init__(self, pairs: Pairs, clipped: np.ndarray) -> None:
        super().__init__(pairs, clipped)
        self._clip = paddle.nn.ClipGradByNorm(_NEAR)

    def step(self) -> Any:
        """One call of the clip."""
        return self._clip(self.pairs)


class WaitingLoop(Contender):
    """A loop that asks the device for every tensor's norm in every step.

    As the ``ClipGradByAdaptiveNorm`` of Paddle's develop branch does.
    """

    name = "loop that waits per tensor"

    def step(self) -> Any:
        """Norm, comparison on the host, scaling where it is needed."""
        for (_, gradient), is_clipped in zip(
            self.pairs, self.clipped, strict=True
        ):
            norm = _C_ops.squared_l2_norm(dense_float(gradient)).sqrt()
            threshold = _NEAR if is_clipped else _FAR
            if norm > threshold:
                gradient.multiply_((threshold / norm).astype(gradient.dtype))


class MemoryFloor(Contender):
    """One read of all gradients, one read-write of those that are clipped.

    Over one contiguous block each, by BLAS (``dot``) and NumPy, as float32.
    """

    name = "memory floor"

    def __init__(self, pairs: Pairs, clipped: np.ndarray) -> None:
        super().__init__(pairs, clipped)
        sizes = np.array([int(np.prod(g.shape)) for _, g in pairs])
        # Two 16-bit values are as many bytes as one of float32.
        share = pairs[0][1].element_size() / 4
        self._all = np.ones(int(share * sizes.sum()), np.float32)
        self._part = self._all[: int(share * sizes[clipped].sum())]

    def step(self) -> Any:
        """Make the two passes."""
        np.dot(self._all, self._all)
        np.multiply(self._part, np.float32(1.0), out=self._part)


CONTENDERS: tuple[type[Contender], ...] = (
    MemoryFloor,
    AdaGC,
    AdaGCByOperators,
    GlobalGC,
    ByNorm,
    WaitingLoop,
)


def able(dtype: str) -> list[type[Contender]]:
    """Contenders that Paddle has kernels for: on a CPU none for ByNorm."""
    return [
        kind
        for kind in CONTENDERS
        if dtype == "float32"
        or kind is not ByNorm
        or paddle.device.get_device() != "cpu"
    ]
