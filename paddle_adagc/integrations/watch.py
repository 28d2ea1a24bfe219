# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""``adagc-run --watch``: record any Paddle training command, unchanged.

The command keeps its clip. Every Python process of it gets a ``sitecustomize``
that waits for Paddle's optimizers: the first update of one makes a
:class:`~paddle_adagc.Record`. The loss is the sum of the scalars whose
``backward()`` was called since the update before: the function whose gradient
the optimizer gets.

Paddle is imported within functions: the ``sitecustomize`` imports this module
before it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.machinery
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paddle_adagc.record.recorder import Record

VARIABLE = "PADDLE_ADAGC_WATCH"
"""Environment variable: the folder of the record; empty: beside a Trainer's."""

DEFAULT = "adagc-record"
"""Folder of a record without a Trainer, in the command's working folder."""

_LIBRARIES = ("paddlenlp", "paddleformers", "paddlefleet")
_MODULE = "paddle.optimizer.optimizer"
_SITE = """\
from paddle_adagc.integrations.watch import install
install(__file__)
"""
_HELP = f"""\
usage: adagc-run --watch [--record DIR] [--] COMMAND ...

  adagc-run --watch python train.py
  adagc-run --watch python -m paddle.distributed.launch train.py

Run any Paddle training command as it is, and record it: every step, and what
AdaGC would have done beside the clip that acts. Then: adagc-report DIR

  --record DIR   folder of the record (default: OUTPUT_DIR/record with a
                 Trainer, else {DEFAULT}); a resumed command goes on in it
  --check        say what it would do, and stop"""


# ---- the command ------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Run ``adagc-run --watch``; ``arguments`` are those without that word.

    Returns:
        The command's exit status; 2: nothing was recorded, or a mistake here.
    """
    words, folder, is_check = [*arguments], "", False
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, has_value, value = word.partition("=")
        if word == "--":
            break
        if word == "--check":
            is_check = True
            continue
        if word in ("-h", "--help"):
            print(_HELP)
            return 0
        if name != "--record" or not (has_value or words):
            what = "lacks its value" if name == "--record" else "is no option"
            print(
                f"adagc-run: {word!r} {what} of --watch, see adagc-run --watch "
                "--help; put -- before the command",
                file=sys.stderr,
            )
            return 2
        folder = value if has_value else words.pop(0)
    if not words:
        print("adagc-run: give the command to run, or --help", file=sys.stderr)
        return 2
    if is_check:
        print(f"adagc-run: would record, and run {shlex.join(words)}")
        return 0
    try:
        return _run(words, folder and os.path.abspath(folder))
    except OSError as error:
        print(f"adagc-run: {error}", file=sys.stderr)
        return 2


def _run(command: Sequence[str], folder: str) -> int:
    with tempfile.TemporaryDirectory(prefix="adagc-run-") as site:
        Path(site, "sitecustomize.py").write_text(_SITE)
        path = os.pathsep.join(
            filter(None, (site, os.environ.get("PYTHONPATH")))
        )
        variables = {**os.environ, "PYTHONPATH": path, VARIABLE: folder}
        status = _call(command, variables)
        made = [*Path(site).glob("record-*")]
        if status == 0 and not made:
            print(
                "adagc-run: the command ended, and no process of it made a "
                "step with an optimizer of Paddle: nothing was recorded",
                file=sys.stderr,
            )
            return 2
        for place in sorted(found.read_text() for found in made):
            print(
                f"adagc-run: look at it: adagc-report {place}", file=sys.stderr
            )
    return status


def _call(command: Sequence[str], variables: dict[str, str]) -> int:
    """Run a command that gets this process' signals, too."""
    process = subprocess.Popen(command, env=variables)
    before = {
        number: signal.signal(number, lambda n, _: process.send_signal(n))
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    }
    try:
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # the command's, too
                status = process.wait()
                return status if status >= 0 else 128 - status
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- in the processes of the command ----------------------------------------


