# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip knows between two steps: model, memory, count, last step."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import paddle
from paddle import Tensor

from paddle_adagc.checks import check_choice
from paddle_adagc.clips.last_step import Call, LastStep, Rows
from paddle_adagc.clips.step_count import StepCount
from paddle_adagc.clips.tensors import Tensors
from paddle_adagc.paddle_internals import unchecked
from paddle_adagc.parallel.agreement import (
    every_rank_calls,
    gather_state,
    warn_of_nonfinite,
)
from paddle_adagc.parallel.layout import mark_units, unwrap
from paddle_adagc.parallel.ranks import Ranks
from paddle_adagc.parallel.reduce import Reducer
from paddle_adagc.parallel.units import Declared
from paddle_adagc.state import ClipState, warn_of_other_arguments

if TYPE_CHECKING:
    from paddle_adagc.clips.adagc import ClipGradByAdaGC

NewTensors = Literal["raise", "start"]


@dataclasses.dataclass(frozen=True, eq=False)
class Memory:
    """Vectors ``[num_tensors]``; each change gives a new memory."""

    gamma: Tensor
    """Reference norms, float32; ``inf``: no norm so far."""

    support: Tensor | None
    """Warm-up steps that agree with gamma, float32; None: not counted, or not
    needed any more."""

    num_nonfinite: Tensor
    """In how many steps each tensor's gradient had Inf or NaN, int32."""

    start: int = 0  # number of steps made when the warm-up began

    @classmethod
    @unchecked
    def new(cls, num_tensors: int, votes: bool) -> Memory:
        """Return one without a norm observed; ``votes``: it counts support."""
        return cls(
            paddle.full([num_tensors], math.inf, "float32"),
            paddle.zeros([num_tensors], "float32") if votes else None,
            paddle.zeros([num_tensors], "int32"),
        )

    @unchecked
    def grown(self, num_tensors: int) -> Memory:
        """Return it with start values for new tensors."""
        more = num_tensors - int(self.gamma.shape[0])
        if more == 0:
            return self
        new = vars(Memory.new(more, votes=self.support is not None))
        vectors = {n: v for n, v in vars(self).items() if isinstance(v, Tensor)}
        joined = {n: paddle.concat([v, new[n]]) for n, v in vectors.items()}
        return dataclasses.replace(self, **joined)


