# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Change the package one place at a time, and see that a test notices.

    python tools/mutate.py
    python tools/mutate.py paddle_adagc/rule.py --sample 20
    python tools/mutate.py --list

A mutant is a module with one comparison, operator, number, name or argument
changed, two arguments swapped, or a set or dict that loses what it held before
an update. It dies if one of the module's tests fails. Each is a fork of a
process that has imported Paddle: mutmut leaves out what has a decorator, and
cosmic-ray imports Paddle anew for every mutant. The C++ and CUDA sources are
left out, and so are messages. tests/equivalent_mutants.yaml names the mutants
that no test can notice, with the reason. The counts go to
results/mutation.jsonl, their table to docs/soak.md.
integrations/paddleformers.py needs the environment of the extra [formers].
"""

from __future__ import annotations

import argparse
import ast
import collections
import copy
import functools
import importlib.abc
import importlib.machinery
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "results" / "mutation.jsonl"
PAGE = ROOT / "docs" / "soak.md"
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.yaml"
MODULES = ROOT / "tests" / "mutated_modules.yaml"

OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
NAMES = {
    "minimum": "maximum",
    "maximum": "minimum",
    "min": "max",
    "max": "min",
    "MAX": "MIN",
    "MIN": "MAX",
    "any": "all",
    "all": "any",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "logical_and": "logical_or",
    "logical_or": "logical_and",
    "isinf": "isfinite",
    "isfinite": "isinf",
    "isdisjoint": "issuperset",
    "issuperset": "isdisjoint",
    "union": "intersection",
    "square": "abs",
}
"""Functions and methods -> what stands in their place."""


class Mutant:
    """One change of one module.

    Args:
        tree: The changed module.
        name: ``function: old -> new``.
    """

    def __init__(self, tree: ast.Module, name: str) -> None:
        self.tree, self.name = tree, name


def mutants(path: Path) -> list[Mutant]:
    """Make all mutants of a module, in its order."""
    tree = ast.parse(path.read_text("utf-8"))
    made: list[Mutant] = []
    counts: collections.Counter[str] = collections.Counter()
    for scope, node in _nodes(tree, ""):
        for label, fields in _changes(node):
            saved = node.__dict__.copy()
            node.__dict__.update(fields)
            mutated = ast.fix_missing_locations(copy.deepcopy(tree))
            node.__dict__.update(saved)
            name = f"{scope or 'module'}: {label}".replace("\n", " ")
            counts[name] += 1
            number = f" ({counts[name]})" if counts[name] > 1 else ""
            made.append(Mutant(mutated, name + number))
    return made


def _nodes(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    """Walk what is executed: no messages, annotations and docstrings."""
    skipped = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, skipped):
                continue
            if "warn" in ast.unparse(child)[:12] or _is_text(child):
                continue
            name = getattr(child, "name", None)
            inside = f"{scope}.{name}".strip(".") if name else scope
            yield inside, child
            yield from _nodes(child, inside)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes(node: ast.AST) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield labels and new fields of a node."""
    old = ast.unparse(node)

    def put(**fields: Any) -> tuple[str, dict[str, Any]]:
        changed = copy.copy(node)
        changed.__dict__.update(fields)
        return f"{old} -> {ast.unparse(changed)}", fields

    match node:
        case ast.Compare(ops=[op]):
            for new in OPERATORS[type(op)]:
                yield put(ops=[new()])
        case ast.BinOp() | ast.BoolOp():
            for new in OPERATORS.get(type(node.op), ()):
                yield put(op=new())
        case ast.AugAssign():
            for new in OPERATORS.get(type(node.op), ()):
                yield put(op=new())
            if isinstance(node.op, ast.BitOr):
                target = copy.copy(node.target)
                target.ctx = ast.Load()
                clear = ast.Attribute(target, "clear", ast.Load())
                both = [ast.Call(clear, [], []), node.value]
                yield put(value=ast.BoolOp(ast.Or(), both))
        case ast.UnaryOp(op=ast.Not()):
            operand = _called("bool", node.operand)
            yield put(op=ast.UAdd(), operand=operand)
        case ast.UnaryOp(op=ast.USub()):
            yield put(op=ast.UAdd())
        case ast.If() | ast.IfExp():
            label = f"if {ast.unparse(node.test)} -> if not"
            yield label, {"test": ast.UnaryOp(ast.Not(), node.test)}
        case ast.Constant(value=bool(flag)):
            yield put(value=not flag)
        case ast.Constant(value=int(number)):
            yield put(value=number + 1)
        case ast.Constant(value=float(number)):
            yield put(value=2 * number or 1.0)
        case ast.Attribute() if node.attr in NAMES:
            yield put(attr=NAMES[node.attr])
        case ast.Name() if node.id in NAMES:
            yield put(id=NAMES[node.id])
        case ast.Call():
            for i, keyword in enumerate(node.keywords):
                rest = node.keywords[:i] + node.keywords[i + 1 :]
                without = f"without {ast.unparse(keyword)}"
                yield f"{ast.unparse(node.func)} {without}", {"keywords": rest}
            for i in range(len(node.args) - 1):
                first, second = node.args[i : i + 2]
                swapped = [*node.args[:i], second, first, *node.args[i + 2 :]]
                if ast.dump(first) != ast.dump(second):
                    yield put(args=swapped)
        case ast.Dict() if None in node.keys and len(node.keys) > 1:
            yield put(keys=node.keys[-1:], values=node.values[-1:])
        case ast.Expr(value=ast.Call() as call):
            yield f"without {old}", {"value": ast.Constant(None)}
            if isinstance(call.func, ast.Attribute) and (
                call.func.attr == "update" and call.args
            ):
                clear = ast.Attribute(call.func.value, "clear", ast.Load())
                both = [ast.Call(clear, [], []), call]
                yield put(value=ast.BoolOp(ast.Or(), both))


