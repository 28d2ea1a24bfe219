# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What ``adagc-run`` does and says in a process of its command."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection
from multiprocessing import util
from shlex import quote
from typing import Any

from paddle_adagc.run.settings import (
    CLIP,
    RECORD,
    TRAINER,
    Values,
    of_trainer,
    shown,
)


@functools.cache
def current(plan: str) -> Process:
    """Return what ``adagc-run`` knows of this process.

    Args:
        plan: A :class:`.command.Plan`, as JSON.
    """
    return Process(**json.loads(plan))


def after_init(kind: Any, function: Callable[[Any], None]) -> None:
    """Call a function at the end of a class' ``__init__``; subclasses' too."""
    original = kind.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        function(self)

    kind.__init__ = init


def say(text: str) -> None:
    """Print a line of ``adagc-run`` in a process of the command."""
    print(f"adagc-run: {text}", file=sys.stderr, flush=True)


@dataclasses.dataclass
class Done:
    """What a process has done; a child that was forked begins anew."""

    pid: int = dataclasses.field(default_factory=os.getpid)
    num_clipped: int = 0
    """Steps with AdaGC."""

    warmup_left: int = 0
    without: Counter[str] = dataclasses.field(default_factory=Counter)
    """Steps without it, by what is said of their optimizers."""

    records: list[tuple[Any, str]] = dataclasses.field(default_factory=list)
    """Records, weakly, and their folders at first: a full disk moves them."""


