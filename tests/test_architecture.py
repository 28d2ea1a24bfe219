# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The walls: the library in front, the laboratory behind, no circles.

Imports are read from the sources: those of modules and of functions, but not
those under ``TYPE_CHECKING``. What an import loads is seen in a process.
"""

import ast
import graphlib
import importlib
import importlib.util
import json
import re
import sys

import pytest
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
LEVELS[LIBRARY] = LEVELS[LAB] = -1
ALLOWED = {LIBRARY, "paddle", "numpy", "safetensors", *sys.stdlib_module_names}
"""What the library imports."""


def read_sources():
    """Source of every module of the package, by the module's name."""
    sources = {}
    for path in [
        *(ROOT / LIBRARY).rglob("*.py"),
        *(ROOT / "tools" / LAB).rglob("*.py"),
    ]:
        base = ROOT if (ROOT / LIBRARY) in path.parents else ROOT / "tools"
        parts = path.relative_to(base).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        sources[module] = path.read_text("utf-8")
    return sources


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith(
        "TYPE_CHECKING"
    )


def imported_names(node, package):
    """Dotted names of what a module and its functions import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            base = importlib.util.resolve_name(base, package)
            yield from (f"{base}.{alias.name}" for alias in child.names)
        elif not is_type_checking(child):
            yield from imported_names(child, package)


def public_names(sources):
    """Modules of the names that the package imports when they are used."""
    names = {}
    for node in ast.walk(ast.parse(sources[LIBRARY])):
        if is_type_checking(node):
            for name in imported_names(node, LIBRARY):
                home, _, public = name.rpartition(".")
                names[f"{LIBRARY}.{public}"] = home
    return names


def imports_of(sources):
    """The modules that each module imports."""
    public = public_names(sources)

    def target(name):
        name = public.get(name, name)
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
        found[module] = {*map(target, names)}
    return found


MORE = {f"{LIBRARY}.run.settings": {"yaml"}}
"""It reads a file of settings that is in YAML."""


def is_lab(module):
    return f"{module}.".startswith(f"{LAB}.")


def room(module):
    return module.removeprefix(f"{LAB}.").split(".")[0]


def problems(imports):
    """Imports that the library does without, and those that do not go down."""
    for module, targets in imports.items():
        allowed = ALLOWED | MORE.get(module, set())
        for target in targets:
            if is_lab(module):
                is_outside = is_lab(target) and room(target) != room(module)
                if is_outside and LEVELS[room(target)] >= LEVELS[room(module)]:
                    yield f"{module} imports {target}, which is not below it"
            elif is_lab(target) or target.split(".")[0] not in allowed:
                yield f"{module} is the library's and imports {target}"


def test_the_walls_stand():
    imports = imports_of(read_sources())
    assert sorted(problems(imports)) == []
    assert {room(module) for module in imports if is_lab(module)} <= {*LEVELS}
    graph = {
        module: (found & imports.keys()) - {module}
        for module, found in imports.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # refuses circles


def test_the_wings_come_off():
    """Nothing but ``run`` imports it; each wing knows the record once."""
    found = imports_of(read_sources())

    def importers(*rooms):
        prefixes = tuple(f"{LIBRARY}.{room}." for room in rooms)
        return {
            module.removeprefix(f"{LIBRARY}.")
            for module, targets in found.items()
            if not (is_lab(module) or f"{module}.".startswith(prefixes))
            if any(f"{target}.".startswith(prefixes) for target in targets)
        }

    assert importers("run") == set()
    assert importers("watch") == {"run.watch", "integrations.clipping"}
    assert importers("integrations") <= {
        *(name for name in importers("integrations") if name[:4] == "run."),
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


def test_the_bare_import_loads_the_standard_library_alone():
    loaded = modules_after("import paddle_adagc") - modules_after("pass")
    tops = {name.split(".")[0] for name in loaded}
    assert tops - set(sys.stdlib_module_names) == {"paddle_adagc"}


def test_the_clip_needs_paddle_numpy_and_safetensors_alone():
    given = "import paddle, safetensors.numpy"
    clip = f"{given}; from paddle_adagc import ClipGradByAdaGC"
    loaded = modules_after(clip) - modules_after(given)
    foreign = {name.split(".")[0] for name in loaded}
    foreign -= set(sys.stdlib_module_names) | {"paddle", "numpy"}
    assert foreign == {"paddle_adagc"}
    assert not any(map(is_lab, loaded))


def test_public_names_are_those_of_their_modules():
    for name in paddle_adagc.__all__:
        home = importlib.import_module(getattr(paddle_adagc, name).__module__)
        assert getattr(paddle_adagc, name) is getattr(home, name)
    assert {*paddle_adagc.__all__, "__version__"} <= {*dir(paddle_adagc)}


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="has no attribute 'ClipGrad'"):
        _ = paddle_adagc.ClipGrad


def test_no_file_imports_torch_but_the_golden_file_scripts():
    users = {
        path.name
        for folder in ("paddle_adagc", "tools", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"(?m)^(import|from) torch", path.read_text())
    }
    assert users <= {"make_golden.py", "torch_run.py"}
