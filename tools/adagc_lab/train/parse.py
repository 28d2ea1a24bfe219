# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""YAML files and ``key=value`` overrides into a :class:`RunConfig`."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from adagc_lab.section import mistakes
from adagc_lab.train.config import RunConfig

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


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Read ``key=value`` with dotted keys and YAML values into a dict."""
    for override in overrides:
        if "=" not in override:
            raise ValueError(
                f"override {override!r:.300} is not of form key=value"
            )
    return _plain(
        lambda: OmegaConf.from_dotlist([*overrides]), " ".join(overrides)
    )


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
    values = _plain(lambda: OmegaConf.load(path), path)
    bases = values.pop("base", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list):
        raise ValueError(f"{path}: base is {bases!r}: name a file, or a list")
    result: dict[str, Any] = {}
    for base in bases:
        inside = (*above, path.resolve())
        result = merged(result, read_values(path.parent / str(base), inside))
    return merged(result, values)


def _plain(load: Any, where: Any) -> dict[str, Any]:
    """Return what OmegaConf reads; refuse its ``${...}``, which reads files."""
    try:
        plain = OmegaConf.to_container(load())
    except (OmegaConfBaseException, yaml.YAMLError, OSError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ValueError(f"{where}{line}: not YAML: {reason}") from error
    except (IndexError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: not YAML: {error!r:.200}") from error
    if not isinstance(plain, dict):
        raise ValueError(f"{where} holds a {type(plain).__name__}, not a map")
    if "${" in str(plain):
        raise ValueError(
            f"{where}: ${{...}} is refused: write the value itself"
        )
    return {str(key): value for key, value in plain.items()}


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
    values = {
        key: value
        for key, value in values.items()
        if value is not None or key not in RunConfig.model_fields
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
    try:
        return RunConfig(**values)
    except ValidationError as error:
        raise ValueError(mistakes(error, RunConfig)) from error