class Process:
    """Puts the clip into each Trainer; counts steps with it and without.

    Args:
        values: See :class:`.command.Plan`.
        record: See there.
        watch: See there.
        require: See there.
    """

    def __init__(
        self, values: Values, record: bool | str, watch: bool, require: bool
    ) -> None:
        self._values, self._record = values, record
        self._watch, self._require = watch, require
        self._trainers: list[Any] = []
        self._active: set[int] = set()  # optimizers that update just now
        self._clips: weakref.WeakKeyDictionary[
            Any, tuple[Values, list[str]]
        ] = weakref.WeakKeyDictionary()
        """Clips, where the settings come from of those that this process made,
        and what else is to be said of each."""

        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._begin_count()

    def _begin_count(self) -> None:
        self._done = Done()
        # multiprocessing's children call this and not atexit.
        util.Finalize(None, self._say_what_was_done, exitpriority=0)

    def on_paddle(self, paddle: Any) -> None:
        """Be called around each update of each optimizer of Paddle."""
        if not hasattr(paddle, "optimizer"):
            return
        import paddle_adagc.parallel.topology  # noqa: F401  # of 3.1 to 3.3

        kinds: list[Any] = [paddle.optimizer.Optimizer]
        for kind in kinds:
            kinds += kind.__subclasses__()
            # LBFGS updates in its step, and calls no clip.
            name = "step" if kind.__name__ == "LBFGS" else "_apply_optimize"
            if name in vars(kind):
                setattr(kind, name, self._around(vars(kind)[name]))
        if self._watch:
            from paddle_adagc.run.watch import see_losses

            see_losses()

    def on_trainer(self, module: Any) -> None:
        """Let the Trainers of a module clip."""
        after_init(module.Trainer, self._made)

    def _made(self, trainer: Any) -> None:
        """Put the clip, or the record, into a new Trainer."""
        from paddle_adagc.integrations.clipping import Options, attach
        from paddle_adagc.integrations.trainer import ClippingMixin

        if getattr(trainer, "model", None) is None:  # it trains nothing
            return
        self._trainers.append(weakref.ref(trainer))
        if isinstance(trainer, ClippingMixin):
            return
        chosen = {k: v for k, (v, _) in self._values.items() if k in TRAINER}
        options = Options(record=self._record, **chosen)
        attach(trainer, None if self._watch else self._clip(trainer), options)

    def _attached(self) -> list[Any]:
        """Return what was put into Trainers, but for those with a mixin."""
        if not self._trainers:
            return []
        from paddle_adagc.integrations.trainer import ClippingMixin

        alive = filter(None, (one() for one in self._trainers))
        return [x._adagc for x in alive if not isinstance(x, ClippingMixin)]

    def _clip(self, trainer: Any) -> Any:
        """Return a script's AdaGC, given by ``optimizers=``; else a new one."""
        from paddle_adagc import ClipGradByAdaGC
        from paddle_adagc.integrations.arguments import without_effect
        from paddle_adagc.optimizer import clip_of

        given = trainer.optimizer and clip_of(trainer.optimizer)
        if isinstance(given, ClipGradByAdaGC):
            self._take_given(given, TRAINER)
            return given
        mine = {k: v for k, v in self._values.items() if k in CLIP}
        values = {**of_trainer(trainer.args), **mine}
        try:
            clip = ClipGradByAdaGC(**{k: v for k, (v, _) in values.items()})
        except (TypeError, ValueError) as error:
            raise ValueError(f"adagc-run: {error}") from error
        self._clips[clip] = values, without_effect(trainer.args)
        return clip

    def _take_given(self, clip: Any, used: Collection[str]) -> None:
        """Note which of our options a script's own clip does without."""
        unused = self._values.keys() - used
        if not used and self._record is not True:
            unused |= {"record"}
        text = f"the script's own, without {', '.join(sorted(unused))}"
        self._clips[clip] = {}, [text] if unused else []

    def _around(self, update: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(update)
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if id(optimizer) in self._active:  # super()'s method
                return update(optimizer, *args, **kwargs)
            # A clip looks for this variable here.
            param_group = sys._getframe(1).f_locals.get("param_group")
            self._active.add(id(optimizer))
            try:
                observed = vars(optimizer).get(update.__name__)
                if optimizer not in self._seen:
                    self._seen.add(optimizer)
                    self._begin(optimizer)
                clip = _ours(optimizer)
                num_before = 0 if clip is None else clip.num_steps
                now = vars(optimizer).get(update.__name__)
                if now is observed:
                    result = update(optimizer, *args, **kwargs)
                else:  # a record begins with this update
                    result = now(*args, **kwargs)
                groups = optimizer._param_groups
                is_first = param_group is None or param_group is groups[0]
                self._count(optimizer, num_before, is_first)
            finally:
                self._active.discard(id(optimizer))
                del param_group
            return result

        return apply

    def _begin(self, optimizer: Any) -> None:
        """Say, before an optimizer's first step, what is in force.

        Raises:
            RuntimeError: AdaGC is not, and the command requires it.
        """
        if self._done.pid != os.getpid():
            self._begin_count()
        if self._watch:
            self._begin_record(optimizer)
            return
        clip = _ours(optimizer)
        said = (self._in_force(clip),) if clip else self._what_lacks(optimizer)
        if clip is None and self._require:
            raise RuntimeError(f"adagc-run --require: {''.join(said)}")
        if _is_first_of_node():
            say("".join(said))

    def _begin_record(self, optimizer: Any) -> None:
        from paddle_adagc.run import watch

        record = watch.record_of(optimizer)
        if record is None and self._trainer_of(optimizer) is not None:
            return  # its record could not be opened, and a warning says why
        options = {k: v for k, (v, _) in self._values.items()}
        if record is None:
            where = self._record if isinstance(self._record, str) else None
            record = watch.record_loop(optimizer, where, options)
            if options.get("stop_on") and _is_first_of_node():
                say(
                    "--stop-on ends a Trainer's run, and this is none: make a "
                    "Record in the loop, and end it once record.should_stop"
                )
        elif all(one.record is not record for one in self._attached()):
            unused = [*options, *["record"] * isinstance(self._record, str)]
            if unused and _is_first_of_node():
                say(f"the script's own record, without {', '.join(unused)}")
        if record is not None and (line := watch.started(record, optimizer)):
            path = watch.shown_path(record)
            self._done.records.append((weakref.ref(record), path))
            say(line)

    def _in_force(self, clip: Any) -> str:
        import paddle.distributed as dist

        from paddle_adagc import ClipGradByAdaGC
        from paddle_adagc.optimizer import clip_of

        if clip not in self._clips:  # of a mixin, or of a loop
            trained = [x.trainer.optimizer for x in self._attached()]
            is_recorded = any(x and clip_of(x) is clip for x in trained)
            self._take_given(clip, RECORD if is_recorded else ())
        origins, notes = self._clips[clip]
        usual = ClipGradByAdaGC().arguments()
        given = {
            name: (value, origins.get(name, ("", "the script"))[1])
            for name, value in clip.arguments().items()
            if name in origins or value != usual.get(name)
        }
        text = f"AdaGC in force: {shown(given) or 'its defaults'}"
        tensors = clip._progress.tensors
        holders = tensors.cuts.parameters.values() if tensors.cuts else ()
        num = len(tensors.keys)
        if tensors.is_bound:  # frozen ones have no gradient
            num = sum(tensor.takes_part for tensor in tensors.layout)
            holders = [holder for holder in holders if holder.takes_part]
        num_units = sum(len(holder.units) for holder in holders)
        if num:
            text += f"; {num} tensor{'s' * (num != 1)}"
        if num_units:
            text += f", {num_units} of them units of {len(holders)} "
            text += "parameters"
        if clip.num_steps:
            text += f"; resumed after {clip.num_steps} steps"
        if dist.get_world_size() > 1:
            text += f"; rank {dist.get_rank()} of {dist.get_world_size()}"
        return "; ".join((text, *notes))

    def _count(self, optimizer: Any, num_before: int, is_first: bool) -> None:
        clip = _ours(optimizer)
        if clip is not None:
            self._done.num_clipped += clip.num_steps - num_before
            self._done.warmup_left = clip.warmup_left
        elif is_first:
            self._done.without[self._what_lacks(optimizer)[0]] += 1

    def _trainer_of(self, optimizer: Any) -> Any:
        """Return the Trainer that an optimizer is of; None: of none."""
        from paddle_adagc.optimizer import innermost

        for trainer in filter(None, (one() for one in self._trainers)):
            own = getattr(trainer, "optimizer", None)
            if own is not None and innermost(own) is innermost(optimizer):
                return trainer
        return None

    def _what_lacks(self, optimizer: Any) -> tuple[str, str]:
        """Name an optimizer that steps without AdaGC, and why; then a mend."""
        from paddle_adagc.optimizer import clip_of, threshold_of

        name, clip = type(optimizer).__name__, clip_of(optimizer)
        if (trainer := self._trainer_of(optimizer)) is not None:
            kind = type(trainer).__name__
            return f"{name} without AdaGC: {kind} has given it {clip}", ""
        if name == "LBFGS":
            return f"{name} without AdaGC: it calls no clip", ""
        given = {"lambda_abs": norm} if (norm := threshold_of(clip)) else {}
        given |= {k: v for k, (v, _) in self._values.items() if k in CLIP}
        words = ", ".join(f"{k}={v!r}" for k, v in given.items())
        return (
            f"{name} without AdaGC: it belongs to no Trainer",
            ". Add these lines:\n    from paddle_adagc import ClipGradByAdaGC"
            f"\n    clip = ClipGradByAdaGC({words}); clip.bind(model)"
            f"\n    {name}(..., grad_clip=clip)",
        )

    def _say_what_was_done(self) -> None:
        done = self._done
        if self._watch:
            for made, path in done.records:
                from paddle_adagc.run import watch

                now = watch.shown_path(made()) if made() else path
                say(f"to see what happened:\n    adagc-report {quote(now)}")
            return
        if _is_first_of_node() and done.num_clipped:
            text = f"AdaGC clipped {_steps(done.num_clipped)}"
            if left := done.warmup_left:
                text += f"; its warm-up was not over, {left} more to go"
            say(text)
        elif self._trainers and not (done.num_clipped or done.without):
            say("a Trainer was made, but it made no step")
        for text, number in done.without.items():
            say(f"{_steps(number)} of {text}")


def _steps(number: int) -> str:
    return f"{number} step{'s' * (number != 1)}"


def _ours(optimizer: Any) -> Any:
    """Return an optimizer's clip if it is AdaGC; LBFGS calls none."""
    if type(optimizer).__name__ == "LBFGS":
        return None
    from paddle_adagc import ClipGradByAdaGC
    from paddle_adagc.optimizer import clip_of

    clip = clip_of(optimizer)
    return clip if isinstance(clip, ClipGradByAdaGC) else None


def _is_first_of_node() -> bool:
    return os.environ.get("PADDLE_RANK_IN_NODE", "0") == "0"