def _called(function: str, value: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(function, ast.Load()), [value], [])


class _Finder(importlib.abc.MetaPathFinder):
    """Imports a mutant in place of its module."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._path, self._tree = path, tree
        parts = path.relative_to(ROOT).with_suffix("").parts
        self._name = ".".join(parts).removesuffix(".__init__")

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the spec of the mutant; None for every other module."""
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        tree = self._tree

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> Any:
                return compile(tree, self.path, "exec")

        spec.loader = Loader(name, str(self._path))
        return spec


@functools.cache
def modules() -> dict[str, dict[str, list[str]]]:
    """Return what is mutated, by path below ``paddle_adagc/``.

    Each has its ``fast`` tests, and some their tests ``on_ranks``.
    """
    import yaml

    found: dict[str, dict[str, list[str]]]
    found = yaml.safe_load(MODULES.read_text("utf-8"))["modules"]
    return found


def _tests(path: Path, kind: str) -> list[str]:
    name = str(path.relative_to(ROOT / "paddle_adagc"))
    return modules()[name].get(kind, [])


def run_tests(path: Path, tree: ast.Module, seconds: float) -> bool:
    """Tell whether a module's tests pass with a mutant in its place.

    Args:
        path: The module.
        tree: The mutant.
        seconds: A mutant that takes longer counts as noticed.
    """
    pid = os.fork()
    if pid == 0:
        _become(path, tree)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _become(path: Path, tree: ast.Module) -> NoReturn:
    import pytest

    os.setpgid(0, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    sys.meta_path.insert(0, _Finder(path, tree))
    files = [str(ROOT / "tests" / name) for name in _tests(path, "fast")]
    chosen = ["-x", "-m", "not slow", "-p", "no:cacheprovider"]
    os._exit(int(pytest.main([*chosen, "-W", "ignore", *files])))


def run_on_ranks(path: Path, tree: ast.Module) -> bool:
    """Tell whether a module's tests on ranks pass in a copy with a mutant."""
    name, tests = path.relative_to(ROOT), _tests(path, "on_ranks")
    if not tests:
        return True
    with tempfile.TemporaryDirectory() as copy:
        for folder in ("paddle_adagc", "tests"):
            shutil.copytree(ROOT / folder, Path(copy, folder))
        for shared in ("configs", "pyproject.toml"):
            Path(copy, shared).symlink_to(ROOT / shared)
        Path(copy, name).write_text(ast.unparse(tree))
        return not subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-x"),
                *("-p", "no:cacheprovider", "-m", "slow or not slow"),
                *(f"tests/{test}" for test in tests),
            ],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": copy},
            capture_output=True,
            timeout=600,
        ).returncode


