# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where an error of observing ends, and how a process ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing import parent_process, util
from types import FrameType
from typing import Any, ClassVar

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


Leave = Callable[[str, str], None]
"""Takes the kind of an end, and what there is to say about it."""


def described(error: BaseException) -> str:
    """Return an exception's type and message."""
    text = f"{type(error).__name__}: {error}"
    return text.removesuffix(": ")


class AtExit:
    """Calls a bound method once, when the process ends, and says how.

    In this process alone: a forked child has its callers' memory, not their
    files. SIGTERM is seen if it had no handler when the first object was made;
    it still ends the process. A second one, in the meantime, is left out.
    """

    _active: ClassVar[set[AtExit]] = set()

    def __init__(self, leave: Leave) -> None:
        self._method, self._pid = weakref.WeakMethod(leave), os.getpid()
        self._before = getattr(sys, "last_value", None)
        self._active.add(self)
        atexit.register(self._exit)
        # multiprocessing's children call this and not atexit.
        util.Finalize(None, self._exit, exitpriority=0)
        if _is_main() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)

    def _call(self, kind: str, text: str) -> None:
        function = self._method()
        is_active = self in self._active and self._pid == os.getpid()
        if function is not None and is_active:
            with contextlib.suppress(Exception):
                function(kind, text)

    def _exit(self) -> None:
        # Python has printed it. Before Python 3.13 a child of multiprocessing
        # ends within it; from then on nothing tells the child.
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        if isinstance(error, SystemExit):
            error = error.__context__ if error.code else None
        is_new = error is not self._before and not hasattr(sys, "ps1")
        if error is not None and is_new:
            self._call("exception", described(error))
        elif parent_process() and sys.version_info >= (3, 13):
            text = "its process ended, and multiprocessing does not tell how"
            self._call("unknown", text)
        else:
            self._call("finished", "")

    @classmethod
    def _handle(cls, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        for one in [*cls._active]:
            one._call("signal", signal.Signals(number).name)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def end(self) -> None:
        """Call it no longer."""
        self._active.discard(self)
        atexit.unregister(self._exit)
        handler = signal.getsignal(signal.SIGTERM)
        if _is_main() and not self._active and handler == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
