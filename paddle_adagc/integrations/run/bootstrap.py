# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What ``adagc-run`` does in every Python process of its command.

:func:`install` waits for the modules of :data:`HOOKS` and changes each once it
ran: Paddle's optimizers report their steps and are recorded, the Trainers clip,
and their arguments leave out the clip's settings. It imports next to nothing,
because every Python process of the command calls it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

LIBRARIES = ("paddlenlp", "paddleformers", "paddlefleet")
"""Packages with a class ``trainer.trainer.Trainer``."""

SITE = os.path.join(os.path.dirname(__file__), "site")
"""Folder whose ``sitecustomize`` calls :func:`install`."""

OPENED: dict[str, None] = {}
"""YAML and JSON files that this process opened, in order."""


def install() -> None:
    """Wait for the modules; then run the user's own ``sitecustomize``.

    It may fail, as it would without ours.
    """
    sys.meta_path.insert(0, _Finder())
    sys.addaudithook(_note_opened)
    others = [entry for entry in sys.path if entry != SITE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _watch_optimizers(module: types.ModuleType) -> None:
    from paddle_adagc.integrations.run import steps
    from paddle_adagc.integrations.run.process import process

    here = process()
    steps.watch(module.__dict__["Optimizer"], here.before_step, here.after_step)


def _change_trainer(module: types.ModuleType) -> None:
    from paddle_adagc.integrations.run.inject import change_trainer
    from paddle_adagc.integrations.run.process import process

    here = process()
    change_trainer(
        module.__dict__["Trainer"],
        lambda given: here.settings([*OPENED], given),
        lambda: here.where(True),
        here.made,
        here.keeps_its_clip,
    )


def _change_parser(module: types.ModuleType) -> None:
    from paddle_adagc.integrations.run.arguments import change_parser
    from paddle_adagc.integrations.run.process import process

    change_parser(module.__dict__["PdArgumentParser"], process().saw)


def _change_arguments(module: types.ModuleType) -> None:
    from paddle_adagc.integrations.run.arguments import change_arguments
    from paddle_adagc.integrations.run.process import process

    change_arguments(module.__dict__["TrainingArguments"], process().saw)


HOOKS: dict[str, Callable[[types.ModuleType], None]] = {
    "paddle.optimizer.optimizer": _watch_optimizers
}
"""Module -> what is done to it once it ran."""

for _library in LIBRARIES:
    HOOKS[f"{_library}.trainer.trainer"] = _change_trainer
    HOOKS[f"{_library}.trainer.argparser"] = _change_parser
    HOOKS[f"{_library}.trainer.training_args"] = _change_arguments


class _Finder:
    """Finds the modules of :data:`HOOKS`."""

    @staticmethod
    def find_spec(
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in HOOKS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            run(module)
            if module.__name__ == fullname:  # a zip's loader has many modules
                HOOKS[fullname](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _note_opened(event: str, values: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(values[0], str):
        path = values[0]
        if path.endswith((".json", ".yaml", ".yml")) and len(OPENED) < 1000:
            OPENED[os.path.abspath(path)] = None
