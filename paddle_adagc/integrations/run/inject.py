# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Put the mixin before the class of every Trainer that is made."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

from paddle_adagc.integrations.attach import Callback
from paddle_adagc.integrations.no_record import Where
from paddle_adagc.integrations.recording import TrainerRecord
from paddle_adagc.integrations.run.settings import (
    OF_RECORDS,
    Settings,
    make_clip,
)
from paddle_adagc.integrations.trainer import ClippingMixin
from paddle_adagc.integrations.watching import WatchingCallback


def change_trainer(
    trainer: Any,
    settings: Callable[[Iterable[Any]], Settings],
    where: Callable[[], Where] = lambda: True,
    made: Callable[[Any], None] = lambda trainer: None,
    keeps_its_clip: Callable[[Any], None] = lambda trainer: None,
) -> None:
    """Let each Trainer of a class, and of its subclasses, clip and record.

    A Trainer gets its new class in ``trainer.__init__``, through which all
    subclasses go, also those with ``__new__``. Class names stay.

    Args:
        trainer: The library's class.
        settings: Gives those of a new Trainer, made of these arguments;
            without ``clip`` its own clip stays.
        where: Gives the folder of a new Trainer's record.
        made: Called with each Trainer that got a clip.
        keeps_its_clip: Called with each Trainer that has the mixin, or a
            callback that clips.
    """
    original = trainer.__init__
    ours: set[type] = set()

    @functools.cache
    def with_clip(cls: Any) -> Any:
        names = {
            "__init__": cls.__init__,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
        }
        bases = (ClippingMixin, cls)
        clipping = types.new_class(
            cls.__name__, bases, {}, lambda space: space.update(names)
        )
        ours.add(clipping)
        return clipping

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        cls: Any = type(self)
        made_of = [*args, *kwargs.values()]
        lists = [a for a in made_of if isinstance(a, (list, tuple))]
        ready = [c for one in lists for c in one if isinstance(c, Callback)]
        has_clip = any(callback.clips for callback in ready)
        if has_clip or (issubclass(cls, ClippingMixin) and cls not in ours):
            keeps_its_clip(self)
            original(self, *args, **kwargs)
            return
        given = settings(made_of)
        rest = {k: v for k, v in given.items() if k != "clip"}
        chosen = {k: rest.pop(k) for k in OF_RECORDS if k in rest}
        if "clip" not in given:
            original(self, *args, **kwargs)
            self.add_callback(WatchingCallback(where(), **chosen))
            return
        clip: Any = make_clip(**given["clip"])
        if given["clip"]["name"] == "global_norm":  # the Trainer's own
            original(self, *args, **kwargs)
            if "lambda_abs" in given["clip"] or not self.args.max_grad_norm:
                self.args.max_grad_norm = clip.clip_norm
            self.add_callback(WatchingCallback(where(), **chosen))
        else:
            if cls not in ours:
                self.__class__ = with_clip(cls)
            original(self, *args, **kwargs)
            record = TrainerRecord(where(), **chosen)
            self._adagc_attach(clip, record, **rest)
        made(self)

    trainer.__init__ = init
