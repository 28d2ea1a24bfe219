# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The walls: the library in front, the laboratory behind, no circles.

Imports are read from the sources: those of modules and of functions, but not
those under ``TYPE_CHECKING``. What an import loads is seen in a process.
"""

import ast
import graphlib
import importlib.util
import json
import re
import sys

from helpers import run_python
from pages import ROOT

import paddle_adagc

LIBRARY = "paddle_adagc"
LAB = "adagc_lab"
ROWS = (
    ("checksums", "markdown", "processor", "storage"),
    ("section",),
    ("gloo", "data", "faults", "clips"),
    ("optimizers",),
    ("models",),
    ("record",),
    ("report",),
    ("train",),
    ("paddleformers",),
    ("evaluate",),
    ("benchmark",),
    ("check",),
    ("reproduce",),
)
"""Rooms of the laboratory from the bottom up; imports go down, not sideways."""

LEVELS = {room: level for level, row in enumerate(ROWS) for room in row}
LEVELS[LAB] = -1
ALLOWED = {LIBRARY, "paddle", "numpy", "safetensors", *sys.stdlib_module_names}
"""What the library imports."""

MORE = {f"{LIBRARY}.run.settings": {"yaml"}}
"""It reads a file of settings that is in YAML."""


def read_sources():
    """Source of every module of both packages, by the module's name."""
    sources = {}
    for base, package in ((ROOT, LIBRARY), (ROOT / "tools", LAB)):
        for path in (base / package).rglob("*.py"):
            parts = path.relative_to(base).with_suffix("").parts
            module = ".".join(part for part in parts if part != "__init__")
            sources[module] = path.read_text("utf-8")
    return sources


def imported_names(node, package):
    """Dotted names of what a module and its functions import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            base = importlib.util.resolve_name(base, package)
            yield from (f"{base}.{alias.name}" for alias in child.names)
        elif not (
            isinstance(child, ast.If)
            and ast.unparse(child.test).endswith("TYPE_CHECKING")
        ):
            yield from imported_names(child, package)


def imports_of(sources):
    """The modules that each module imports."""

    def target(name):
        while name not in sources and name.startswith(
            (f"{LIBRARY}.", f"{LAB}.")
        ):
            name = name.rpartition(".")[0]
        return name

    found = {}
    for module, source in sources.items():
        is_package = any(name.startswith(f"{module}.") for name in sources)
        package = module if is_package else module.rpartition(".")[0]
        names = imported_names(ast.parse(source), package)
        found[module] = {*map(target, names)} - {module}
    return found


def is_lab(module):
    return f"{module}.".startswith(f"{LAB}.")


def room(module):
    return module.removeprefix(f"{LAB}.").split(".")[0]


def is_allowed(module, target):
    """Whether an import goes down, and the library does with what it has."""
    if not is_lab(module):
        return target.split(".")[0] in ALLOWED | MORE.get(module, set())
    mine, other = room(module), room(target)
    return not is_lab(target) or mine == other or LEVELS[other] < LEVELS[mine]


def test_the_walls_stand():
    imports = imports_of(read_sources())
    assert [
        f"{module} imports {target}"
        for module, targets in imports.items()
        for target in targets
        if not is_allowed(module, target)
    ] == []
    assert {room(module) for module in imports if is_lab(module)} == {*LEVELS}
    graph = {name: found & imports.keys() for name, found in imports.items()}
    graphlib.TopologicalSorter(graph).prepare()  # refuses circles


def test_the_wings_come_off():
    """Nothing but ``run`` imports it; each wing knows the record once."""
    found = imports_of(read_sources())

    def importers(wing):
        prefix = f"{LIBRARY}.{wing}."
        return {
            module.removeprefix(f"{LIBRARY}.")
            for module, targets in found.items()
            if not (is_lab(module) or f"{module}.".startswith(prefix))
            if any(f"{target}.".startswith(prefix) for target in targets)
        }

    assert importers("run") == set()
    assert importers("watch") == {"run.watch", "integrations.clipping"}
    assert {
        name for name in importers("integrations") if name[:4] != "run."
    } <= {
        *("watch.observe", "watch.recorder", "watch.trainer"),
    }


def test_one_function_unpickles():
    unpickles = re.compile(
        r"\b(?:paddle|torch|pickle|joblib)\.loads?\(|allow_pickle=True"
        r"|\bUnpickler\b|from (?:pickle|dill|joblib|torch) import|_load_ckpt"
    )
    sources = read_sources()
    for tool in (ROOT / "tools").glob("*.py"):
        sources[f"tools.{tool.stem}"] = tool.read_text("utf-8")
    places = [name for name, text in sources.items() if unpickles.search(text)]
    assert places == [
        "paddle_adagc.adaptive_norm",
        "adagc_lab.train.checkpoints",
    ]


def modules_after(statement):
    code = f"{statement}; import json, sys; print(json.dumps([*sys.modules]))"
    ended = run_python(ROOT, "-W", "ignore", "-c", code)
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout))


def tops(statement, given="pass"):
    """Packages, but the standard library, that a statement loads."""
    loaded = modules_after(f"{given}; {statement}") - modules_after(given)
    return {name.split(".")[0] for name in loaded} - {*sys.stdlib_module_names}


def test_an_import_loads_no_more_than_it_needs():
    assert tops("import paddle_adagc") == {LIBRARY}
    clip = "from paddle_adagc import ClipGradByAdaGC"
    found = tops(clip, "import paddle, safetensors.numpy")
    assert found - {"paddle", "numpy"} == {LIBRARY}


def test_public_names_are_those_of_their_modules():
    for name in paddle_adagc.__all__:
        assert getattr(paddle_adagc, name).__name__ == name
    assert {*paddle_adagc.__all__, "__version__"} <= {*dir(paddle_adagc)}
    assert not hasattr(paddle_adagc, "ClipGrad")


def test_no_file_imports_torch_but_the_golden_file_scripts():
    users = {
        path.name
        for folder in ("paddle_adagc", "tools", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"(?m)^(import|from) torch", path.read_text())
    }
    assert users <= {"make_golden.py", "torch_run.py"}
