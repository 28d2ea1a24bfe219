# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""How a process ends: its exit, an exception that nobody caught, SIGTERM."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing import util
from types import FrameType, TracebackType
from typing import Any, ClassVar

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
    _hook: ClassVar[Any] = None  # another's, before ours
    _error: ClassVar[BaseException | None] = None

    def __init__(self, leave: Leave) -> None:
        self._method, self._pid = weakref.WeakMethod(leave), os.getpid()
        if not self._active:
            type(self)._hook, sys.excepthook = sys.excepthook, self._see
        self._active.add(self)
        atexit.register(self._exit)
        # multiprocessing's children call this and not atexit.
        util.Finalize(None, self._exit, exitpriority=0)
        if _is_main() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)

    @property
    def is_active(self) -> bool:
        """Whether the end of this process would call the method."""
        return self in self._active and self._pid == os.getpid()

    def _call(self, kind: str, text: str) -> None:
        function = self._method()
        if function is not None and self.is_active:
            with contextlib.suppress(Exception):
                function(kind, text)

    def _exit(self) -> None:
        if self._error is not None:
            self._call("exception", described(self._error))
        else:
            self._call("finished", "the process has ended without close()")

    @classmethod
    def _see(
        cls,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        cls._error = error
        (cls._hook or sys.__excepthook__)(kind, error, trace)

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
        if self._active:
            return
        if sys.excepthook == self._see:
            sys.excepthook = self._hook
        if _is_main() and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
