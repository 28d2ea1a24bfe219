# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the tree for PaddleFleet's ``Research/AdaGC``.

It holds what :data:`ENTRIES` import of the library, the tests that need no
more, a training script with two configs, and a README whose numbers come from
the results. ``ruff``, where it is installed, puts the Python files under
PaddleFleet's rules; PaddleFleet uses 0.14.4.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from adagc_lab.markdown import markdown_table
from command import ROOT, make_parser
from jinja2 import Environment, StrictUndefined

from paddle_adagc import _MODULES, ClipGradByAdaGC

PARTS = Path(__file__).with_suffix("")
ENTRIES = (
    "paddle_adagc.check",
    "paddle_adagc.clips.adagc",
    "paddle_adagc.integrations.paddlefleet",
    "paddle_adagc.state",
)
"""What a user of PaddleFleet needs. Compared clips, optimizers, the record, the
report, ``adagc-run``, the callback and other Trainers stay out."""

FOREIGN = re.compile(r"adagc_lab|paddlenlp|paddleformers|tools/|torch")
"""A test that names one of these needs more than the tree."""


def main() -> None:
    """Run the command."""
    parser = make_parser("research_module", __doc__)
    parser.add_argument("out", type=Path, help="a new or an empty folder")
    try:
        write_tree(parser.parse_args().out)
    except ValueError as error:
        parser.error(str(error))


def write_tree(out: Path) -> None:
    """Write the tree.

    Raises:
        ValueError: ``out`` holds something, or a file of the tree has the word
            that PaddleFleet's approval hook stops.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} holds something: give a new or empty folder")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PARTS / "tree", out, dirs_exist_ok=True, ignore=ignored)
    kernels = "paddle_adagc/kernels"  # with their C++ and CUDA sources
    shutil.copytree(ROOT / kernels, out / kernels, ignore=ignored)
    library = library_files()
    marker = ROOT / "paddle_adagc/py.typed"
    for path in {*library.values(), marker, *test_files(library)}:
        copy = out / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
        if path.suffix == ".py":  # PaddleFleet does not have hypothesis
            first = re.compile(r"^(?=from hypothesis import)", re.M)
            skip = 'pytest.importorskip("hypothesis")\n'
            copy.write_text(first.sub(skip, path.read_text("utf-8"), count=1))
    export_names(out / "paddle_adagc/__init__.py", library)
    write_recipe(out / "configs/ernie_10b_a1.4b_fp8")
    (out / "assets").mkdir()
    shutil.copy(ROOT / "docs/images/llama-low-noise-loss.svg", out / "assets")
    (out / "README.md").write_text(readme(), "utf-8")
    format_python(out)
    check_words(out)


def library_files() -> dict[str, Path]:
    """Modules that the entries import, in functions too, and their files."""
    found: dict[str, Path] = {}
    queue = [*ENTRIES]
    while queue:
        module = queue.pop()
        path = module_file(module, ROOT)
        if path is not None and module not in found:
            found[module] = path
            queue += [*imported_names(path), module.rpartition(".")[0]]
    return found


def export_names(path: Path, library: dict[str, Path]) -> None:
    """Let the package offer no name whose module the tree leaves out."""
    text = path.read_text("utf-8")
    for name, module in _MODULES.items():
        if f"paddle_adagc.{module}" not in library:
            line = rf"    from paddle_adagc\.{module} import (\w+|\([^)]*\))\n"
            text = re.sub(rf'(?m)^({line}|    "{name}",\n)', "", text)
    path.write_text(text, "utf-8")


def test_files(library: dict[str, Path]) -> set[Path]:
    """Tests that need the tree alone, and what they read."""
    core, tests = ROOT / "tests/core", ROOT / "tests"
    chosen = {core / "conftest.py", tests / "backends.py"}
    for path in core.rglob("test_*.py"):
        reached, queue = {path}, [path]
        wanted: set[str] = set()
        while queue:
            names = {*imported_names(queue.pop())}
            wanted |= names
            files = (module_file(name, tests) for name in names)
            new = {file for file in files if file is not None} - reached
            reached |= new
            queue += new
        wanted = {name for name in wanted if module_file(name, ROOT)}
        texts = (p.read_text("utf-8") for p in reached)
        if wanted <= library.keys() and not any(map(FOREIGN.search, texts)):
            chosen |= reached
    states = (core / "states").glob("*/*.safetensors")
    return chosen | {*(core / "kernels/emulator").iterdir(), *states}


def module_file(module: str, folder: Path) -> Path | None:
    """File of a module below a folder; None: it is no module there."""
    if not module:
        return None
    path = folder / module.replace(".", "/")
    files = path.with_suffix(".py"), path / "__init__.py"
    return next((file for file in files if file.is_file()), None)


def imported_names(path: Path) -> Iterator[str]:
    """Modules that a file imports, and those of the names that it takes.

    Not those under ``TYPE_CHECKING``.
    """
    queue: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            for alias in node.names:
                public = node.module == "paddle_adagc" and _MODULES.get(
                    alias.name
                )
                yield f"{node.module}.{public or alias.name}"
        elif not (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        ):
            queue += ast.iter_child_nodes(node)


def write_recipe(folder: Path) -> None:
    """Write ERNIE's recipe as one file; ours are a base and what differs."""
    source = ROOT / "configs/ernie_10b_a1.4b_fp8"
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    text = (source / "base.yaml").read_text("utf-8")
    model = json.loads((source / "config.json").read_text("utf-8"))

    def in_clip(units: re.Match[str]) -> str:
        """Move ``units`` to where the script looks for it, with numbers."""
        number = re.compile(r"num_\w+")
        shares = number.sub(lambda key: str(model[key.group()]), units.group())
        return textwrap.indent(shares, "  ")

    note = "# scripts/train.py reads `clip`, PaddleFleet all else. Not run.\n"
    own = r"\1 configs/ernie_10b_a1.4b_fp8"
    for old, new in (
        (r"# `base`, `clip` and `units` are read by (?:.*\n){2}", note),
        (r"(?m)^# Relative to this file: the", "# The"),
        (r"; shares are numbers or keys of config.json", ""),
        (r"(?m)^(model_name_or_path:) \.$", own),
        (r"(?m)^(output_dir: .*)$", r"\1/adagc"),
        (r"(?m)^  name: adagc\n", ""),
        (r"(?m)^units:\n(?:  .*\n)+", in_clip),
    ):
        text, count = re.subn(old, new, text)
        if count != 1:
            raise ValueError(f"{source / 'base.yaml'}: {count} lines fit {old}")
    (folder / "adagc.yaml").write_text(text, "utf-8")


