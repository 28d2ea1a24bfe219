# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a clip carries from step to step, and shows between two steps."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import paddle
from paddle import Tensor
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_choice, name_hint
from paddle_adagc.clips.gradients import NonFinite
from paddle_adagc.clips.metrics import Call, Rows, Snapshot, StuckTensors
from paddle_adagc.clips.tensor_table import StepCount, TensorTable
from paddle_adagc.guards import unchecked
from paddle_adagc.parallel.layout import TensorLayout
from paddle_adagc.parallel.other_ranks import (
    OtherRanks,
    gather_state,
    warn_of_lost,
)
from paddle_adagc.parallel.reduce import Reducer
from paddle_adagc.parallel.topology import Topology
from paddle_adagc.parallel.units import Declared
from paddle_adagc.state import ClipState, Quantity, warn_of_other_arguments

State = dict[str, Tensor]
"""Name of a quantity -> float32 ``[num_tensors]``; ``[1]`` of a global one."""

Decision = tuple[Tensor, State]
"""``h``, float32 ``[num_tensors]``, and what the rule keeps from now on."""


class StatefulClip(ClipGradBase):
    """A clip between two steps: names, state and numbers of the last step."""

    def __new__(cls, *positional: Any, **named: Any) -> Any:
        """Name the argument that an unknown one stands for."""
        known = inspect.signature(cls).parameters
        try:
            inspect.signature(cls).bind_partial(*positional, **named)
        except TypeError as error:
            hint = "".join(
                name_hint(name, known) for name in named if name not in known
            )
            if positional and not hint:
                hint = f": give {positional} by name"
                if "lambda_abs" in known:
                    hint += "; the clip_norm of other clips is lambda_abs here"
            raise TypeError(f"{cls.__name__}: {error}{hint}") from None
        return super().__new__(cls)

    _optional: Sequence[str] = ()
    """Quantities that a loaded state may lack, or have without use."""

    def __init__(self, *, nonfinite: NonFinite = "zero") -> None:
        super().__init__()
        check_choice("nonfinite", nonfinite, get_args(NonFinite))
        self.nonfinite: NonFinite = nonfinite
        self._kept: tuple[Quantity, ...] = ()
        self._vectors: State = {}
        self._num_lost = paddle.zeros([0], "int32")  # [num_tensors], of steps
        self._told: dict[str, int] = {}  # lost until the last summary
        self._table = TensorTable()
        self._ranks = OtherRanks(type(self).__name__)
        self._steps = StepCount()
        self._before_step: tuple[StepCount, State] = self._steps, {}
        self._warmup_start = 0
        self._has_loaded = False
        self._calls: list[Call] = []
        self._observed: set[int] = set()  # slots of tensors met
        self._stuck = StuckTensors()

    def _keep(self, *quantities: Quantity) -> None:
        """Declare, once, what the rule carries from step to step."""
        self._kept = quantities
        self._forget()

    @unchecked
    def _forget(self) -> None:
        self._vectors = {
            q.name: paddle.full([int(q.is_global)], q.start, "float32")
            for q in self._kept
        }

    def _current(self) -> State:
        """Return what the rule keeps, with start values for new tensors."""
        return {
            q.name: self._grown(self._vectors[q.name], q.start, q.is_global)
            for q in self._kept
            if q.name in self._vectors
        }

    def _grown(
        self, vector: Tensor, start: float, is_global: bool = False
    ) -> Tensor:
        num_new = len(self._table.keys) - vector.shape[0]
        if num_new <= 0 or is_global:
            return vector
        new = paddle.full([num_new], start, vector.dtype)
        return paddle.concat([vector, new])

    def _lost_so_far(self) -> Tensor:
        """In how many steps each tensor was lost, int32 ``[num_tensors]``."""
        return self._grown(self._num_lost, 0)

    def _config(self) -> dict[str, Any]:
        """Return the constructor's arguments, which are attributes."""
        names: list[str] = []
        for cls in type(self).__mro__:
            spec = inspect.getfullargspec(cls.__init__)  # type: ignore[misc]
            names += [*spec.args[1:], *spec.kwonlyargs]
            if not spec.varkw:  # else the rest is the base class's
                break
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        """Class and arguments."""
        arguments = ", ".join(f"{k}={v!r}" for k, v in self._config().items())
        return f"{type(self).__name__}({arguments})"

    __str__ = __repr__

    def _tensor_metrics(self) -> State:
        """Return what the rule knows per tensor, float32 ``[num_tensors]``."""
        counts = {q.name for q in self._kept if q.absent is not None}
        return {
            name: vector.expand([len(self._table.keys)])
            for name, vector in self._current().items()
            if name not in counts
        }

    def _check_layout(
        self, layout: Sequence[TensorLayout], topology: Topology
    ) -> None:
        """Refuse, by ValueError, a layout that the rule cannot work in."""

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps that went through this clip."""
        return self._steps.num_steps

    def bind(
        self, model: paddle.nn.Layer, units: Declared | None = None
    ) -> None:
        """Name the tensors as the model does (``layers.0.mlp.up.weight``).

        Without it they carry Paddle's automatic names (``linear_0.w_0``),
        which depend on the order in which a process makes its layers.

        A hybrid-parallel run needs it, before fleet wraps the optimizer, and so
        does ``group_sharded_parallel``, with the model that it returns. Bind
        again after the parameters change (LoRA, another head), as long as there
        is no state to lose.

        Args:
            model: Holds all parameters of the optimizer. Wrappers such as
                ``paddle.DataParallel`` are looked through.
            units: Which parameters hold several of the paper's tensors, each of
                which then has a norm and a gamma of its own: pattern of a key
                -> :class:`paddle_adagc.parallel.units.Units`, a dict of its
                fields, or ``"experts"`` (along axis 0); or a function of key
                and parameter that returns one of these, or None. An attribute
                ``adagc_units`` of the parameter says the same. Experts with
                three axes are recognised.

        Raises:
            RuntimeError: The clip has made steps under automatic names.
            TypeError: ``model`` is no layer.
            ValueError: The clip has a state for other tensors; no norm would be
                right in the model's layout; or ``units`` do not fit the model.
        """
        if self._calls and not self._table.is_bound:
            raise RuntimeError(
                f"bind() after {self.num_steps} steps: the tensors have "
                "their names by now; call it before the first step"
            )
        ranks = OtherRanks(type(self).__name__, model, units)
        if not ranks.meshes:
            self._check_layout([*ranks.layout.values()], ranks.topology())
        if self._table.is_bound and not self._table.names & ranks.layout.keys():
            warnings.warn(
                f"this {type(self).__name__} was bound to another model, none "
                "of whose parameters this one has: make a clip for each model",
                stacklevel=2,
            )
        if not (self.num_steps or self._has_loaded):
            self._table = TensorTable()
        self._take_names(ranks.layout)
        self._ranks = ranks

    @unchecked
    def _take_names(self, layout: Mapping[str, TensorLayout]) -> None:
        """Bind the table, and follow it with all that is per tensor."""
        vectors, num_lost = self._current(), self._lost_so_far()
        slots_before = self._table.bind(layout)
        index = paddle.to_tensor(slots_before, "int64")
        self._num_lost = paddle.gather(num_lost, index)
        for q in self._kept:
            if q.name in vectors and not q.is_global:
                self._vectors[q.name] = paddle.gather(vectors[q.name], index)
        self._observed = {
            slot
            for slot, was in enumerate(slots_before)
            if was in self._observed
        }
        self._resume_at(self.num_steps)

    def restart_warmup(self) -> None:
        """Forget what the rule has observed; the next step begins its warm-up.

        :attr:`num_steps` continues, and the state holds the restart. In a
        distributed run every rank has to call it, between two steps.
        """
        self._forget()
        self._warmup_start = self.num_steps

    @unchecked
    def state_dict(self) -> dict[str, Any]:
        """State to save beside the optimizer's.

        Returns:
            ``step`` (int, optimizer steps made); for each quantity that the
            rule keeps, such as ``gamma``, a dict of tensor key -> float32
            tensor of shape ``[]``; ``config`` (the constructor's arguments);
            after :meth:`restart_warmup` its step, ``warmup_start``.
        """
        return self._state().to_dict()

    def full_state_dict(self) -> dict[str, Any]:
        """State of the whole model, which any parallel layout can load.

        In a distributed run every rank has to call it; one of them saves. A
        warning names tensors whose gradients held Inf or NaN on some of the
        ranks with copies of them alone.

        Raises:
            RuntimeError: Ranks disagree about a number that they all follow.
        """
        mine = self._state(), *self._met_and_lost()
        return gather_state(*mine, self._kept).to_dict()

    @unchecked
    def _met_and_lost(self) -> tuple[set[str], dict[str, int]]:
        """Return the tensors met, and in how many steps which were lost."""
        keys = self._table.keys
        counts = self._lost_so_far().tolist()
        lost = {k: n for k, n in zip(keys, counts, strict=True) if n}
        return {keys[slot] for slot in self._observed}, lost

    @unchecked
    def set_state_dict(
        self,
        state: dict[str, Any],
        *,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        """Load a state; a refused one leaves the clip as it was.

        The clip keeps its own arguments, and a warning names those that differ
        in the state.

        Args:
            state: From :meth:`state_dict`; numbers may be tensors, arrays or
                Python's.
            rename: For the state of the same network under other names:
                beginning of a key there -> beginning here. A bare
                ``PipelineLayer`` numbers its layers: ``{"0": "embed",
                "1": "layers.0"}``.

        Raises:
            TypeError: ``state`` is not a dict.
            ValueError: It is not a state of this class and of this model's
                tensors, or ``rename`` does not fit them.
        """
        owner, mine = type(self).__name__, self._config()
        loaded = ClipState.from_dict(state).renamed(rename or {})
        loaded = loaded.fitted(owner, mine, self._kept, self._optional)
        values = loaded.values
        if any(not q.is_global for q in self._kept):
            self._table.adopt(loaded.keys)
            values = loaded.values_of(self._table.keys)
        self._vectors = {
            name: paddle.to_tensor(vector.reshape(-1), "float32")
            for name, vector in values.items()
        }
        self._has_loaded = True
        self._warmup_start = loaded.warmup_start
        self._resume_at(loaded.step)
        warn_of_other_arguments(mine, loaded.config)

    def metrics(self) -> dict[str, Any]:
        """Return numbers of the last optimizer step; may wait for the device.

        They are about the tensors that this rank holds (under owner-based
        sharding: owns).

        Returns:
            ``step``, ``global_grad_norm``, ``clipped_fraction``, ``nonfinite``
            and ``nonfinite_total`` as in :meth:`summary`, and ``tensors``: for
            the key of each tensor that had a gradient a dict of ``norm``
            (before the clip), ``h``, and what the rule keeps.
        """
        rows = self._rows()
        return self._numbers(rows.choose(rows.columns["has_gradient"]))

    def _numbers(self, rows: Rows) -> dict[str, Any]:
        return {"step": self.num_steps - 1, **rows.metrics()}

    @unchecked
    def snapshot(self) -> Snapshot:
        """Return the last step's vectors, which later steps do not change."""
        total = self._lost_so_far()
        per_tensor = {**self._tensor_metrics(), "nonfinite_total": total}
        return Snapshot(self._calls, [*self._table.keys], per_tensor)

    def full_metrics(self) -> dict[str, Any]:
        """Return :meth:`metrics` of the whole model, each tensor once.

        Tensors without a gradient, or with a zero gradient, are left out. In a
        distributed run every rank has to call it, and all get the same numbers.
        """
        return self._numbers(self._rows_of_all_ranks())

    def summary(self, *, tensors: bool = False) -> dict[str, Any]:
        """Return the last optimizer step of the whole model in a few numbers.

        In a distributed run every rank has to call it, and all get the same
        numbers: one gather of a few numbers per tensor, and one all-reduce of a
        number. Under fleet a warning names tensors whose gradients held Inf or
        NaN, since the last summary, on some of the ranks with copies of them
        alone; without fleet only :meth:`full_state_dict` compares the copies.

        Args:
            tensors: Add ``tensors`` as in :meth:`metrics`.

        Returns:
            ``step`` (its index, -1 before the first), ``global_grad_norm`` and
            ``clipped_grad_norm`` (L2 norms over all finite tensors before and
            after the clip), ``num_tensors`` (with a gradient that is not zero),
            ``clipped_fraction`` (share of them with ``h < 1``),
            ``clipped_norm_fraction`` (share of the global norm that was
            clipped), ``h_min``, ``h_p10`` and ``h_median``, ``lowest_h`` (keys
            of the most clipped tensors -> h; empty if all tensors have the same
            h), ``nonfinite`` (number of tensors with Inf or NaN),
            ``nonfinite_total`` (over all steps of this process), ``stuck``
            (keys of tensors with ``h`` below 0.01 in every summary of the last
            200 steps or more, of which a warning tells).
        """
        rows, step = self._rows_of_all_ranks(), self.num_steps - 1
        stuck = self._stuck.see(step, rows)
        met, lost = self._met_and_lost()
        news = {
            key: n - self._told.get(key, 0)
            for key, n in lost.items()
            if n != self._told.get(key)
        }
        self._told = lost
        reducer = self._known_reducer()
        warn_of_lost(reducer.tell_everyone(bool(news), (met, news)))
        summary = {"step": step, **rows.summary(), "stuck": stuck}
        return summary | ({"tensors": rows.by_tensor()} if tensors else {})

    def _rows(self) -> Rows:
        """Return a row per tensor of this rank."""
        return self.snapshot().rows()

    def _rows_of_all_ranks(self) -> Rows:
        reducer = self._known_reducer()
        if not (self._calls or self.num_steps):
            warnings.warn(
                f"no step went through this {type(self).__name__}, so its "
                "numbers are zeros: give it to the optimizer as grad_clip",
                stacklevel=4,
            )
        rows = self._rows()
        norm = paddle.to_tensor(rows.columns["norm"])
        counted = reducer.counted(norm).numpy() != 0
        return Rows.join(reducer.gather(rows.choose(counted)))

    @unchecked
    def _state(self) -> ClipState:
        """Return the state; it shares the device's vectors."""
        values, keys = self._current(), self._table.keys
        for q in self._kept:
            if q.is_global:
                values[q.name] = values[q.name].reshape([])
        if not any(vector.ndim for vector in values.values()):
            keys = []
        config, start = self._config(), self._warmup_start
        return ClipState(self.num_steps, config, tuple(keys), values, start)

    def _resume_at(self, num_steps: int) -> None:
        self._steps = self._steps.resumed_at(num_steps)
        self._calls = []
        self._stuck = StuckTensors()

    def _known_reducer(self) -> Reducer:
        """Return the sums over ranks, known from the first step on."""
        table, ranks = self._table, self._ranks
        layout = table.layout if table.is_bound else None
        return ranks.reducer or ranks.find_reducer(layout, len(table.keys))
