# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Record ``paddle.Model.fit``, and keep a clip's state in its checkpoints."""

from __future__ import annotations

import os
import warnings
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.nn.clip import ClipGradBase

from paddle_adagc.clips.adagc import ClipGradByAdaGC
from paddle_adagc.integrations.no_record import Where
from paddle_adagc.integrations.optimizer import innermost
from paddle_adagc.integrations.recording import open_record
from paddle_adagc.integrations.run.settings import DEFAULT
from paddle_adagc.record.recorder import Record
from paddle_adagc.record.shadow import check_shadow
from paddle_adagc.state_file import STATE_FILE, load_state, save_state


class ClipCallback(paddle.callbacks.Callback):
    """Record ``model.fit()``; let ``model.save`` and ``load`` keep the clip.

    Make it before ``model.load()``: from then on ``save(path)``, which
    ``ModelCheckpoint`` calls, writes ``PATH.adagc_state.safetensors`` beside
    Paddle's files, and ``load(path)`` reads it. Under a clip that is not of
    this package it is the state of the shadow.

    Args:
        model: After ``prepare()``, with the clip in its optimizer.
        record: Folder of the :class:`.Record`; default: ``adagc-record``.
            False: none.
        shadow: See :class:`.Record`.

    Raises:
        RuntimeError: The model has no optimizer.

    Example:
        >>> import paddle
        >>> from paddle_adagc import ClipGradByAdaGC
        >>> from paddle_adagc.integrations.hapi import ClipCallback
        >>> network = paddle.nn.Linear(4, 2)
        >>> model = paddle.Model(network)
        >>> optimizer = paddle.optimizer.AdamW(
        ...     parameters=network.parameters(), grad_clip=ClipGradByAdaGC()
        ... )
        >>> model.prepare(optimizer, paddle.nn.MSELoss())
        >>> callback = ClipCallback(model, record="runs/hapi")
        >>> x, y = paddle.ones([8, 4]), paddle.ones([8, 2])
        >>> rows = paddle.io.TensorDataset([x, y])
        >>> model.fit(rows, batch_size=4, verbose=0, callbacks=[callback])
        >>> model.save("runs/hapi/last")
    """

    def __init__(
        self,
        model: paddle.Model,
        record: Where = True,
        shadow: ClipGradBase | bool | None = None,
    ) -> None:
        super().__init__()
        self._prepared = model
        if self._optimizer is None:
            raise RuntimeError("call model.prepare(optimizer, loss) before")
        if isinstance(shadow, ClipGradBase):
            check_shadow(shadow)
        self._where, self._shadow = record, shadow
        self._record: Record | None = None
        self._recorded: Any = None  # the optimizer of the last record
        self._state: dict[str, Any] | None = None  # of a shadow
        self._bind()
        self._change(model)

    def _bind(self) -> None:
        clip = self._clip
        if clip is not None and not (
            clip._progress.tensors.is_bound or clip.num_steps
        ):
            clip.bind(self._prepared.network)

    @property
    def _optimizer(self) -> Any:
        """That of the last ``prepare()``."""
        return innermost(self._prepared._optimizer)

    @property
    def _clip(self) -> ClipGradByAdaGC | None:
        clip = self._optimizer._grad_clip
        return clip if isinstance(clip, ClipGradByAdaGC) else None

    def _change(self, model: Any) -> None:
        """Let a model save and load the clip's state, too."""
        save, load = model.save, model.load

        def save_all(path: str, training: bool = True) -> None:
            save(path, training)
            if not training or dist.ParallelEnv().local_rank:
                return
            try:
                if state := self._state_now():
                    save_state(state, *_beside(path))
            except Exception as error:
                if self._clip is not None:
                    raise
                warnings.warn(
                    f"the shadow's state is not saved: {error!r}", stacklevel=2
                )

        def load_all(
            path: str,
            skip_mismatch: bool = False,
            reset_optimizer: bool = False,
        ) -> None:
            load(path, skip_mismatch, reset_optimizer)
            folder, name = _beside(path)
            if reset_optimizer or not os.path.exists(f"{folder}/{name}"):
                return
            self._state = load_state(folder, name)
            if self._clip is not None:
                self._bind()
                may_differ: Any = "start" if skip_mismatch else "raise"
                self._clip.set_state_dict(self._state, new_tensors=may_differ)

        model.save, model.load = save_all, load_all

    def _state_now(self) -> dict[str, Any] | None:
        if self._clip is not None:
            return self._clip.state_dict()
        if self._record is not None and self._record.shadow is not None:
            self._state = self._record.shadow.state_dict()
        return self._state

    def on_train_begin(self, logs: Any = None) -> None:
        """Open the record."""
        self._bind()
        self.on_train_end()  # of a fit() that was interrupted
        if self._where is False:
            return
        start: int | None = 0 if self._recorded is None else None
        state, optimizer = self._state, self._optimizer
        if self._recorded not in (None, optimizer):
            start = None  # of the last prepare(): it goes on after the earlier
        elif self._clip is not None:
            start = self._clip.num_steps
        elif state is not None:
            start = state["step"]
        self._recorded = optimizer
        self._record = open_record(
            DEFAULT if self._where is True else self._where,
            optimizer,
            model=self.model.network,
            shadow=self._shadow,
            start=start,
        )
        if self._record is None or self._record.shadow is None:
            return
        if state and self._clip is None:  # else it is of the clip that acts
            self._record.shadow.set_state_dict(state)
            self._record.forget_updates()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the steps so far; ``ModelCheckpoint`` then saves."""
        if self._record is not None:
            self._record.flush()

    def on_train_end(self, logs: Any = None) -> None:
        """Write what is left."""
        if self._record is not None:
            self._record.flush()
            self._state_now()
            self._record.close()
            self._record = None


def _beside(path: str) -> tuple[str, str]:
    """Return folder and name of the file beside a checkpoint of hapi's."""
    stem, ending = os.path.splitext(path)
    if ending not in (".pdparams", ".pdopt", ".pdmodel"):
        stem = path
    folder, name = os.path.split(stem)
    return folder or ".", f"{name}.{STATE_FILE}"