class Progress:
    """Binds a clip to its model, saves and loads its state, reports its steps.

    The step (:mod:`paddle_adagc.clips.step`) gives it a new memory each time.
    """

    def __init__(self, clip: ClipGradByAdaGC) -> None:
        self._clip = clip  # for its arguments, which may change
        self.tensors = Tensors()
        self.memory = Memory.new(0, clip._counts_support)
        self.steps = StepCount()
        self.before = self.steps, self.memory  # the last step
        self.last = self.steps  # after the last call, taken back or not
        self.awaits_update = False  # the optimizer's, after the last call
        self.ranks = Ranks()
        self.calls: list[Call] = []  # of the last step
        self._nonfinite: dict[str, int] = {}  # as of the last summary
        self._has_loaded = False
        self.is_started_anew = False  # by restart_warmup()

    def bind(self, model: paddle.nn.Layer, units: Declared | None) -> None:
        """See :meth:`.ClipGradByAdaGC.bind`."""
        if self.calls or self._has_loaded:
            raise RuntimeError(
                f"bind() after {self.steps.num_steps} steps: call it before "
                "the first step and before set_state_dict(), and make a new "
                "clip for another model"
            )
        ranks, tensors = Ranks(model, units), Tensors()
        tensors.bind(ranks.layout)
        self._clip.overrides.meet(tensors.keys)
        self.ranks, self.tensors = ranks, tensors
        empty = Memory.new(len(tensors.keys), self._clip._counts_support)
        self.memory = dataclasses.replace(empty, start=self.memory.start)
        mark_units(model, ranks.layout)
        for parameter in unwrap(model).parameters():
            tensors.identity.meet(parameter)

    def restart_warmup(self) -> None:
        """See :meth:`.ClipGradByAdaGC.restart_warmup`."""
        self.settle()
        counts = self.memory.num_nonfinite
        new = Memory.new(int(counts.shape[0]), self._clip._counts_support)
        self.memory = dataclasses.replace(
            new, num_nonfinite=counts, start=self.steps.num_steps
        )
        self.ranks.has_agreed = self._has_loaded = False
        self.is_started_anew = True

    def settle(self) -> None:
        """Take the last step back if an error came before its update."""
        if self.awaits_update:
            self.awaits_update = False
            self.take_back()

    def take_back(self) -> None:
        """Return to the state before the step; its numbers can be read."""
        self.steps, self.memory = self.before

    def known(self) -> Memory:
        """Return the memory of all tensors that are known."""
        return self.memory.grown(len(self.tensors.keys))

    def reducer(self) -> Reducer:
        """Return the sums over ranks, looked up by the first step."""
        tensors = self.tensors
        layout = tensors.layout if tensors.is_bound else None
        return self.ranks.find_reducer(layout, len(tensors.keys))

    @unchecked
    def state(self) -> ClipState:
        """Return the state; it shares the device's vectors."""
        self.settle()
        memory = self.known()
        return ClipState(
            self.steps.num_steps,
            self._clip.arguments(),
            tuple(self.tensors.keys),
            memory.gamma,
            memory.support,
            memory.start,
        )

    def state_of_rank(self) -> dict[str, Any]:
        """Return the state, without the tensors that other ranks own."""
        state, topology = self.state().to_dict(), self.ranks.topology()
        is_sharded = topology.sharding.size > 1
        if is_sharded and not topology.splits_parameters and self.calls:
            mine = {self.tensors.keys[i] for i in self.tensors.observed}
            for name in {"gamma", "support"} & state.keys():
                by_key = state[name].items()
                state[name] = {k: v for k, v in by_key if k in mine}
        return state

    def state_of_all_ranks(self) -> ClipState:
        """Return the state of the whole model; every rank calls it."""
        return gather_state(self.state(), *self._observed())

    @unchecked
    def _observed(self) -> tuple[set[str], dict[str, int]]:
        """Return the tensors observed; key -> steps with Inf or NaN."""
        keys = self.tensors.keys
        counts = self.known().num_nonfinite.tolist()
        nonfinite = {k: n for k, n in zip(keys, counts, strict=True) if n}
        return {keys[index] for index in self.tensors.observed}, nonfinite

    @unchecked
    def load(
        self,
        state: dict[str, Any],
        rename: Mapping[str, str] | None,
        new_tensors: NewTensors,
    ) -> None:
        """See :meth:`.ClipGradByAdaGC.set_state_dict`."""
        check_choice("new_tensors", new_tensors, get_args(NewTensors))
        self.settle()
        arguments, votes = self._clip.arguments(), self._clip._counts_support
        loaded = ClipState.from_dict(state).renamed(rename or {})
        loaded = loaded.fitted(arguments, votes)
        is_part = self.ranks.hold_parts(self.tensors.layout)
        self.tensors.adopt(loaded.keys, new_tensors == "start", is_part)
        counts = self.known().num_nonfinite
        gamma, support = (
            None if vector is None else paddle.to_tensor(vector, "float32")
            for vector in loaded.values_of(self.tensors.keys)
        )
        self.memory = Memory(gamma, support, counts, loaded.warmup_start)
        self._has_loaded = True
        self.ranks.has_agreed = False
        self.steps, self.calls = self.steps.resumed_at(loaded.step), []
        warn_of_other_arguments(arguments, loaded.config)

    @unchecked
    def snapshot(self) -> LastStep:
        """Return the last step's vectors, which later steps do not change."""
        memory = self.known()
        vectors = {
            "gamma": memory.gamma,
            "nonfinite_total": memory.num_nonfinite,
        }
        return LastStep(self.calls, [*self.tensors.keys], vectors)

    def metrics(self) -> dict[str, Any]:
        """See :meth:`.ClipGradByAdaGC.metrics`."""
        rows, step = self.snapshot().rows(), self.steps.num_steps - 1
        tensors = rows.choose(rows.columns["has_gradient"]).by_tensor()
        return {"step": step, **rows.totals(), "tensors": tensors}

    def summary(self, tensors: bool) -> dict[str, Any]:
        """See :meth:`.ClipGradByAdaGC.summary`."""
        rows, step = self._rows_of_all_ranks(), self.steps.num_steps - 1
        observed, nonfinite = self._observed()
        has_new, self._nonfinite = nonfinite != self._nonfinite, nonfinite
        gather = self.reducer().gather_if_any
        with every_rank_calls("summary()"):
            warn_of_nonfinite(gather(has_new, (observed, nonfinite)))
        summary = {"step": step, **rows.summary()}
        if tensors:
            shown = rows.choose(rows.columns["norm"] != 0)
            summary["tensors"] = shown.by_tensor()
        return summary

    @unchecked
    def _rows_of_all_ranks(self) -> Rows:
        reducer = self.reducer()
        if not (self.calls or self.steps.num_steps):
            warnings.warn(
                "no step went through this ClipGradByAdaGC, so its numbers are "
                "zeros: give it to the optimizer as grad_clip",
                stacklevel=5,
            )
        rows = self.snapshot().rows()
        names = "norm", "nonfinite_total", "has_gradient"
        numbers = np.sum([rows.columns[name] for name in names], 0, np.float32)
        counted = reducer.counted(paddle.to_tensor(numbers)).numpy() != 0
        with every_rank_calls("summary()"):
            return Rows.join(reducer.gather(rows.choose(counted)))
