# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""YAML files and ``key=value`` overrides into a :class:`RunConfig`."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dacite
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from paddle_adagc.checks import suggestion
from paddle_adagc.pretrain.config import RunConfig

_BASE = "base"


def load_config(
    path: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> RunConfig:
    """Read a run's config.

    A file may name another one under ``base`` (relative to itself), whose
    values it then changes; lists are replaced as a whole.

    Args:
        path: YAML file.
        overrides: ``key=value`` with dotted keys and YAML values, applied
            last: ``train.max_steps=100``, ``clip.lambda_rel=1.1``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: An unknown key (the nearest valid one is named), a value of
            the wrong type or out of its range.
    """
    for override in overrides:
        if "=" not in override:
            raise ValueError(f"override {override!r} is not of form key=value")
    values = read_values(path)
    changes = OmegaConf.from_dotlist(list(overrides))
    return parse_config(_plain(OmegaConf.merge(values, changes), path))


def read_values(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Values of a YAML file merged over those of its ``base``."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no config file {path}")
    values = _plain(OmegaConf.load(path), path)
    if _BASE not in values:
        return values
    base = read_values(path.parent / values.pop(_BASE))
    return _plain(OmegaConf.merge(base, values), path)


def parse_config(values: Mapping[str, Any]) -> RunConfig:
    """Check plain values and make a :class:`RunConfig` of them.

    Raises:
        ValueError: See :func:`load_config`.
    """
    _check_keys(values, RunConfig, "")
    values = {key: value for key, value in values.items() if value is not None}
    train = values.get("train")
    if isinstance(train, Mapping):
        data = {"seed": train.get("seed", 0), **values.get("data", {})}
        values["data"] = data
    try:
        return dacite.from_dict(
            RunConfig, values, dacite.Config(strict=True, cast=[tuple, float])
        )
    except (dacite.DaciteError, TypeError) as error:
        raise ValueError(f"bad config: {error}") from error


def _plain(config: Any, path: Any) -> dict[str, Any]:
    try:
        plain = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(plain, dict):
        raise ValueError(f"{path} holds a {type(plain).__name__}, not a map")
    return typing.cast("dict[str, Any]", plain)


def _check_keys(values: Any, kind: Any, where: str) -> None:
    """Reject keys that the dataclass ``kind`` does not have, at any depth."""
    if typing.get_origin(kind) is list and isinstance(values, list):
        for index, value in enumerate(values):
            _check_keys(value, typing.get_args(kind)[0], f"{where}{index}.")
    if not dataclasses.is_dataclass(kind) or not isinstance(values, Mapping):
        return
    types = typing.get_type_hints(kind)
    for key, value in values.items():
        if key not in types:
            raise ValueError(
                f"unknown key {where + str(key)!r}{suggestion(key, types)}"
            )
        _check_keys(value, types[key], f"{where}{key}.")
