# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The one place where an error of observing ends, and with it the record."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import paddle.distributed as dist

from paddle_adagc.checks import KnownAttributes


class Guarded(KnownAttributes):
    """What observes a training, whose errors do not reach it.

    The first error is kept, :meth:`_on_error` says it, and nothing more is
    tried; but exchanges of all ranks go on, or the others would wait.
    """

    error: Exception | None

    def __init__(self) -> None:
        self.error = None
        """Why the record ended early."""
        self._is_over = False  # on all ranks, or closed
        self._pid = os.getpid()

    def _on_error(self, error: Exception, kind: str) -> None:
        raise NotImplementedError

    @property
    def _is_idle(self) -> bool:
        """Whether it ended, or this process is a forked child."""
        return self._is_over or self._pid != os.getpid()

    def _try(
        self,
        function: Callable[..., Any],
        *args: Any,
        failed: Any = None,
        raises: tuple[type[Exception], ...] = (),
    ) -> Any:
        """Call what observes; an error ends the record, not the training.

        Returns:
            What ``function`` does; ``failed`` if this record has failed.
        """
        if self.error is not None or self._is_idle:
            return failed
        try:
            return function(*args)
        except raises:
            raise
        except Exception as error:
            self._end(error)
            return failed

    def _ask(
        self, exchange: Callable[[Any], Any], mine: Any, failed: Any = None
    ) -> Any:
        """Take part in an exchange of all ranks, also if this one has failed.

        It then gives ``failed``; without it the others would wait for ever.
        """
        for _ in range(2):
            try:
                return exchange(mine if self.error is None else failed)
            except Exception as error:
                self._end(error, "rank" if dist.get_world_size() > 1 else "")
        return failed

    def _end(self, error: Exception, kind: str = "") -> None:
        """End the record, and say once why."""
        if self.error is None:
            self.error = error
            self._on_error(error, kind)


def cause(error: Exception | None) -> str:
    """Return what an exception says, or its name."""
    return str(error) or repr(error)
