# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the runs' configs say: single options, common and differing ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paddle_adagc.lab.extensions.robust import argument_default
from paddle_adagc.lab.report.experiment import Experiment

_PER_RUN = ("seed", "output_dir")


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested options into ``{"clip.beta": 0.99}``."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def is_per_run(key: str) -> bool:
    """Whether an option, ``"train.seed"``, differs from run to run."""
    return key.rsplit(".", 1)[-1] in _PER_RUN


def adagc_option(config: Mapping[str, Any], name: str) -> float | None:
    """Return a number that AdaGC was called with.

    Args:
        config: A run's config, whose ``clip`` section holds the clip's name
            and the arguments that are not the defaults.
        name: An argument of :class:`~paddle_adagc.ClipGradByAdaGC`.

    Returns:
        ``None`` if the run used another clip.
    """
    clip = config.get("clip", {})
    if clip.get("name") != "adagc":
        return None
    return float(clip.get(name, argument_default(clip, name)))


def common_and_different(
    experiment: Experiment,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Split the configs of an experiment's methods.

    Seeds and output folders are left out: they differ from run to run.

    Returns:
        The options that all methods share, and for every other option its
        value by method (methods without the option are left out).
    """
    configs = {
        method: {
            key: value
            for key, value in flatten(runs[0].run.get("config", {})).items()
            if not is_per_run(key)
        }
        for method, runs in experiment.runs.items()
    }
    common: dict[str, Any] = {}
    different: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(key for c in configs.values() for key in c):
        values = {m: c[key] for m, c in configs.items() if key in c}
        first = next(iter(values.values()))
        if len(values) == len(configs) and all(
            value == first for value in values.values()
        ):
            common[key] = first
        else:
            different[key] = values
    return common, different
