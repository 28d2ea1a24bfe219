# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Change the package one place at a time, and see that a test notices.

    python tools/mutate.py
    python tools/mutate.py paddle_adagc/rule.py --sample 20

A mutant is a module with one comparison, operator, number, name or argument
changed, two arguments swapped, or a set or dict that loses its content before
an update. It dies if one of the module's tests fails. Each is a fork of a
process that has imported Paddle: mutmut leaves out what has a decorator, and
cosmic-ray imports Paddle anew for every mutant. The C++ and CUDA sources are
left out, and so are messages. tests/mutated_modules.yaml has the modules and
their tests, tests/equivalent_mutants.yaml the mutants that no test can notice,
with the reason. The counts go to results/mutation.jsonl.
"""

from __future__ import annotations

import ast
import collections
import copy
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

import yaml
from adagc_lab.committed import as_json
from command import ROOT, add_options, make_parser

RECORD = ROOT / "results" / "mutation.jsonl"

_OPTIONS = """
modules FILE  module (default: all)
--sample N    mutants per module
--only TEXT   of those whose name has it
"""

ORDERS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
}
SWAPPED: dict[Any, Any] = {"union": "intersection", "square": "abs"}
"""Operators, functions and methods -> what stands in their place."""

for one, other in (
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.BitAnd, ast.BitOr),
    (ast.And, ast.Or),
    ("minimum", "maximum"),
    ("min", "max"),
    ("MIN", "MAX"),
    ("any", "all"),
    ("zeros_like", "ones_like"),
    ("logical_and", "logical_or"),
    ("isinf", "isfinite"),
    ("isdisjoint", "issuperset"),
):
    SWAPPED |= {one: other, other: one}


def mutants(path: Path) -> dict[str, ast.Module]:
    """Make all mutants of a module: ``function: old -> new`` -> its tree."""
    tree = ast.parse(path.read_text("utf-8"))
    made: dict[str, ast.Module] = {}
    counts: collections.Counter[str] = collections.Counter()
    for scope, node in _nodes(tree, ""):
        for label, fields in _changes(node):
            old, saved = ast.unparse(node), node.__dict__.copy()
            node.__dict__.update(fields)
            label = label or f"{old} -> {ast.unparse(node)}"
            mutated = ast.fix_missing_locations(copy.deepcopy(tree))
            node.__dict__.update(saved)
            name = f"{scope or 'module'}: {label}".replace("\n", " ")
            counts[name] += 1
            number = f" ({counts[name]})" if counts[name] > 1 else ""
            made[name + number] = mutated
    return made


def _nodes(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    """Walk what is executed: no messages, annotations and docstrings."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            match child:
                case ast.Raise() | ast.JoinedStr() | ast.Import():
                    continue
                case ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                    continue
                case ast.AST() if "warn" not in ast.unparse(child)[:12]:
                    name = getattr(child, "name", None)
                    inside = f"{scope}.{name}".strip(".") if name else scope
                    yield inside, child
                    yield from _nodes(child, inside)


