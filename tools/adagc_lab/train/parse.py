# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""YAML files and ``key=value`` overrides into a :class:`RunConfig`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from adagc_lab.train.config import RunConfig

_OF_OMEGACONF = (OmegaConfBaseException, IndexError, TypeError, ValueError)

MAX_BYTES = 2**20  # of a YAML file
_GONE = {"shards": None, "tokenizer": None, "shuffle_size": 1000}
"""Keys of ``data`` that digests were made with, see ``to_dict``."""

_NAMED = ("clip", "optimizer")  # sections whose keys depend on their ``name``


def load_config(
    path: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> RunConfig:
    """Read a run's config from a YAML file; overrides are applied last.

    A file may name another file, or a list of files, under ``base`` (relative
    to itself) and change their values, see :func:`merged`.
    """
    changes = read_overrides(overrides)
    return parse_config(merged(read_values(path), changes))


@contextlib.contextmanager
def _refusals(where: Any) -> Iterator[None]:
    """Say in one line what OmegaConf refuses, and where."""
    try:
        yield
    except RecursionError as error:
        raise ValueError(f"{where}: not YAML: nested too deeply") from error
    except _OF_OMEGACONF as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{where}: {line}") from error


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Read ``key=value`` with dotted keys and YAML values into a dict."""
    plain: dict[str, str] = {}  # keys whose value is no map, their overrides
    for override in overrides:
        where = f"override {override!r:.300}"
        if "=" not in override:
            raise ValueError(f"{where} is not of form key=value")
        _refuse_references(override, where)
        with _refusals(where):
            try:
                OmegaConf.from_dotlist([override])
                key, _, text = override.partition("=")
                value = yaml.compose(text, yaml.SafeLoader)
                _refuse_traps(value)
            except (RecursionError, yaml.YAMLError) as error:
                reason = getattr(error, "problem", None) or error
                raise ValueError(f"the value is not YAML: {reason}") from error
        for above, other in plain.items():
            if key.startswith(f"{above}."):
                fix = f", or write {above}.name=..." if above in _NAMED else ""
                raise ValueError(
                    f"{where} replaces {other!r:.300}: leave one of them "
                    f"out{fix}"
                )
        if not isinstance(value, yaml.MappingNode):
            plain[key] = override
    changes = OmegaConf.from_dotlist(list(overrides))
    return _plain(changes, " ".join(overrides))


def read_values(
    path: str | os.PathLike[str], above: Sequence[Path] = ()
) -> dict[str, Any]:
    """Read a YAML file's values, merged over those of its ``base``.

    ``above``: the files that name this one as their base.
    """
    path = Path(path)
    if path.resolve() in above:
        raise ValueError(f"{above[-1]}: its base {path} leads back to itself")
    if not path.is_file():
        user = f"{above[-1]}: its base: " if above else ""
        raise FileNotFoundError(f"{user}there is no config file {path}")
    values = _plain(_load_yaml(path), path)
    if not values:
        raise ValueError(f"{path} is empty: a config has keys and values")
    if "config" in values and "status" in values:
        raise ValueError(
            f"{path} is the record of a run, not a config: name the YAML file "
            "that the run was started with"
        )
    bases = values.pop("base", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list):
        raise ValueError(f"{path}: base is {bases!r}: name a file, or a list")
    result: dict[str, Any] = {}
    for base in bases:
        inside = (*above, path.resolve())
        result = merged(result, read_values(path.parent / str(base), inside))
    return merged(result, values)


def _load_yaml(path: Path) -> Any:
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(
            f"{path} has {size:,} bytes, more than {MAX_BYTES:,}: no config"
        )
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: not UTF-8 (byte "
            f"0x{error.object[error.start]:02x}): save it as UTF-8"
        ) from error
    _refuse_references(text, path)
    try:
        with _refusals(path):
            root = yaml.compose(text, yaml.SafeLoader)
            _refuse_traps(root)
            if not isinstance(root, yaml.ScalarNode):
                return OmegaConf.load(io.StringIO(text))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}{_yaml_mistake(error, text)}") from error
    raise ValueError(f"{path} holds no map of keys to values: {text!r:.80}")


def _yaml_mistake(error: yaml.YAMLError, text: str) -> str:
    """Return ``", line 3: not YAML: ..."``, as exact as the error is."""
    if not isinstance(error, yaml.MarkedYAMLError) or not error.problem_mark:
        return f": not YAML: {str(error).splitlines()[0]}"
    last = max(len(text.splitlines()), 1)
    line = min(error.problem_mark.line + 1, last)
    mistake = f", line {line}: not YAML: {error.problem}"
    if error.context and error.context_mark:
        mistake += f", {error.context} of line {error.context_mark.line + 1}"
    return mistake


def merged(
    values: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a deep copy of ``values`` with ``changes``, key by key.

    Lists are replaced as a whole. So are the sections ``clip`` and
    ``optimizer`` if the change gives a ``name``: the arguments of another clip
    or optimizer do not apply to it.
    """
    result = copy.deepcopy(dict(values))
    for key, change in changes.items():
        old = result.get(key)
        if (
            isinstance(change, Mapping)
            and isinstance(old, Mapping)
            and not (key in _NAMED and "name" in change)
        ):
            change = merged(old, change)
        result[key] = copy.deepcopy(change)
    return result


def parse_config(values: Mapping[str, Any]) -> RunConfig:
    """Make a :class:`RunConfig` of plain values, see :func:`load_config`.

    ``data.seed`` is ``train.seed`` unless it is given.
    """
    sections = {field.name for field in dataclasses.fields(RunConfig)}
    values = {
        key: value
        for key, value in values.items()
        if value is not None or key not in sections
    }
    train, data = values.get("train"), values.get("data", {})
    if isinstance(data, Mapping):  # a record has keys of other versions
        data = {k: v for k, v in data.items() if (k, v) not in _GONE.items()}
    if isinstance(train, Mapping) and isinstance(data, Mapping):
        values["data"] = {"seed": train.get("seed", 0), **data}
    if isinstance(faults := values.get("faults"), list):
        # A run's record has None for what its faults do not take.
        values["faults"] = [
            {k: v for k, v in fault.items() if v is not None}
            if isinstance(fault, Mapping)
            else fault
            for fault in faults
        ]
    return RunConfig(**values)


_TRAP = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Numbers that YAML reads in base 8, and in base 60."""


def _refuse_traps(root: yaml.Node | None) -> None:
    """Refuse what YAML reads as something else than a person does."""
    nodes, seen = [root], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode) and node.style is None:
            is_number = node.tag.endswith((":int", ":float"))
            if is_number and _TRAP.fullmatch(node.value):
                base = 60 if ":" in node.value else 8
                raise ValueError(
                    f"line {node.start_mark.line + 1}: YAML reads {node.value} "
                    f"as a number in base {base}: write it in base 10, or "
                    "quote it if it is text"
                )
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag not in _KEYS:
                    raise ValueError(
                        f"line {key.start_mark.line + 1}: the key {key.value} "
                        "is no text to YAML: no config has it, or write "
                        f'"{key.value}"'
                    )
                nodes.append(value)


_KEYS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")


def _plain(config: Any, where: Any) -> dict[str, Any]:
    with _refusals(where):
        plain = OmegaConf.to_container(OmegaConf.create(config))
    if not isinstance(plain, dict):
        raise ValueError(f"{where} holds a {type(plain).__name__}, not a map")
    return typing.cast("dict[str, Any]", plain)


def _refuse_references(text: str, where: Any) -> None:
    """Refuse OmegaConf's ``${...}``: it can read the machine, or multiply."""
    if "${" in text:
        raise ValueError(
            f"{where}: ${{...}} is refused: write the value itself"
        )
