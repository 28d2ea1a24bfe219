# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip between two steps: its model, its state, its numbers."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import paddle
from paddle.distributed.communication.group import Group
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import (
    Argument,
    KnownAttributes,
    check_choice,
    name_hint,
)
from paddle_adagc.clips.gradients import NonFinite
from paddle_adagc.clips.last_step import Call, LastStep, Reports, Rows
from paddle_adagc.clips.memory import Memory, State
from paddle_adagc.clips.step_count import StepCount
from paddle_adagc.clips.tensors import Tensors
from paddle_adagc.guards import fuses_tensors, unchecked
from paddle_adagc.parallel.agreement import gather_state, warn_of_nonfinite
from paddle_adagc.parallel.layout import TensorLayout, kept_marks, unwrap
from paddle_adagc.parallel.ranks import Ranks
from paddle_adagc.parallel.reduce import Reducer
from paddle_adagc.parallel.topology import Topology
from paddle_adagc.parallel.units import Declared
from paddle_adagc.state import (
    ClipState,
    Quantity,
    check_is_whole,
    warn_of_other_arguments,
)

NewTensors = Literal["raise", "start"]


class StatefulClip(KnownAttributes, ClipGradBase):
    """A clip between two steps; a step is :class:`.TensorScalingClip`'s."""

    # What Paddle's tensor fusion and FSDP tell a clip.
    sharding_group: Group | None
    fsdp_group: Group | None
    mp_group: Group | None
    has_dist_param: bool
    has_not_dist_param: bool

    def __new__(cls, *positional: Any, **named: Any) -> Any:
        """Name the argument that an unknown one stands for."""
        signature = inspect.signature(cls)
        known = signature.parameters
        try:
            signature.bind_partial(*positional, **named)
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

    nonfinite = Argument(partial(check_choice, choices=get_args(NonFinite)))

    optional_quantities: Sequence[str] = ()
    """Quantities that a loaded state may lack, or have without use."""

    def __init__(self, *, nonfinite: NonFinite = "zero") -> None:
        super().__init__()
        self.nonfinite = nonfinite
        self.sharding_group = None
        self._tensors = Tensors()
        self._memory = Memory()
        self._steps = StepCount()
        self._before = self._steps, self._memory  # the last step
        self._ranks = Ranks(type(self).__name__)
        self._calls: list[Call] = []  # of the last step
        self._num_calls = 0  # by anybody, also with nothing to clip
        self._reports = Reports()
        self._has_loaded = False
        self._loads: dict[str, Any] | None = None
        """What was loaded before bind(), which is to read it by its names."""

    def keep(self, *quantities: Quantity) -> None:
        """Declare what the rule carries from step to step; once, at first.

        Args:
            *quantities: Each becomes a vector of ``step.state``, and a part of
                the state that is saved.
        """
        memory = Memory(quantities, num_nonfinite=self._memory.num_nonfinite)
        self._memory = memory.restarted(0)

    def check_layout(
        self, layout: Sequence[TensorLayout], topology: Topology
    ) -> None:
        """Refuse, by ValueError, a model's layout that the rule cannot serve.

        Args:
            layout: How each parameter lies over the ranks.
            topology: This rank's place among them.
        """

    @property
    def should_comm_on_shard_dim(self) -> bool:
        """Paddle's switch for clips over fused buffers."""
        return self.sharding_group is not None

    @should_comm_on_shard_dim.setter
    def should_comm_on_shard_dim(self, value: bool) -> None:
        if value and not fuses_tensors():
            raise RuntimeError(
                f"{type(self).__name__} needs each tensor's own gradient, and "
                "FSDP's buffers join several: use shard_optimizer with a "
                "sharding stage, or fleet's sharding"
            )
        if value and not self._tensors.is_bound:
            raise RuntimeError(
                f"{type(self).__name__} needs to know the model under tensor "
                "fusion, where a rank has slices of some tensors: call "
                "clip.bind(model) before the first step"
            )

    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments, which are attributes."""
        names: list[str] = []
        for cls in type(self).__mro__:
            spec = inspect.getfullargspec(cls.__init__)  # type: ignore[misc]
            names += [*spec.args[1:], *spec.kwonlyargs]
            if not spec.varkw:  # else the rest is the base class's
                break
        return {name: getattr(self, name) for name in names}

    def idle_arguments(self) -> Collection[str]:
        """Return arguments that no later step follows, a restart aside."""
        return ()

    def __repr__(self) -> str:
        """Class and arguments."""
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.arguments().items())
        return f"{type(self).__name__}({arguments})"

    __str__ = __repr__

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps that went through this clip."""
        return self._steps.num_steps

    @property
    def _num_warmup(self) -> int:
        """Steps of the rule's warm-up; 0 without one."""
        return 0

    @property
    def warmup_left(self) -> int:
        """Number of steps until the warm-up is over; 0 if it is, or is none."""
        return max(self._memory.start + self._num_warmup - self.num_steps, 0)

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
                which then has its own norm and gamma: pattern of a key ->
                :class:`paddle_adagc.parallel.units.Units`, a dict of its
                fields, or ``"experts"`` (along axis 0); or a function of key
                and parameter that returns one of these, or None. An attribute
                ``adagc_units`` of the parameter says the same, and is set from
                ``units``: other clips and Muon find them. Experts with three
                axes are recognised.

        Raises:
            RuntimeError: The clip has made steps under automatic names.
            TypeError: ``model`` is no layer.
            ValueError: The clip has a state for other tensors; no norm would be
                right in the model's layout; or ``units`` do not fit the model.
        """
        if self._calls and not self._tensors.is_bound:
            raise RuntimeError(
                f"bind() after {self.num_steps} steps: the tensors have "
                "their names by now; call it before the first step"
            )
        with kept_marks(model):
            self._bind(Ranks(type(self).__name__, model, units))
        for parameter in unwrap(model).parameters():
            self._tensors.reader.meet(parameter)

    def _bind(self, ranks: Ranks) -> None:
        """Take over the tensors of a model's layout."""
        if not ranks.meshes:
            self.check_layout([*ranks.layout.values()], ranks.topology())
        names = self._tensors.names
        if self._tensors.is_bound and not names & ranks.layout.keys():
            warnings.warn(
                f"this {type(self).__name__} was bound to another model, none "
                "of whose parameters this one has: make a clip for each model",
                stacklevel=3,
            )
        loads = self._loads
        has_state = self._tensors.is_bound and (
            self.num_steps or self._has_loaded
        )
        tensors = self._tensors if has_state else Tensors()
        memory = self._known() if has_state else self._memory.reordered([])
        before = self._memory, self._tensors, self._ranks
        self._memory = memory.reordered(tensors.bind(ranks.layout))
        self._tensors, self._ranks = tensors, ranks
        self._resume_at(self.num_steps)
        if loads is not None:
            try:
                self._load(**loads)
            except Exception:
                self._memory, self._tensors, self._ranks = before
                raise
            self._loads = None

    def restart_warmup(self) -> None:
        """Forget what the rule has observed; the next step begins its warm-up.

        :attr:`num_steps` continues, and the state holds the restart. In a
        distributed run every rank has to call it, between two steps.
        """
        self._memory = self._memory.restarted(self.num_steps)
        self._ranks.has_agreed = False
        self._loads = None

    @unchecked
    def state_dict(self) -> dict[str, Any]:
        """State to save beside the optimizer's.

        Returns:
            ``step`` (int, optimizer steps made); for each quantity that the
            rule carries, such as ``gamma``, a dict of tensor key -> float32
            tensor of shape ``[]``; ``config`` (the constructor's arguments);
            after :meth:`restart_warmup` its step, ``warmup_start``. Under
            sharding by owner (V1, stage 2) it is about this rank's tensors
            alone, and names the others as ``missing``. ``units``, where there
            are some: key of their parameter -> their keys.
        """
        state, topology = self._state(), self._ranks.topology()
        is_by_owner = topology.sharding.size > 1 and (
            not topology.splits_parameters
        )
        missing = tuple(
            tensor.key
            for index, tensor in enumerate(self._tensors.layout)
            if tensor.takes_part and index not in self._tensors.observed
        )
        if is_by_owner and self._calls and state.keys:
            state = dataclasses.replace(state, missing=missing)
        return state.to_dict()

    def full_state_dict(self) -> dict[str, Any]:
        """State of the whole model, which any parallel layout can load.

        In a distributed run every rank has to call it; one of them saves. A
        warning names tensors whose gradients had Inf or NaN on only some of
        the ranks with copies of them.

        Returns:
            The dict of :meth:`state_dict`, of all ranks' tensors.

        Raises:
            RuntimeError: Ranks disagree about a number that they all follow.
        """
        mine = self._state(), *self._observed()
        return gather_state(*mine, self._memory.quantities).to_dict()

    def _known(self) -> Memory:
        """Return the memory of all tensors that are known."""
        return self._memory.grown(len(self._tensors.keys))

    @unchecked
    def _observed(self) -> tuple[set[str], dict[str, int]]:
        """Return the tensors observed; key -> steps with Inf or NaN."""
        keys = self._tensors.keys
        counts = self._known().num_nonfinite.tolist()
        nonfinite = {k: n for k, n in zip(keys, counts, strict=True) if n}
        return {keys[index] for index in self._tensors.observed}, nonfinite

    @unchecked
    def set_state_dict(
        self,
        state: dict[str, Any],
        *,
        rename: Mapping[str, str] | None = None,
        partial: bool = False,
        new_tensors: NewTensors = "raise",
    ) -> None:
        """Load a state; a refused one leaves the clip as it was.

        The arguments of this clip stay; a warning names those that differ in
        the state. Units of the state become one tensor where this clip has
        none: their norms add in squares, and the log names it.

        Args:
            state: From :meth:`state_dict`; numbers may be tensors, arrays or
                Python's.
            rename: For the state of the same network under other names:
                beginning of a key there -> beginning here. A bare
                ``PipelineLayer`` numbers its layers: ``{"0": "embed",
                "1": "layers.0"}``. A state that was saved unbound, under the
                names that Paddle gives this model's parameters, needs none.
            partial: Take one rank's :meth:`state_dict`, which names tensors
                that it lacks: those start from their next norms.
            new_tensors: What to do if the model has other tensors than the
                state: ``"raise"`` an error, or ``"start"`` the clip of new ones
                (a new head, LoRA) as at the first step, and drop those that are
                gone. The log names each. One whose name and not whose shape
                stayed keeps its numbers: ``del state["gamma"]["head.weight"]``,
                and what else the state has of it, makes it new.

        Raises:
            TypeError: ``state`` is not a dict.
            ValueError: It is not a state of this class and of this model's
                tensors, or one rank's; or ``rename`` does not fit them.
        """
        check_choice("new_tensors", new_tensors, get_args(NewTensors))
        loaded = ClipState.from_dict(state)
        check_is_whole(loaded, partial)
        given: dict[str, Any] = {
            **{"loaded": loaded, "rename": rename},
            "new_tensors": new_tensors,
        }
        self._load(**given)
        self._loads = None if self._tensors.is_bound else given
        mine = self.arguments()
        warn_of_other_arguments(mine, loaded.config, self.idle_arguments())

    def _load(
        self,
        loaded: ClipState,
        rename: Mapping[str, str] | None,
        new_tensors: NewTensors,
    ) -> None:
        """Load a state for the tensors that are known now."""
        owner, mine = type(self).__name__, self.arguments()
        quantities, memory = self._memory.quantities, self._known()
        if rename is None:
            rename = self._tensors.key_of_automatic(loaded.keys)
        loaded = loaded.renamed(rename).fitted(
            owner, mine, quantities, self.optional_quantities
        )
        values = loaded.values
        if any(not q.is_global for q in quantities):
            may_differ = new_tensors == "start"
            loaded = loaded.with_whole_tensors(self._tensors.keys, quantities)
            memory = memory.reordered(
                self._tensors.adopt(loaded.keys, may_differ)
            )
            values = loaded.values_of(self._tensors.keys, quantities)
        self._memory = memory.loaded(values, loaded.warmup_start)
        self._has_loaded = True
        self._ranks.has_agreed = False
        self._resume_at(loaded.step)

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
        rows, step = self._rows(), self.num_steps - 1
        tensors = rows.choose(rows.columns["has_gradient"]).by_tensor()
        return {"step": step, **rows.totals(), "tensors": tensors}

    @unchecked
    def snapshot(self) -> LastStep:
        """Return the last step's vectors, which later steps do not change."""
        counts = {"nonfinite_total": self._known().num_nonfinite}
        per_tensor = {**self._tensor_metrics(), **counts}
        return LastStep(self._calls, [*self._tensors.keys], per_tensor)

    def _tensor_metrics(self) -> State:
        """Return what the rule knows per tensor, float32 ``[num_tensors]``."""
        return self._known().metrics()

    def summary(self, *, tensors: bool = False) -> dict[str, Any]:
        """Return the last optimizer step of the whole model in a few numbers.

        In a distributed run every rank has to call it, and all get the same
        numbers: one gather of a few numbers per tensor, and one all-reduce of a
        number. Under fleet a warning names tensors whose gradients had Inf or
        NaN, since the last summary, on only some of the ranks with copies of
        them; without fleet only :meth:`full_state_dict` compares the copies.
        A warning names, once, tensors with Inf or NaN in each of the last 10
        steps or more; and those of which the warm-up saw no finite norm.

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
            - ``h_min``, ``h_p10``, ``h_median``: of all tensors.
            - ``lowest_h``: keys of the most clipped tensors -> h; empty if all
              tensors have the same h.
            - ``nonfinite``: number of tensors with Inf or NaN.
            - ``nonfinite_total``: their sum over the steps of this process in
              which the optimizer changed the weights.
            - ``stuck``: keys of tensors with ``h`` below 0.01 in every summary
              of the last 200 steps or more; a warning names them.
        """
        rows, step = self._rows_of_all_ranks(), self.num_steps - 1
        stuck = self._reports.find_stuck(step, rows)
        self._reports.warn_of_streaks(step, rows)
        if self._num_warmup and not self.warmup_left:
            self._reports.warn_of_unstarted(rows)
        observed, nonfinite = self._observed()
        new = self._reports.new_nonfinite(nonfinite)
        reducer = self._find_reducer()
        warn_of_nonfinite(reducer.gather_if_any(bool(new), (observed, new)))
        summary = {"step": step, **rows.summary(), "stuck": stuck}
        if tensors:
            shown = rows.choose(rows.columns["norm"] != 0)
            summary["tensors"] = shown.by_tensor()
        return summary

    def _rows(self) -> Rows:
        """Return a row per tensor of this rank."""
        return self.snapshot().rows()

    @unchecked
    def _rows_of_all_ranks(self) -> Rows:
        reducer = self._find_reducer()
        if not (self._calls or self.num_steps):
            warnings.warn(
                f"no step went through this {type(self).__name__}, so its "
                "numbers are zeros: give it to the optimizer as grad_clip",
                stacklevel=4,
            )
        rows = self._rows()
        names = "norm", "nonfinite_total", "has_gradient"
        numbers = np.sum([rows.columns[name] for name in names], 0, np.float32)
        counted = reducer.counted(paddle.to_tensor(numbers)).numpy() != 0
        return Rows.join(reducer.gather(rows.choose(counted)))

    @unchecked
    def _state(self) -> ClipState:
        """Return the state; it shares the device's vectors."""
        memory, keys = self._known(), self._tensors.keys
        values = memory.values()
        units = self._tensors.keys_of_units
        if not any(vector.ndim for vector in values.values()):
            keys, units = [], {}
        return ClipState(
            self.num_steps,
            self.arguments(),
            tuple(keys),
            values,
            memory.start,
            units=units,
        )

    def _resume_at(self, num_steps: int) -> None:
        self._steps = self._steps.resumed_at(num_steps)
        self._calls = []
        self._reports.reset()

    def _find_reducer(self) -> Reducer:
        """Return the sums over ranks, looked up by the first step."""
        tensors = self._tensors
        layout = tensors.layout if tensors.is_bound else None
        return self._ranks.find_reducer(layout, len(tensors.keys))
