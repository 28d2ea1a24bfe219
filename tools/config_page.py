# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write docs/config.md: every key of a run's config.

python tools/config_page.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Any

from adagc_lab.faults import FaultConfig
from adagc_lab.markdown import markdown_table
from adagc_lab.models.config import DecoderOptions
from adagc_lab.models.vision_text import CLIPOptions
from adagc_lab.optimizers import StableAdamW
from adagc_lab.train import optimizers
from adagc_lab.train.config import (
    OPTIMIZERS,
    OptimizerConfig,
    RunConfig,
)
from command import ROOT, make_parser
from paddle.optimizer import AdamW

from paddle_adagc.clips.registry import CLIPS

_HEAD = """\
# Every key of a config

[Training](training.md#config) says how configs are read. This page is written
by `python tools/config_page.py`. To see a config with all of its values:

```bash
python tools/pretrain.py configs/proxy/ernie_moe.yaml --print-config
```

Of `model` and `clip` it prints what the file sets. A file's key `base` names a
file, or a list of files, whose values it changes.
"""
_TYPES = {
    bool: "true or false",
    dict: "map",
    float: "number",
    int: "integer",
    str: "text",
}
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def page() -> str:
    """Return the page as Markdown."""
    hints = typing.get_type_hints(RunConfig)
    parts = [_HEAD]
    for name in ("train", "data", "schedule", "parallel", "record"):
        parts += [f"## {name}\n", _table(hints[name])]
    parts += ["## faults\n", "A list; each entry has\n", _table(FaultConfig)]
    parts += ["## optimizer\n"]
    for name, optimizer in OPTIMIZERS.items():
        meanings = _optimizer_meanings(name) | _meanings(OptimizerConfig)
        parts += [f"### optimizer.name: {name}\n", _table(optimizer, meanings)]
    parts += ["## clip\n", _clips()]
    parts += ["## model\n", f"{_text(_meanings(RunConfig)['model'])}\n"]
    for kind, name in ((DecoderOptions, "decoder"), (CLIPOptions, "clip")):
        parts += [f"### model.architecture: {name}\n", _table(kind)]
    return "\n".join(parts)


def _table(kind: Any, meanings: Mapping[str, str] | None = None) -> str:
    """Return a table of a section's keys, by default with its docstrings."""
    hints = typing.get_type_hints(kind, include_extras=True)
    meanings = _meanings(kind) if meanings is None else meanings
    rows = [
        [
            f"`{field.name}`",
            _type(hints[field.name]),
            _default(field),
            _text(meanings.get(field.name, "")),
        ]
        for field in dataclasses.fields(kind)
        if field.name != "name"
    ]
    return markdown_table(["key", "type", "default", "meaning"], rows, left=4)


def _type(hint: Any) -> str:
    """Describe an annotation in a few words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        bounds = [
            f"{sign} {getattr(rule, name)}"
            for info in hint.__metadata__
            for rule in getattr(info, "metadata", ())
            for name, sign in _BOUNDS.items()
            if hasattr(rule, name)
        ]
        return " ".join([_type(arguments[0]), " and ".join(bounds)]).strip()
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        kinds = [a for a in arguments if a is not types.NoneType]
        return " or ".join(map(_type, kinds))
    if origin in (list, tuple):
        return f"list of {_type(arguments[0])}"
    return _TYPES[origin or hint]


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    # pydantic wraps a field that it was given with more than a default.
    value = getattr(value, "default", value)
    if value is dataclasses.MISSING:
        return "needed"
    return "–" if value is None else f"`{_yaml(value)}`"


def _yaml(value: Any) -> str:
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _meanings(kind: type) -> dict[str, str]:
    """Return the docstrings under a class' fields, by name."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                found[field.target.id] = inspect.cleandoc(str(text.value.value))
    return found


def _optimizer_meanings(name: str) -> dict[str, str]:
    """Return what an optimizer's docstrings say of its arguments."""
    found: dict[str, str] = {}
    kind = optimizers.CLASSES.get(name, StableAdamW)
    if kind is AdamW:  # which describes nothing in English alone
        kind = StableAdamW
    block = inspect.cleandoc(str(kind.__doc__)).partition("Args:\n")[2]
    entries = block.partition("\n\n")[0]
    for entry in re.split(r"\n(?=    \S)", "\n" + entries)[1:]:
        argument, _, meaning = entry.strip().partition(": ")
        found[argument.removeprefix("adamw_")] = meaning
    if name in optimizers.UPDATE_CLIPS:
        found |= _meanings(optimizers.UPDATE_CLIPS[name])
    return found


def _text(docstring: str) -> str:
    """Turn a docstring into one line of Markdown."""
    text = re.sub(r":\w+:`~(?:[\w.]*\.)?(\w+)`", r"`\1`", docstring)
    text = re.sub(r":math:`\\*([^`]*)`", r"\1", text).replace("\\", "")
    text = re.sub(r":\w+:`", "`", text)
    return " ".join(text.replace("``", "`").split())


def _clips() -> str:
    rows = []
    for name, clip in CLIPS.items():
        arguments = [
            f"`{p.name}`"
            + (f" {_yaml(p.default)}" if p.default is not p.empty else "")
            for p in inspect.signature(clip).parameters.values()
            if p.kind is not p.VAR_POSITIONAL
        ]
        rows.append([f"`{name}`", ", ".join(arguments) or "–"])
    table = markdown_table(
        ["clip.name", "arguments and defaults"], rows, left=2
    )
    return (
        f"{table}\n[Method](method.md#hyperparameters) and [compared methods]"
        "(compared-methods.md#clips) explain them. `preset: release` makes "
        "`adagc` a variant that [was judged](creep.md), and is not "
        "recommended.\n"
    )


def main() -> None:
    """Run the command."""
    make_parser("config_page", __doc__).parse_args()
    (ROOT / "docs/config.md").write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
