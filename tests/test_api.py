# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every name of docs/api says what it takes and gives; its example runs."""

import ast
import doctest
import importlib
import inspect
import re

import pytest
import yaml
from pages import ROOT

_ENTRY = re.compile(r"^::: (\S+)(?:\n    options: (.+))?$", re.MULTILINE)
SHOWN_BY = {
    "AGC": "ClippedAdamW",
    "Clippy": "ClippedAdamW",
    "Decision": "ClipGradByAdaGC",
    "Event": "Judge",
    "RecordedRun": "read_record",
    "Replay": "replay",
    "Session": "read_record",
    "Settings": "replay",
    "SpikeScore": "spike_score",
    "Step": "ClipGradByAdaGC",
}
"""Names without an example -> the name whose example has them."""
TRAINERS = ("ClippingMixin",)
"""Their examples need PaddleNLP: test_snippets.py runs them."""


def entries():
    """(class or function, options) of each name; the rest is data."""
    pages = sorted((ROOT / "docs/api").glob("*.md"))
    text = "\n".join(page.read_text() for page in pages)
    for path, options in _ENTRY.findall(text):
        module, _, name = path.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        if inspect.isclass(found) or inspect.isfunction(found):
            yield found, yaml.safe_load(options or "{}")


ENTRIES = {found.__name__: (found, options) for found, options in entries()}


def members(found, options):
    """Names that the page shows of a class."""
    names = options.get("members", [n for n in dir(found) if n[0] != "_"])
    hidden = [p[1:] for p in options.get("filters", ()) if p[0] == "!"]
    return [
        name
        for name in names or ()
        if not any(re.search(pattern, name) for pattern in hidden)
    ]


def shown(found, options):
    """Functions that the page shows of a name: itself, or its methods."""
    if inspect.isfunction(found):
        return [found]
    values = [
        inspect.getattr_static(found, n, None) for n in members(found, options)
    ]
    values = [getattr(value, "__func__", value) for value in values]
    return [
        value
        for value in values
        if inspect.isfunction(value)
        and value.__module__.startswith(("paddle_adagc", "adagc_lab"))
    ]


def arguments(docstring):
    _, _, section = docstring.partition("\nArgs:\n")
    section = re.split(r"\n\n(?=\S)", section)[0]
    return {*re.findall(r"^    (\*{0,2}\w+):", section, re.MULTILINE)}


def parameters(function):
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in ("self", "cls"):
            yield str(parameter.replace(annotation=inspect._empty)).split("=")[
                0
            ]


def undescribed(found):
    """Public fields of a class that no docstring follows."""
    body = ast.parse(inspect.getsource(found)).body[0].body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and node.target.id[0] != "_":
            match after:
                case ast.Expr(ast.Constant(str())):
                    pass
                case _:
                    yield node.target.id


@pytest.mark.parametrize("name", ENTRIES)
def test_arguments_results_and_fields_are_described(name):
    found, options = ENTRIES[name]
    for function in shown(found, options):
        text = inspect.getdoc(function)
        assert arguments(text) == {*parameters(function)}, function
        result = inspect.signature(function).return_annotation
        if result != "None":
            assert "\nReturns:\n" in text or text.startswith("Return "), (
                function
            )
    if not inspect.isclass(found):
        return
    if hasattr(found, "__dataclass_fields__") or hasattr(found, "_fields"):
        assert not [*undescribed(found)]
    elif "__init__" in vars(found):
        expected = {*parameters(found.__init__)}
        assert arguments(inspect.getdoc(found)) == expected


@pytest.mark.parametrize("name", ENTRIES)
def test_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, _ = ENTRIES[name]
    text = inspect.getdoc(found)
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    if name in SHOWN_BY:
        assert SHOWN_BY[name] in ENTRIES
        assert not example.examples
        return
    assert example.examples, f"{name} has no example"
    if name not in TRAINERS:
        printed = []
        doctest.DocTestRunner().run(example, out=printed.append)
        assert not printed, "".join(printed)