def mutate(
    path: Path, sample: int | None, seed: int, only: str
) -> dict[str, Any]:
    """Run a module's mutants.

    Args:
        path: The module.
        only: What their names hold.
        sample: Number of mutants, drawn by ``seed``; None: all.
        seed: Of the sample.

    Returns:
        ``module``, ``mutants``, ``killed``, ``equivalent`` (names),
        ``survived`` (names), ``of`` (number of mutants that there are).

    Raises:
        ValueError: The tests fail without a mutant.
    """
    import yaml

    name = str(path.relative_to(ROOT))
    begun = time.monotonic()
    if not run_tests(path, ast.parse(path.read_text("utf-8")), 600.0):
        raise ValueError(f"{name}: its tests fail without a mutant")
    limit = 10 * (time.monotonic() - begun) + 20
    known = yaml.safe_load(EQUIVALENT.read_text("utf-8")).get(name, {})
    found = mutants(path)
    chosen = [mutant for mutant in found if only in mutant.name]
    if sample is not None and sample < len(chosen):
        chosen = random.Random(seed).sample(chosen, sample)
    equivalent, survived = [], []
    for mutant in chosen:
        if mutant.name in known:
            equivalent.append(mutant.name)
        elif run_tests(path, mutant.tree, limit) and run_on_ranks(
            path, mutant.tree
        ):
            survived.append(mutant.name)
            print(f"{name}: survived: {mutant.name}", flush=True)
    num_killed = len(chosen) - len(equivalent) - len(survived)
    return {
        "module": name,
        "of": len(found),
        "mutants": len(chosen),
        "killed": num_killed,
        "equivalent": equivalent,
        "survived": survived,
    }


def page(text: str, lines: Iterable[dict[str, Any]]) -> str:
    """Replace the table of mutants in the documentation's page."""
    rows = ["| Module | Mutants | Tried | Killed | Equivalent | Survived |"]
    rows.append("|---|---:|---:|---:|---:|---:|")
    for line in lines:
        counts = [line["of"], line["mutants"], line["killed"]]
        counts += [len(line["equivalent"]), len(line["survived"])]
        rows.append(f"| `{line['module']}` | {' | '.join(map(str, counts))} |")
    before, rest = text.split("<!-- mutants -->", 1)
    after = rest.split("<!-- end -->", 1)[1]
    table = "\n".join(rows)
    return f"{before}<!-- mutants -->\n{table}\n\n<!-- end -->{after}"


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0: every mutant died or is equivalent; 1: one survived; 2: bad settings.
    """
    parser = argparse.ArgumentParser(
        prog="python tools/mutate.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [f"paddle_adagc/{name}" for name in modules()]
    add = parser.add_argument
    add("modules", nargs="*", metavar="FILE", help="module (default: all)")
    add("--sample", type=int, metavar="N", help="mutants per module")
    add("--seed", type=int, default=0, metavar="N", help="default: 0")
    add(
        "--only", default="", metavar="TEXT", help="mutants whose name holds it"
    )
    add("--list", action="store_true", help="print the mutants, run nothing")
    options = parser.parse_args(arguments)
    for name in options.modules:
        if name not in known:
            parser.error(f"{name!r} is not one of {', '.join(known)}")
    paths = [ROOT / name for name in options.modules or known]
    if options.list:
        for path in paths:
            for mutant in mutants(path):
                print(f"{path.relative_to(ROOT)}: {mutant.name}")
        return 0
    return _run(paths, options.sample, options.seed, options.only)


def _run(paths: list[Path], sample: int | None, seed: int, only: str) -> int:
    os.environ.setdefault("GLOG_minloglevel", "2")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import hypothesis  # noqa: F401  (once, before the forks)
    import paddle.distributed.fleet  # noqa: F401
    import pytest  # noqa: F401

    from paddle_adagc.files import atomic_write

    lines = {}
    if RECORD.exists():
        for line in RECORD.read_text("utf-8").splitlines():
            lines[json.loads(line)["module"]] = json.loads(line)
    num_survived = 0
    for path in paths:
        found = mutate(path, sample, seed, only)
        lines[found["module"]] = found
        num_survived += len(found["survived"])
        print(f"{found['module']}: {found['killed']} of {found['mutants']}")
        if only:
            continue
        text = "".join(f"{json.dumps(line)}\n" for line in lines.values())
        atomic_write(RECORD, text)
        shown = page(PAGE.read_text("utf-8"), lines.values())
        atomic_write(PAGE, shown)
    return int(num_survived > 0)


if __name__ == "__main__":
    sys.exit(main())
