# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
# mypy: disallow-untyped-defs=False
"""Python runs this at its start: ``adagc-run`` puts the folder on its path.

Any Python of the command does, of any version. So this file needs nothing but
the standard library, and does nothing until Paddle or a Trainer is imported.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PLAN = os.environ.get("PADDLE_ADAGC_RUN")
HOOKS = {"paddle": "on_paddle"}
for _library in ("paddlenlp", "paddleformers", "paddlefleet"):
    HOOKS[_library + ".trainer.trainer"] = "on_trainer"


class Finder:
    """Calls a hook once a module of :data:`HOOKS` has run."""

    def find_spec(self, fullname, path=None, target=None):
        """Find it by the other finders."""
        if fullname not in HOOKS:
            return None
        found = (
            finder.find_spec(fullname, path, target)
            for finder in sys.meta_path
            if finder is not self and hasattr(finder, "find_spec")
        )
        spec = next((one for one in found if one is not None), None)
        if spec is None or not hasattr(spec.loader, "exec_module"):
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            if module.__name__ == fullname:  # a zip's loader has many modules
                tell(HOOKS[fullname], module)

        spec.loader.exec_module = exec_module
        return spec


def tell(hook, module):
    """Call a function of the package, which this Python may lack."""
    try:
        from paddle_adagc.run import process

        getattr(process.current(PLAN), hook)(module)
    except ImportError as error:
        text = "adagc-run: {} neither clips nor records: {}"
        text = text.format(sys.executable, error)
        if '"require": true' in PLAN:
            raise RuntimeError(text) from error
        sys.stderr.write(text + "\n")


def run_next():
    """Run the sitecustomize that Python would find without this one.

    It may fail, as it would then.
    """
    others = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if PLAN is not None:
    sys.meta_path.insert(0, Finder())
run_next()
