# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in the Trainers of PaddleNLP, PaddleFormers and PaddleFleet.

They descend from each other; what differs is asked of them.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.checks import check_choice
from paddle_adagc.clips.base import TensorScalingClip
from paddle_adagc.clips.stateful import NewTensors
from paddle_adagc.integrations.logs import (
    add_histograms,
    clip_logs,
    clip_summary,
)
from paddle_adagc.integrations.muon_slices import muon_units
from paddle_adagc.parallel.layout import unwrap
from paddle_adagc.parallel.units import Declared
from paddle_adagc.state import STATE_FILE, load_state, save_state

if TYPE_CHECKING:
    from paddlenlp.trainer import Trainer, TrainerCallback
else:
    Trainer = TrainerCallback = object

MissingState = Literal["raise", "start"]
MISSING_STATES = ("raise", "start")

_DEFAULT_MAX_GRAD_NORM = 1.0  # of TrainingArguments
_FLASH_DEVICE = "/shared/dev/shm/flash"  # as in their utils/pdc_sdk.py
_EXPERT = re.compile(r"(?<=\.mlp\.experts\.)\d+(?=\.)")


class ClippingMixin(Trainer):
    """Let a ``Trainer`` clip with ``clip``: put it before the Trainer's class.

    The optimizer stays the one that the Trainer makes from its arguments, with
    ``clip`` in place of ``max_grad_norm``. The mixin binds the clip before
    fleet wraps the model. It saves the clip's state for the whole model in
    every checkpoint, before the Trainer's files and in a file of its own
    (:mod:`paddle_adagc.state`), and ``train(resume_from_checkpoint=...)``
    resumes from it; the file that one process finds serves all. Every training
    log gets ``clip_...`` numbers of the last step, over all ranks, from
    :meth:`TensorScalingClip.summary`; the backends in ``report_to`` also get
    :func:`histograms of the tensors
    <paddle_adagc.integrations.logs.add_histograms>`.

    Args:
        *args: Arguments of the Trainer.
        clip: One of this package's, or any ``ClipGradBase`` but
            ``ClipGradByGlobalNorm``, which fleet replaces by its own. Other
            clips have no state and no numbers here.
        missing_state: What to do with a checkpoint that holds no state of a
            clip. ``"raise"``: refuse it. ``"start"``: start the clip with its
            warm-up; so a run that had no such clip switches to it.
        new_tensors: What to do with a state of other tensors than the model's:
            see :meth:`TensorScalingClip.set_state_dict`.
        units: See :meth:`TensorScalingClip.bind`. With ``optim: muon`` they
            are by default :func:`Muon's slices
            <paddle_adagc.integrations.muon_slices.muon_units>`.
        **kwargs: Arguments of the Trainer; ``model`` as built, not wrapped.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a class in which the Trainer's methods hide the mixin's."""
        super().__init_subclass__(**kwargs)
        for kind in cls.__mro__[: cls.__mro__.index(ClippingMixin)]:
            is_trainer = hasattr(kind, "create_optimizer")
            if is_trainer and not issubclass(kind, ClippingMixin):
                raise TypeError(
                    f"{kind.__name__} stands before ClippingMixin, which then "
                    f"does nothing: class {cls.__name__}(ClippingMixin, "
                    f"{kind.__name__})"
                )

    def __init__(
        self,
        *args: Any,
        clip: ClipGradBase,
        missing_state: MissingState = "raise",
        new_tensors: NewTensors = "raise",
        units: Declared | None = None,
        **kwargs: Any,
    ) -> None:
        check_arguments(clip, missing_state)
        super().__init__(*args, **kwargs)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ClippingCallback):
                raise ValueError(
                    f"{type(self).__name__} clips already, by ClippingMixin: "
                    "leave ClippingCallback out of its callbacks"
                )
        self.clip = clip
        self._missing_state, self._new_tensors = missing_state, new_tensors
        take_over_clipping(self.args, clip)
        if not isinstance(clip, TensorScalingClip):
            return
        if getattr(self.args, "enable_auto_parallel", False):
            raise ValueError(
                "enable_auto_parallel spreads the model over its ranks within "
                "train(), after the clip has read it: use fleet's parallelism, "
                "or a plain loop with shard_optimizer"
            )
        sharding = getattr(self.args, "sharding", ())
        if "fsdp" in {getattr(kind, "value", kind) for kind in sharding}:
            raise ValueError(
                "sharding=fsdp joins tensors within train(), after the clip "
                "has read them: use sharding=stage1"
            )
        bind_clip(clip, self.model, units, self.args)

    def _build_grad_clip(self) -> ClipGradBase:
        """Give PaddleFleet's ``create_optimizer`` the clip."""
        return self.clip

    def create_optimizer(self, lr_scheduler: Any = None) -> Any:
        """Make the Trainer's optimizer, with the clip."""
        optimizer = super().create_optimizer(lr_scheduler)
        put_into_optimizer(optimizer, self.clip)
        return optimizer

    def train(
        self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train; with a checkpoint the clip resumes, too.

        True is the newest checkpoint in ``output_dir``.

        Raises:
            FileNotFoundError: The checkpoint holds no state of a clip, or there
                is no checkpoint.
            ValueError: It holds another model's, or another clip's.
        """
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            folder = self.args.output_dir
            modules = [sys.modules[k.__module__] for k in type(self).__mro__]
            find = next(
                module.get_last_checkpoint
                for module in modules
                if hasattr(module, "get_last_checkpoint")
            )
            checkpoint = find(folder) if Path(folder).is_dir() else None
            if checkpoint is None:
                raise FileNotFoundError(
                    f"resume_from_checkpoint=True, and {folder} holds no "
                    "checkpoint"
                )
        return super().train(checkpoint, *args, **kwargs)

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        loop: Any = super()._inner_training_loop
        given = inspect.signature(loop).bind(*args, **kwargs).arguments
        self._load_clip(given.get("resume_from_checkpoint"))
        return loop(*args, **kwargs)

    def _load_clip(self, checkpoint: Any) -> None:
        load_clip(self.clip, checkpoint, self._missing_state, self._new_tensors)

    def log(self, logs: dict[str, Any], **kwargs: Any) -> None:
        """Log, with the clip's numbers beside a training loss."""
        summary = self._clip_summary() if "loss" in logs else {}
        super().log({**logs, **clip_logs(summary)}, **kwargs)
        if self.state.is_world_process_zero:
            callbacks = self.callback_handler.callbacks
            add_histograms(callbacks, summary, self.state.global_step)

    def _clip_summary(self) -> dict[str, Any]:
        return clip_summary(self.clip)

    def _save_checkpoint(self, model: Any, metrics: Any = None) -> None:
        save_clip(self.clip, self.args, self.state.global_step)
        super()._save_checkpoint(model, metrics=metrics)


class ClippingCallback(TrainerCallback):
    """Let any ``Trainer`` clip with ``clip``; give it as one of ``callbacks``.

    It does what :class:`ClippingMixin` does, with three differences. It resumes
    from ``args.resume_from_checkpoint``, or else from the checkpoint of the
    same step in ``output_dir``: a callback does not see the argument of
    ``train``. It writes the clip's state after the Trainer's own files. The
    Trainer reports a log before this callback can add to it, so VisualDL and
    TensorBoard show the clip's numbers as a separate run, ``clip`` in
    ``args.logging_dir``, and Weights & Biases in the Trainer's run. The
    arguments are those of the mixin.
    """

    def __init__(
        self,
        clip: ClipGradBase,
        missing_state: MissingState = "raise",
        units: Declared | None = None,
        new_tensors: NewTensors = "raise",
    ) -> None:
        check_arguments(clip, missing_state)
        self.clip = clip
        self._missing_state, self._new_tensors = missing_state, new_tensors
        self._units = units
        self._reporters: list[Any] = []

    def __getattr__(self, event: str) -> Callable[..., None]:
        """Do nothing at the other events, which differ by Trainer."""
        if not event.startswith("on_"):
            raise AttributeError(event)
        return lambda *args, **kwargs: None

    def on_init_end(self, args: Any, *others: Any, **kwargs: Any) -> None:
        """Keep the Trainer from making a clip of its own."""
        take_over_clipping(args, self.clip)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Put the clip into the optimizer; resume it with the run."""
        if isinstance(self.clip, TensorScalingClip):
            bind_clip(self.clip, kwargs["model"], self._units, args)
        put_into_optimizer(kwargs["optimizer"], self.clip)
        checkpoint = None
        if state.global_step:
            own = f"{args.output_dir}/checkpoint-{state.global_step}"
            checkpoint = args.resume_from_checkpoint or own
        load_clip(self.clip, checkpoint, self._missing_state, self._new_tensors)
        if not state.is_world_process_zero:
            return
        library = type(control).__module__.rpartition(".")[0]
        known = importlib.import_module(f"{library}.integrations")
        for kind in known.get_reporting_integration_callbacks(args.report_to):
            if kind in (known.VisualDLCallback, known.TensorBoardCallback):
                self._reporters.append(kind())
                folder = str(Path(args.logging_dir) / "clip")
                self._reporters[-1]._init_summary_writer(args, folder)
            elif kind is known.WandbCallback:
                self._reporters.append(kind())

    def on_log(
        self, *event: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Add the clip's numbers to a training loss."""
        if not logs or "loss" not in logs:
            return
        _, state, _ = event
        summary = clip_summary(self.clip)
        numbers = clip_logs(summary)
        logs.update(numbers)
        for reporter in self._reporters if numbers else ():
            reporter.on_log(*event, logs=numbers, **kwargs)
        add_histograms(self._reporters, summary, state.global_step)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Close the clip's own logs."""
        for reporter in self._reporters:
            reporter.on_train_end(*args, **kwargs)

    def on_save(self, args: Any, state: Any, *_: Any, **kwargs: Any) -> None:
        """Save the clip's state beside the checkpoint's other files."""
        save_clip(self.clip, args, state.global_step)


def check_arguments(clip: Any, missing_state: str) -> None:
    """Refuse what is no gradient clip, or no ``missing_state``."""
    if not isinstance(clip, ClipGradBase):
        raise TypeError(
            f"clip is {clip!r}: give a clip, such as ClipGradByAdaGC()"
        )
    check_choice("missing_state", missing_state, MISSING_STATES)


def take_over_clipping(args: Any, clip: ClipGradBase) -> None:
    """Set ``max_grad_norm`` to 0, and warn of arguments that do not fit.

    PaddleFormers takes any other ``max_grad_norm`` for its own clip's, and its
    ``ernie_pretrain`` copies a clip's ``stat`` into the logs.
    """
    clip.stat = {}
    t_start = getattr(clip, "t_start", 0)
    is_flex = getattr(args, "save_checkpoint_format", "") == "flex_checkpoint"
    warned = {
        f"max_grad_norm={args.max_grad_norm} is not used: {clip!r} clips in "
        "its place (lambda_abs is the global norm of AdaGC's warm-up)": (
            args.max_grad_norm not in (0, _DEFAULT_MAX_GRAD_NORM)
        ),
        f"t_start={t_start}, and max_steps={args.max_steps}: training ends "
        "before the clip's warm-up is over": 0 < args.max_steps <= t_start,
        "PaddleFormers cannot load a flex_checkpoint on one process: to "
        "resume this run set save_checkpoint_format and "
        "load_checkpoint_format to 'unified_checkpoint'": (
            is_flex
            and args.save_strategy.value != "no"
            and dist.get_world_size() == 1
        ),
    }
    for message, applies in warned.items():
        if applies:
            warnings.warn(message, stacklevel=4)
    args.max_grad_norm = 0.0


def bind_clip(
    clip: TensorScalingClip, model: Any, units: Declared | None, args: Any
) -> None:
    """Bind a clip to a Trainer's model, by global names of the experts."""
    optimizer = getattr(args, "optim", None)
    if units is None and getattr(optimizer, "value", optimizer) == "muon":
        options = {k: v for k, v in vars(args).items() if k.startswith("muon_")}
        units = muon_units(unwrap(model), options)
    with global_expert_names(unwrap(model)):
        clip.bind(model, units)


@contextlib.contextmanager
def global_expert_names(model: Any) -> Iterator[None]:
    """Inside, ``model.state_dict()`` has the names of the model in one piece.

    ``ernie_pretrain`` of PaddleFormers numbers the experts of every
    expert-parallel rank from 0, so that ``mlp.experts.0`` is a different expert
    on each. Nothing changes for a model without ``config.moe_rank``, or whose
    experts have global numbers already.
    """
    config: Any = getattr(model, "config", None)
    rank = getattr(config, "moe_rank", None) or 0
    original = model.state_dict
    numbers = {n for name in original() for n in _EXPERT.findall(name)}
    if rank < 1 or "0" not in numbers:
        yield
        return
    num_ranks = getattr(config, "moe_world_size", None) or 1
    first = rank * (config.moe_num_experts // num_ranks)

    def renamed(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {
            _EXPERT.sub(lambda m: str(int(m[0]) + first), name): tensor
            for name, tensor in original(*args, **kwargs).items()
        }

    vars(model)["state_dict"] = renamed
    try:
        yield
    finally:
        del vars(model)["state_dict"]


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that fleet's wrappers hold."""
    while hasattr(optimizer, "_inner_opt"):
        optimizer = optimizer._inner_opt
    return optimizer


def put_into_optimizer(optimizer: Any, clip: ClipGradBase) -> None:
    """Let an optimizer clip with ``clip``; fleet's wrappers are looked into."""
    optimizer = innermost(optimizer)
    optimizer._grad_clip = clip
    for group in optimizer._param_groups:
        if isinstance(group, dict):
            group["grad_clip"] = clip


def load_clip(
    clip: ClipGradBase,
    checkpoint: str | os.PathLike[str] | None,
    missing_state: MissingState,
    new_tensors: NewTensors = "raise",
) -> None:
    """Resume a clip of this package from a checkpoint; others have no state.

    Every rank has to call it, with None where it knows of no checkpoint. The
    file that one rank finds serves all: a cluster without a shared disk has it
    on one node alone.
    """
    if not isinstance(clip, TensorScalingClip):
        return
    mine: dict[str, Any] | Exception | None = None
    try:
        mine = load_state(checkpoint) if checkpoint else None
    except (FileNotFoundError, ValueError) as error:
        mine = error
    found = [mine]
    if dist.is_initialized() and dist.get_world_size() > 1:
        found = []
        dist.all_gather_object(found, mine)
    states = [answer for answer in found if isinstance(answer, dict)]
    for rank, answer in enumerate(found):
        if isinstance(answer, ValueError):
            raise ValueError(f"rank {rank}: {answer}")
        if isinstance(answer, dict) and answer != states[0]:
            raise ValueError(
                f"ranks find different {STATE_FILE} in {checkpoint}: copy that "
                "of one rank to the others, or remove those of another run"
            )
    missing = [answer for answer in found if answer is not None]
    if states:
        clip.set_state_dict(states[0], new_tensors=new_tensors)
    elif missing and missing_state == "raise":
        raise FileNotFoundError(
            f"{missing[0]} To switch a run to this clip, which then starts "
            "with its warm-up, give missing_state='start'"
        )


def save_clip(clip: ClipGradBase, args: Any, step: int) -> None:
    """Save the whole model's state of a clip; every rank has to call it.

    It lies where the Trainer's files of this step lie: in ``output_dir``, or
    with ``flash_device_save_steps`` in the memory of each node.
    """
    if not isinstance(clip, TensorScalingClip):
        return
    state = clip.full_state_dict()
    name = f"checkpoint-{step}"
    flash_steps = getattr(args, "flash_device_save_steps", 0)
    is_in_flash = flash_steps > 0 and step % flash_steps == 0
    if is_in_flash and args.local_process_index == 0:
        flash = os.environ.get("PDC_FLASH_DEVICE", _FLASH_DEVICE)
        save_state(state, Path(flash) / name)
    is_kept = not is_in_flash or step % args.save_steps == 0
    if is_kept and dist.get_rank() == 0:
        save_state(state, Path(args.output_dir) / name)