def _changes(node: ast.AST) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield new fields of a node, after a label or nothing."""
    match node:
        case ast.Compare(ops=[op]):
            for new in ORDERS.get(type(op)) or (SWAPPED[type(op)],):
                yield "", {"ops": [new()]}
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign():
            if type(node.op) in SWAPPED:
                yield "", {"op": SWAPPED[type(node.op)]()}
            if isinstance(node, ast.AugAssign) and (
                isinstance(node.op, ast.BitOr)
            ):
                target = copy.copy(node.target)
                target.ctx = ast.Load()
                yield "", {"value": _cleared_before(target, node.value)}
        case ast.UnaryOp(op=ast.Not()):
            name = ast.Name("bool", ast.Load())
            operand = ast.Call(name, [node.operand], [])
            yield "", {"op": ast.UAdd(), "operand": operand}
        case ast.UnaryOp(op=ast.USub()):
            yield "", {"op": ast.UAdd()}
        case ast.If() | ast.IfExp():
            label = f"if {ast.unparse(node.test)} -> if not"
            yield label, {"test": ast.UnaryOp(ast.Not(), node.test)}
        case ast.Constant(value=bool(flag)):
            yield "", {"value": not flag}
        case ast.Constant(value=int(number)):
            yield "", {"value": number + 1}
        case ast.Constant(value=float(number)):
            yield "", {"value": 2 * number or 1.0}
        case ast.Attribute() if node.attr in SWAPPED:
            yield "", {"attr": SWAPPED[node.attr]}
        case ast.Name() if node.id in SWAPPED:
            yield "", {"id": SWAPPED[node.id]}
        case ast.Call():
            for i, keyword in enumerate(node.keywords):
                rest = node.keywords[:i] + node.keywords[i + 1 :]
                without = f"without {ast.unparse(keyword)}"
                yield f"{ast.unparse(node.func)} {without}", {"keywords": rest}
            for i in range(len(node.args) - 1):
                first, second = node.args[i : i + 2]
                swapped = [*node.args[:i], second, first, *node.args[i + 2 :]]
                if ast.dump(first) != ast.dump(second):
                    yield "", {"args": swapped}
        case ast.Dict() if None in node.keys and len(node.keys) > 1:
            yield "", {"keys": node.keys[-1:], "values": node.values[-1:]}
        case ast.Expr(value=ast.Call(func=function, args=given) as call):
            label = f"without {ast.unparse(node)}"
            yield label, {"value": ast.Constant(None)}
            if isinstance(function, ast.Attribute) and (
                function.attr == "update" and given
            ):
                yield "", {"value": _cleared_before(function.value, call)}


def _cleared_before(collection: ast.expr, value: ast.expr) -> ast.BoolOp:
    """Make ``collection.clear() or value``."""
    clear = ast.Attribute(collection, "clear", ast.Load())
    return ast.BoolOp(ast.Or(), [ast.Call(clear, [], []), value])


def passes(
    path: Path, tree: ast.Module, tests: list[str], seconds: float
) -> bool:
    """Tell whether tests pass in a fork that imports ``tree`` for ``path``.

    A mutant that takes longer than ``seconds`` counts as noticed.
    """
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_become, args=(path, tree, tests))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        process.join()
    return process.exitcode == 0


def _become(path: Path, tree: ast.Module, tests: list[str]) -> NoReturn:
    import pytest

    get_code = SourceFileLoader.get_code

    def mutated(self: SourceFileLoader, name: str) -> Any:
        if Path(self.path) != path:
            return get_code(self, name)
        return compile(tree, self.path, "exec")

    setattr(SourceFileLoader, "get_code", mutated)  # noqa: B010 (for mypy)
    os.setpgid(0, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    files = [str(ROOT / "tests" / name) for name in tests]
    chosen = ["-x", "-m", "not slow", "-p", "no:cacheprovider"]
    os._exit(int(pytest.main([*chosen, "-W", "ignore", *files])))


def passes_on_ranks(path: Path, tree: ast.Module, tests: list[str]) -> bool:
    """Tell whether tests that start processes pass in a copy with a mutant."""
    if not tests:
        return True
    with tempfile.TemporaryDirectory() as folder:
        for part in ("paddle_adagc", "tests", "tools"):
            shutil.copytree(ROOT / part, Path(folder, part))
        for shared in ("configs", "pyproject.toml"):
            Path(folder, shared).symlink_to(ROOT / shared)
        Path(folder, path.relative_to(ROOT)).write_text(ast.unparse(tree))
        command = [sys.executable, "-m", "pytest", "-x"]
        command += ["-p", "no:cacheprovider", "-m", "slow or not slow"]
        return not subprocess.run(
            [*command, *(f"tests/{test}" for test in tests)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            timeout=600,
        ).returncode


def mutate(
    path: Path, tests: dict[str, list[str]], sample: int | None, only: str
) -> dict[str, Any]:
    """Run a module's mutants, or a sample of them; count what became of them.

    Raises:
        ValueError: The tests fail without a mutant.
    """
    name, fast = str(path.relative_to(ROOT)), tests["fast"]
    begun = time.monotonic()
    if not passes(path, ast.parse(path.read_text("utf-8")), fast, 600.0):
        raise ValueError(f"{name}: its tests fail without a mutant")
    limit = 10 * (time.monotonic() - begun) + 20
    known = read("equivalent_mutants").get(name, {})
    made = mutants(path)
    chosen = [name for name in made if only in name]
    if sample is not None and sample < len(chosen):
        chosen = random.Random(0).sample(chosen, sample)
    survived = []
    for mutant in chosen:
        if mutant not in known and (
            passes(path, made[mutant], fast, limit)
            and passes_on_ranks(path, made[mutant], tests.get("on_ranks", []))
        ):
            survived.append(mutant)
            print(f"{name}: survived: {mutant}", flush=True)
    equivalent = [mutant for mutant in chosen if mutant in known]
    return {
        "module": name,
        "of": len(made),
        "mutants": len(chosen),
        "killed": len(chosen) - len(equivalent) - len(survived),
        "equivalent": equivalent,
        "survived": survived,
    }


def read(name: str) -> Any:
    """Read a YAML file of ``tests/``."""
    return yaml.safe_load((ROOT / f"tests/{name}.yaml").read_text("utf-8"))


def main() -> int:
    """Run the command; 1 if a mutant survived that is not equivalent."""
    parser = make_parser("mutate", __doc__)
    add_options(parser, _OPTIONS, modules={"nargs": "*"}, only={"default": ""})
    options = parser.parse_args()
    modules = read("mutated_modules")["modules"]
    for name in options.modules:
        if name not in modules:
            parser.error(f"{name!r} is not one of {', '.join(modules)}")
    os.environ.setdefault("GLOG_minloglevel", "2")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]
    import hypothesis  # noqa: F401  (once, before the forks)
    import paddle.distributed.fleet  # noqa: F401
    import pytest  # noqa: F401

    from paddle_adagc.files import atomic_write

    records = [json.loads(line) for line in RECORD.read_text().splitlines()]
    lines = {record["module"]: record for record in records}
    num_survived = 0
    for name in options.modules or modules:
        found = mutate(ROOT / name, modules[name], options.sample, options.only)
        num_survived += len(found["survived"])
        print(f"{name}: {found['killed']} of {found['mutants']}")
        if not options.only:
            lines[name] = found
            atomic_write(RECORD, "".join(map(as_json, lines.values())))
    return int(num_survived > 0)


if __name__ == "__main__":
    sys.exit(main())
