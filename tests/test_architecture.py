# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The walls: the core, its two wings, the laboratory behind.

``.ci/without-wings`` runs the core's tests without the others.
"""

import re
import sys

from pages import ROOT

LIBRARY = ROOT / "paddle_adagc"
IMPORT = re.compile(r"^ *(?:from +(\S+) +)?import +\(?\s*([\w.]+)", re.M)
ALLOWED = {"paddle_adagc", "paddle", "numpy", "safetensors"}
MORE = {
    "run/settings.py": {"yaml"},  # a file of settings
    # For type checkers.
    "integrations/trainer.py": {"paddlenlp"},
    "integrations/clipping.py": {"paddlenlp"},
}
"""File of the library -> what it imports beside them."""


def imports(folder):
    """Names that each file imports, in functions, too."""
    return {
        path.relative_to(folder).as_posix(): {
            ".".join(filter(None, names))
            for names in IMPORT.findall(path.read_text("utf-8"))
        }
        for path in folder.rglob("*.py")
    }


def importers(name):
    """The library's files outside of a folder that import it."""
    prefix = f"paddle_adagc.{name}."
    return {
        file
        for file, names in imports(LIBRARY).items()
        if any(f"{found}.".startswith(prefix) for found in names)
        if not file.startswith(f"{name}/")
    }


def test_the_library_does_with_paddle_numpy_and_safetensors():
    for file, names in imports(LIBRARY).items():
        tops = {name.split(".")[0] for name in names}
        tops -= {*sys.stdlib_module_names}
        assert tops <= ALLOWED | MORE.get(file, set()), file


def test_the_wings_come_off():
    """Nothing but ``run`` imports it; each wing knows the record once."""
    assert importers("run") == set()
    assert importers("watch") == {"run/watch.py", "integrations/clipping.py"}
    watch = {"watch/observe.py", "watch/recorder.py", "watch/trainer.py"}
    others = {n for n in importers("integrations") if n[:4] != "run/"}
    assert others <= watch


def test_one_function_unpickles():
    unpickles = re.compile(
        r"\b(?:paddle|torch|pickle|joblib)\.loads?\(|allow_pickle=True"
        r"|\bUnpickler\b|from (?:pickle|dill|joblib|torch) import|_load_ckpt"
    )
    places = {
        path.relative_to(ROOT).as_posix()
        for folder in (LIBRARY, ROOT / "tools")
        for path in folder.rglob("*.py")
        if unpickles.search(path.read_text("utf-8"))
    }
    assert places == {
        "paddle_adagc/adaptive_norm.py",
        "tools/adagc_lab/train/checkpoints.py",
    }
