# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``ClipGradByAdaGC``: AdaGC as a ``grad_clip`` for Paddle's optimizers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import paddle
from paddle import Tensor

from paddle_adagc.checks import KnownAttributes
from paddle_adagc.clips.arguments import CHECKS, FIXED, Init, NonFinite
from paddle_adagc.clips.last_step import LastStep
from paddle_adagc.clips.mistakes import warn_of_shrinking
from paddle_adagc.clips.overrides import Overrides
from paddle_adagc.clips.progress import NewTensors, Progress
from paddle_adagc.clips.step import Pairs, clip_pairs
from paddle_adagc.paddle_internals import (
    EagerClip,
    eager,
    refuse_buffers,
    unchecked,
)
from paddle_adagc.parallel.units import Declared


class ClipGradByAdaGC(KnownAttributes, EagerClip):
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
    Costs 4 more bytes per tensor until the end of the warm-up. The second step
    after it waits for the device, and warns if the warm-up left :math:`\gamma`
    of some tensors below a tenth of their norm.

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
              (2,500), or never if :math:`\lambda_{rel} \le 1`. For LoRA and
              zero-initialised layers, whose gradients begin at zero.
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

    lambda_rel: float
    beta: float
    lambda_abs: float
    t_start: int
    init: Init
    strict: bool
    nonfinite: NonFinite
    overrides: Any  # any dict is set, and an Overrides is kept

    _checks: ClassVar[dict[str, Any]] = {
        **CHECKS,
        "overrides": lambda _, value: Overrides(value),
        "should_comm_on_shard_dim": refuse_buffers,
    }
    _fixed = FIXED

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
        super().__init__()
        self.lambda_rel, self.lambda_abs = lambda_rel, lambda_abs
        self.beta, self.t_start, self.init = beta, t_start, init
        self.strict, self.nonfinite = strict, nonfinite
        self.overrides = {} if overrides is None else overrides
        self._follows = False  # the gradients stay as they are
        self._counts_support = not strict or init == "warmup_ema"
        self._progress = Progress(self)
        warn_of_shrinking(self)

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        values = {name: getattr(self, name) for name in CHECKS}
        return {**values, "overrides": copy.deepcopy(self.overrides.by_pattern)}

    def __repr__(self) -> str:
        """Class and arguments."""
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.arguments().items())
        return f"{type(self).__name__}({arguments})"

    __str__ = __repr__

    @property
    def num_steps(self) -> int:
        """Number of training steps that went through this clip."""
        self._progress.settle()
        return self._progress.steps.num_steps

    @property
    def warmup_left(self) -> int:
        """Number of steps until the warm-up is over; 0 if it is."""
        end = self._progress.memory.start + self.t_start
        return max(end - self.num_steps, 0)

    @eager
    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: Pairs) -> Pairs:
        pairs = list(params_grads)
        if pairs and isinstance(pairs[0], Tensor):
            raise TypeError(
                f"{type(self).__name__} takes pairs of parameter and gradient, "
                "not parameters: give it to an optimizer as grad_clip"
            )
        return clip_pairs(self, pairs)

    def __copy__(self) -> ClipGradByAdaGC:
        return copy.deepcopy(self)

    def bind(
        self, model: paddle.nn.Layer, units: Declared | None = None
    ) -> None:
        """Name the tensors as the model does (``layers.0.mlp.up.weight``).

        Without it they carry Paddle's automatic names (``linear_0.w_0``),
        which depend on the order in which a process makes its layers.

        A hybrid-parallel run needs it, before fleet wraps the optimizer, and so
        does ``group_sharded_parallel``, with the model that it returns. Bind
        again after the parameters change (LoRA, another head), as long as there
        is no state.

        Args:
            model: Holds all parameters of the optimizer. Wrappers such as
                ``paddle.DataParallel`` are looked through.
            units: Which parameters hold several of the paper's tensors, each of
                which then has its own norm and gamma: pattern of a key ->
                :class:`paddle_adagc.parallel.units.Units`, a dict of its
                fields, or ``"experts"`` (along axis 0); or a function of key
                and parameter that returns one of these, or None. An attribute
                ``adagc_units`` of the parameter counts if this is no dict, and
                is set for other clips. Experts with three axes are recognised.

        Raises:
            RuntimeError: The clip has made steps, or has loaded a state.
            TypeError: ``model`` is no layer.
            ValueError: No norm would be right in the model's layout; or
                ``units`` do not fit the model.
        """
        self._progress.bind(model, units)

    def restart_warmup(self) -> None:
        """Forget what the rule has observed; the next step begins its warm-up.

        :attr:`num_steps` continues, and the state holds the restart. In a
        distributed run every rank has to call it, between two steps.
        """
        self._progress.restart_warmup()

    @unchecked
    def state_dict(self) -> dict[str, Any]:
        """State to save beside the optimizer's.

        Returns:
            ``step`` (int, optimizer steps made); ``gamma``, and in the warm-up
            ``support``, each a dict of tensor key -> float32 tensor of shape
            ``[]``; ``config`` (the constructor's arguments); after
            :meth:`restart_warmup` its step, ``warmup_start``. It is about the
            tensors of this rank alone: those of its pipeline stage and experts,
            or that it owns (V1, stage 2).
        """
        return self._progress.state_of_rank()

    def full_state_dict(self) -> dict[str, Any]:
        """State of the whole model, which any parallel layout can load.

        In a distributed run every rank has to call it; one of them saves. A
        warning names tensors whose gradients had Inf or NaN on only some of the
        ranks with copies of them.

        Returns:
            The dict of :meth:`state_dict`, of all ranks' tensors.

        Raises:
            RuntimeError: Ranks disagree about a number that they all follow, or
                some rank did not call it, which shows when the exchange fails:
                at the latest after the process group's timeout.
        """
        return self._progress.state_of_all_ranks().to_dict()

    def set_state_dict(
        self,
        state: dict[str, Any],
        *,
        rename: Mapping[str, str] | None = None,
        new_tensors: NewTensors = "raise",
    ) -> None:
        """Load a state; a refused one leaves the clip as it was.

        The arguments of this clip stay; a warning names those that differ in
        the state.

        Args:
            state: From :meth:`state_dict`; numbers of tensors may be tensors,
                arrays or Python's.
            rename: For the state of the same network under other names:
                beginning of a key there -> beginning here. A bare
                ``PipelineLayer`` numbers its layers: ``{"0": "embed",
                "1": "layers.0"}``. A state that was saved unbound has the names
                that Paddle gives; the error says how to rename them.
            new_tensors: What to do if the model has other tensors than the
                state: ``"raise"`` an error, or ``"start"`` the clip of new ones
                (a new head, LoRA) as at the first step, and drop those that are
                gone. The log names each. One whose name and not whose shape
                stayed keeps its numbers: ``del state["gamma"]["head.weight"]``,
                and what else the state has of it, makes it new.

        Raises:
            TypeError: ``state`` is not a dict.
            ValueError: It is not a state of this class and of this model's
                tensors, or ``rename`` does not fit them.
        """
        self._progress.load(state, rename, new_tensors)

    def metrics(self) -> dict[str, Any]:
        """Return numbers of the last optimizer step; may wait for the device.

        They are about the tensors that this rank holds (under owner-based
        sharding: owns).

        Returns:
            ``step``, ``global_grad_norm``, ``clipped_fraction``, ``nonfinite``
            and ``nonfinite_total`` as in :meth:`summary`, and ``tensors``: for
            the key of each tensor that had a gradient a dict of ``norm``
            (before the clip), ``h``, and what the rule carries.
        """
        return self._progress.metrics()

    def snapshot(self) -> LastStep:
        """Return the last step's vectors, which later steps do not change."""
        return self._progress.snapshot()

    def summary(self, *, tensors: bool = False) -> dict[str, Any]:
        """Return the last optimizer step of the whole model in a few numbers.

        In a distributed run every rank has to call it, and all get the same
        numbers: one gather of a few numbers per tensor, and one all-reduce of a
        number. Under fleet a warning names tensors whose gradients had Inf or
        NaN on only some of the ranks with copies of them, once there are new
        ones; without fleet only :meth:`full_state_dict` compares the copies.

        Args:
            tensors: Add ``tensors`` as in :meth:`metrics`, of all ranks; not
                those whose gradient is zero.

        Returns:
            The numbers by name:

            - ``step``: its index, -1 before the first.
            - ``global_grad_norm``, ``clipped_grad_norm``: L2 norms over all
              finite tensors, before and after the clip.
            - ``num_tensors``: with a gradient that is not zero.
            - ``clipped_fraction``: share of those with a finite norm that have
              ``h < 1``.
            - ``clipped_norm_fraction``: share of the global norm that was
              clipped.
            - ``h_min``, ``h_p10``, ``h_median``: of those with a finite norm.
            - ``lowest_h``: keys of the most clipped tensors -> h; empty if all
              tensors have the same h.
            - ``nonfinite``: number of tensors with Inf or NaN.
            - ``nonfinite_total``: their sum over the steps of this process in
              which the optimizer changed the weights.

        Raises:
            RuntimeError: Some rank did not call it: as in
                :meth:`full_state_dict`.
        """
        return self._progress.summary(tensors)
