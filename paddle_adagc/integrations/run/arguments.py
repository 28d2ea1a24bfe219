# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Take the clip's settings out where a Trainer's arguments are parsed.

So a command's files stay as they are, where they are. A key that the Trainer's
arguments have themselves stays theirs.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from paddle_adagc.integrations.run.settings import (
    MARK,
    OLD,
    Settings,
    settings_in,
    take_settings,
)

Saw = Callable[[Settings], None]
_OURS = ("clip", "units")


def change_parser(parser: Any, saw: Saw) -> None:
    """Let ``PdArgumentParser`` leave out the clip's settings."""
    parse_dict, common_parse = parser.parse_dict, parser.common_parse

    def seen(found: list[Settings], parsed: Any) -> Any:
        for settings in found:
            saw(settings)
            for one in parsed:
                if hasattr(one, "__dict__"):
                    vars(one)[MARK] = settings
        return parsed

    @functools.wraps(parse_dict)
    def from_dict(self: Any, args: Any, *rest: Any, **kwargs: Any) -> Any:
        found: list[Settings] = []
        others = _without_ours(args, _fields(self), found.append)
        return seen(found, parse_dict(self, others, *rest, **kwargs))

    @functools.wraps(common_parse)
    def from_words(self: Any, args: Any, *rest: Any, **kwargs: Any) -> Any:
        found: list[Settings] = []
        if args is not None:
            args = _words_without_ours([*args], _fields(self), found.append)
        return seen(found, common_parse(self, args, *rest, **kwargs))

    parser.parse_dict, parser.common_parse = from_dict, from_words


def change_arguments(arguments: Any, saw: Saw) -> None:
    """Let ``TrainingArguments(**values)`` leave out the clip's settings."""

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if settings_in(kwargs):
            known = inspect.signature(cls.__init__).parameters
            if not settings_in(kwargs).keys() <= known.keys():
                tolerate(cls)
        return object.__new__(cls)

    @functools.cache
    def tolerate(cls: Any) -> None:
        original = cls.__init__

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            known = inspect.signature(original).parameters
            found: list[Settings] = []
            original(self, *args, **_without_ours(kwargs, known, found.append))
            for settings in found:
                saw(settings)
                vars(self)[MARK] = settings

        cls.__init__ = init

    arguments.__new__ = new


def _fields(parser: Any) -> set[str]:
    return {
        field.name
        for kind in parser.dataclass_types
        for field in dataclasses.fields(kind)
    }


def _without_ours(args: Any, known: Collection[str], saw: Saw) -> Any:
    """Return arguments without our keys; the same object if it has none."""
    ours = {
        key: _plain(value)
        for key, value in settings_in(_plain(args)).items()
        if key not in known or key.startswith(OLD)
    }
    if not ours:
        return args
    others = {key: value for key, value in args.items() if key not in ours}
    if found := take_settings(ours, "the Trainer's arguments", []):
        saw(found)
    return others


def _words_without_ours(
    words: list[str], known: Collection[str], saw: Saw
) -> list[str]:
    """As :func:`_without_ours`, for words ``--clip JSON``."""
    values: dict[str, Any] = {}
    places: dict[str, int] = {}
    for i, word in enumerate(words[:-1]):
        name = word.removeprefix("--")
        if word.startswith("--") and (name in _OURS or name.startswith(OLD)):
            values[name], places[name] = _value(words[i + 1]), i
    left = _without_ours(values, known, saw)
    gone = {places[name] for name in values if name not in left}
    gone |= {i + 1 for i in gone}
    return [word for i, word in enumerate(words) if i not in gone]


def _value(text: str) -> Any:
    """Read what ``PdArgumentParser`` made of a JSON file's value."""
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):
            return read(text)
    return text


def _plain(value: Any) -> Any:
    """Return mappings, OmegaConf's too, as dicts."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