def readme() -> str:
    """Fill the README's template."""
    ours = (ROOT / "README.md").read_text("utf-8")
    page = (ROOT / "docs/results.md").read_text("utf-8")
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    report = json.loads((ROOT / "results/report.json").read_text("utf-8"))
    parameters = inspect.signature(ClipGradByAdaGC).parameters
    claims = [
        [v["where"], v["claim"], f"**{v['verdict']}**"]
        for v in report["verdicts"]
        if v["primary"]
    ]
    environment = Environment(undefined=StrictUndefined, autoescape=False)
    template = (PARTS / "README.md.j2").read_text("utf-8")
    text = environment.from_string(template).render(
        runs=found(r"\d+ runs, [\d.]+ core-hours", page)[0],
        size=found(r"proxies of ([\d.]+ to [\d.]+ million)", page)[1],
        counts=found(r"Of \d+ claims of the paper: [^.]+\.", page)[0],
        claims=markdown_table(["Paper", "Claim", "Verdict"], claims, left=3),
        proxies=found(r"\| Recipe \|(?:.*\n)+?.*(?=<!-- end)", ours)[0],
        paddles=found(r'"paddlepaddle>=([\d.]+),<=([\d.]+)"', project)[1:],
        defaults={n: p.default for n, p in parameters.items()},
        bibtex=found(r"(?s)```bibtex\n(.*?)\n```", ours)[1],
    )
    return text + "\n"


def found(pattern: str, text: str) -> list[str]:
    """Return what a pattern finds, and its groups."""
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"nothing fits {pattern!r}: is the page another one?")
    return [match[0], *match.groups()]


def find_ruff() -> str | None:
    """Path of ruff, this environment's first."""
    here = Path(sys.executable).parent
    return shutil.which("ruff", path=f"{here}{os.pathsep}{os.environ['PATH']}")


def format_python(out: Path) -> None:
    """Sort and format by PaddleFleet's rules, if ruff is installed."""
    ruff = find_ruff()
    if ruff is None:
        print(
            "research_module: no ruff here, so imports are not sorted by "
            "PaddleFleet's rules; pip install ruff==0.14.4",
            file=sys.stderr,
        )
        return
    config = f"--config={PARTS / 'ruff.toml'}"
    for command in (["check", "--fix", "--unsafe-fixes"], ["format"]):
        subprocess.run(
            [ruff, *command, "--quiet", "--no-cache", config, out], check=True
        )


def check_words(out: Path) -> None:
    """Refuse a tree that PaddleFleet's approval hook would stop."""
    for path in sorted(out.rglob("*")):
        if path.is_file() and b"torch" in path.read_bytes():
            raise ValueError(f"{path.relative_to(out)} has the word torch")


if __name__ == "__main__":
    main()