def install(site: str) -> None:
    """Wait for Paddle's optimizers; called by ``sitecustomize``.

    ``site`` is the path of that file; the user's own one is run as well.
    """
    folder = str(Path(site).parent)
    sys.meta_path.insert(0, _Finder(folder))
    others = [entry for entry in sys.path if entry != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class _Finder:
    """Finds the module of Paddle's optimizers, and changes it once it ran."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            watch(module.__dict__["Optimizer"], self._made)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _made(self, record: Record) -> None:
        """Tell the command, which is another process."""
        mark = Path(self._folder, f"record-{os.getpid()}-{id(record)}")
        with contextlib.suppress(OSError):
            mark.write_text(str(record.directory))


def watch(optimizer: Any, made: Callable[[Record], None]) -> Callable[[], None]:
    """Record every optimizer of Paddle's class and of its subclasses.

    Args:
        optimizer: ``paddle.optimizer.Optimizer``.
        made: Called with each record, on the first rank.

    Returns:
        What closes the records; every rank calls it. A process that ends
        without it leaves the last steps of each rank.
    """
    from paddle_adagc.integrations.optimizer import caller_group

    watcher = _Watcher(made)
    update = optimizer._apply_optimize

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        watcher.see_losses()  # AdamW leaves Optimizer.__init__ out
        return object.__new__(cls)

    @functools.wraps(update)
    def _apply_optimize(
        self: Any,
        loss: Any,
        startup_program: Any,
        params_grads: Any,
        param_group_idx: int = 0,
    ) -> Any:
        param_group = caller_group()  # a clip looks for it here
        given = (loss, startup_program, params_grads, param_group_idx)
        is_new = watcher.begins(self)  # then go through its record
        result = (
            self._apply_optimize(*given) if is_new else update(self, *given)
        )
        del param_group
        return result

    optimizer.__new__ = __new__
    optimizer._apply_optimize = _apply_optimize
    return watcher.close


class _Watcher:
    """The records of a process, by optimizer, and the losses since."""

    def __init__(self, made: Callable[[Record], None]) -> None:
        self._made = made
        self._records: dict[int, Record | None] = {}
        self._losses: list[Any] = []
        self._scaled: tuple[Any, Any] = (None, None)
        self._sees_losses = False

    def begins(self, optimizer: Any) -> bool:
        """Make the record of an optimizer at its first update."""
        is_new = id(optimizer) not in self._records
        if is_new:
            self._records[id(optimizer)] = self._make(optimizer)
        record = self._records[id(optimizer)]
        losses, self._losses = self._losses, []
        if record is not None:
            for loss in losses:
                record.add_loss(loss)
        return is_new and record is not None

    def _make(self, optimizer: Any) -> Record | None:
        import paddle.distributed as dist

        from paddle_adagc.record.recorder import Record

        number = sum(record is not None for record in self._records.values())
        trainer = _trainer_of(optimizer)
        folder = os.environ.get(VARIABLE) or (
            str(Path(trainer.args.output_dir, "record")) if trainer else DEFAULT
        )
        folder = os.path.abspath(folder) + (f"-{number + 1}" if number else "")
        start = trainer.state.global_step if trainer and not number else None
        try:
            record = Record(folder, optimizer, start=start)
        except Exception as error:  # the command goes on as without us
            print(f"adagc-run: nothing is recorded: {error}", file=sys.stderr)
            return None
        if trainer and not number:
            _follow_checkpoints(record, trainer)
        if dist.get_rank() == 0:
            self._made(record)
            print(
                f"adagc-run: records {type(optimizer).__name__} into {folder}",
                file=sys.stderr,
            )
        return record

    def see_losses(self) -> None:
        """See every scalar that is differentiated from now on."""
        if self._sees_losses:
            return
        self._sees_losses = True
        import paddle
        from paddle.amp.grad_scaler import AmpScaler

        tensor: Any = paddle.Tensor
        backward, together = tensor.backward, paddle.autograd.backward
        scale = AmpScaler.scale

        @functools.wraps(backward)
        def of_tensor(loss: Any, *args: Any, **kwargs: Any) -> Any:
            self.finish()
            if _has_no_gradient(args, kwargs, "grad_tensor"):
                self._take([loss])
            return backward(loss, *args, **kwargs)

        @functools.wraps(together)
        def of_tensors(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self.finish()
            if _has_no_gradient(args, kwargs, "grad_tensors"):
                is_one = isinstance(tensors, paddle.Tensor)
                self._take([tensors] if is_one else tensors)
            return together(tensors, *args, **kwargs)

        @functools.wraps(scale)
        def scaled(scaler: Any, loss: Any) -> Any:
            result = scale(scaler, loss)
            self._scaled = result, loss
            return result

        tensor.backward = of_tensor
        paddle.autograd.backward = of_tensors
        AmpScaler.scale = scaled

    def _take(self, losses: Sequence[Any]) -> None:
        """Add losses to the next step."""
        for loss in losses:
            if loss.size == 1:
                is_scaled = loss is self._scaled[0]
                loss = self._scaled[1] if is_scaled else loss
                self._losses.append(loss.detach())
        self._scaled = (None, None)

    def close(self) -> None:
        """Finish the last steps, and write them."""
        self.finish()
        for record in self._records.values():
            if record is not None:
                record.close()

    def finish(self) -> None:
        """Finish the steps of the optimizers that have made one."""
        for record in self._records.values():
            if record is not None and record.has_update:
                record.step()


def _has_no_gradient(args: Any, kwargs: Any, name: str) -> bool:
    """Whether a call differentiates scalars, and not along given vectors."""
    return (args[0] if args else kwargs.get(name)) is None


def _trainer_of(optimizer: Any) -> Any:
    """Find the Trainer that made an optimizer; None: none did."""
    from paddle_adagc.integrations.optimizer import innermost

    modules = [sys.modules.get(f"{n}.trainer.trainer") for n in _LIBRARIES]
    kinds = tuple(module.Trainer for module in modules if module is not None)
    for thing in gc.get_objects() if kinds else ():
        if isinstance(thing, kinds):
            own = getattr(thing, "optimizer", None)
            if own is not None and innermost(own) is innermost(optimizer):
                return thing
    return None


def _follow_checkpoints(record: Record, trainer: Any) -> None:
    """Keep the shadow's state in a Trainer's checkpoints, and resume it."""
    from paddle_adagc.integrations.checkpoints import (
        load_clip,
        place_clip,
        stage_clip,
    )

    shadow, args, step = record.shadow, trainer.args, trainer.state.global_step
    if shadow is not None and step:
        load_clip(shadow, f"{args.output_dir}/checkpoint-{step}", "start")
        record.forget_updates()
    save = trainer._save_checkpoint

    def _save_checkpoint(*args_of_save: Any, **kwargs: Any) -> Any:
        if record.has_update:
            record.step()
        record.flush()
        staged = []
        if record.shadow is not None:
            staged = stage_clip(record.shadow, args, trainer.state)
        result = save(*args_of_save, **kwargs)
        place_clip(staged)
        return result

    trainer._save_checkpoint = _save_checkpoint
