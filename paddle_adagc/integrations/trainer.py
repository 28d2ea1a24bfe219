# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A clip in the Trainers of PaddleNLP, PaddleFormers and PaddleFleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.progress import NewTensors
from paddle_adagc.integrations.checkpoints import MissingState
from paddle_adagc.integrations.clipping import (
    METHODS,
    Options,
    TrainerClip,
    Where,
)
from paddle_adagc.parallel.units import Declared

if TYPE_CHECKING:
    from paddlenlp.trainer import Trainer
else:
    Trainer = object


class ClippingMixin(Trainer):
    """Let a ``Trainer`` clip with ``clip``: put it before the Trainer's class.

    The optimizer stays the one that the Trainer makes from its arguments, with
    ``clip`` in place of ``max_grad_norm``. The clip is bound to the model
    before fleet wraps it. Every checkpoint gets its state for the whole model
    in a file (:mod:`paddle_adagc.state`) that comes after the Trainer's; it
    resumes from the checkpoint that the Trainer loads.

    Every training log gets ``clip_...`` numbers of the last step, over all
    ranks, from :meth:`ClipGradByAdaGC.summary`; the worst of all steps since
    the log before, with its index (``clip_h_min_worst``,
    ``clip_global_grad_norm_max``, ``..._step``); during the warm-up the
    ``global_step`` at which it ends (``clip_warmup_until``).

    Args:
        *args: Arguments of the Trainer.
        clip: One of this package's; or any ``ClipGradBase``, without state and
            numbers here, but ``ClipGradByGlobalNorm``, which fleet replaces.
        missing_state: ``"raise"``: refuse a checkpoint without a state of this
            class of clips. ``"start"``: begin there with the warm-up; so a run
            that had no such clip switches to it.
        new_tensors: See :meth:`ClipGradByAdaGC.set_state_dict`.
        units: See :meth:`ClipGradByAdaGC.bind`. By default they are those
            that the model names itself (:class:`.ModelUnits`).
        record: Folder of the run's :class:`.Record`, for ``adagc-report``.
            Default: ``record`` in ``args.output_dir``. False: none, and no
            worst steps in the logs.
        shadow: See :class:`.Record`.
        skip_above: See :class:`.Record`; it needs ``record``.
        stop_on: ``"nan"``: end the training once a loss is not finite, at the
            next log or 64 steps later; save if the weights are finite.
        **kwargs: Arguments of the Trainer; ``model`` as built, not wrapped.

    Raises:
        TypeError, ValueError: An argument is wrong, or the Trainer changes the
            model in ``train()``; there, the clip's state does not fit.
        FileNotFoundError: In ``train()``, the checkpoint has no clip's state.

    Example:
        >>> from paddlenlp.trainer import Trainer
        >>> from paddle_adagc import ClipGradByAdaGC
        >>> from paddle_adagc.integrations.paddlenlp import ClippingMixin
        >>> class ClippingTrainer(ClippingMixin, Trainer):
        ...     pass
        >>> trainer = ClippingTrainer(
        ...     clip=ClipGradByAdaGC(),
        ...     model=model,
        ...     args=args,
        ...     train_dataset=train_dataset,
        ... )
        >>> _ = trainer.train()
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
        record: Where = True,
        shadow: ClipGradBase | bool | None = None,
        skip_above: float | None = None,
        stop_on: Literal["nan"] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(clip, ClipGradBase):
            raise TypeError(
                f"clip is {clip!r}: give a clip, such as ClipGradByAdaGC()"
            )
        choices = missing_state, new_tensors, units, record
        options = Options(*choices, shadow, skip_above, stop_on)
        super().__init__(*args, **kwargs)
        self.clip = clip
        self._adagc = TrainerClip(self, clip, options)
        self._adagc.prepare()


def _around(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = getattr(super(ClippingMixin, self), name)
        if "_adagc" not in vars(self):  # within the Trainer's __init__
            return own(*args, **kwargs)
        return getattr(self._adagc, METHODS[name])(own, *args, **kwargs)

    return method


for _name in METHODS:
    setattr(ClippingMixin, _name, _around(_name))
