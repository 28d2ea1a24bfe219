# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The example of every name of docs/api runs."""

import doctest
import importlib
import inspect
import re

import pytest
from pages import ROOT

_ENTRY = re.compile(r"^::: (\S+)", re.MULTILINE)
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
    """The classes and functions; the rest is data."""
    pages = sorted((ROOT / "docs/api").glob("*.md"))
    text = "\n".join(page.read_text() for page in pages)
    for path in _ENTRY.findall(text):
        module, _, name = path.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        if inspect.isclass(found) or inspect.isfunction(found):
            yield found


ENTRIES = {found.__name__: found for found in entries()}


@pytest.mark.parametrize("name", ENTRIES)
def test_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(ENTRIES[name])
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
