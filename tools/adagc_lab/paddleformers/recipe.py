# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Recipes of PaddleFormers' stages, read without PaddleFormers.

A recipe is a YAML file with the flat keys of PaddleFormers' own command line
and three more: ``base`` names another file whose values it changes, ``clip`` is
a section of ``clip`` in this laboratory's configs (:mod:`adagc_lab.clips`), and
``units`` says which parameters hold several of the paper's tensors
(:mod:`paddle_adagc.parallel.units`).
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adagc_lab.train.config import RunConfig
from adagc_lab.train.parse import (
    load_config,
    merged,
    parse_config,
    read_overrides,
    read_values,
)
from paddle_adagc.checks import (
    check_choice,
    check_integer,
    check_positive,
    suggestion,
)

ERNIE = "ernie_pretrain"
STAGES = (ERNIE, "PT")
"""Values of the key ``stage``, by which PaddleFormers tells its tasks apart."""

CLIP_OPTIONS = ("missing_state", "new_tensors", "skip_above", "stop_on")
"""Keys of ``clip`` that say how a Trainer clips."""

_MODEL = "ernie_model_config"
_MISSPELT = 0.92
"""Similarity from which a new key counts as a misspelt key of the recipe.
PaddleFormers' own keys stay below (``save_hf_total_limit``: 0.914)."""

_PRECISIONS = {"bf16": "bfloat16", "float32": "float32"}
_MODELLED = {
    "sharding": "stage1",
    "virtual_pipeline_model_parallel_size": 1,
    "hybrid_parallel_topo_order": "sharding_first",
    "use_recompute": False,
}
"""Options of PaddleFormers of which the plan knows one value only."""


def is_recipe(path: str | os.PathLike[str]) -> bool:
    """Tell whether the file is a recipe; refuse PaddleFormers' other tasks."""
    try:
        stage = read_values(path).get("stage")
    except (FileNotFoundError, ValueError):
        return False
    if stage not in (None, *STAGES):
        raise ValueError(
            f"{path} is a file for PaddleFormers' task {stage!r}; this command "
            f"runs {', '.join(STAGES)}. Put adagc-run before your own command: "
            "docs/use.md"
        )
    return stage is not None


def load_recipe(
    path: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Read a recipe's values over those of its ``base``.

    PaddleFormers has hundreds of keys: an override of one that the file does
    not have is passed on with a warning, unless it looks like one of the file's
    misspelt. ``model_name_or_path``, which a recipe gives relative to itself,
    becomes absolute.
    """
    changes = read_overrides(overrides)
    original = read_values(path)
    values = merged(original, changes)
    if values.get("stage") not in STAGES:
        raise ValueError(
            f"{path} has stage={values.get('stage')!r}, not {', '.join(STAGES)}"
        )
    for key in ("model_name_or_path", "clip"):
        if key not in values:
            raise ValueError(f"{path} has no {key!r}")
    name = values["model_name_or_path"]
    model = Path(path).resolve().parent / name
    is_here = (model / "config.json").is_file()
    is_folder = values["stage"] == ERNIE or str(name).startswith((".", "/"))
    if is_folder and not is_here:  # no name on a hub
        raise FileNotFoundError(f"there is no model config {model}/config.json")
    place = {"model_name_or_path": str(model.resolve())} if is_here else {}
    options = model_settings({**original, **place}) if is_here else {}
    _check_new_keys(overrides, {**original, _MODEL: options})
    return {**values, **place}


def clip_section(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes the clip: the key ``clip`` without its options."""
    own = {k: v for k, v in recipe["clip"].items() if k not in CLIP_OPTIONS}
    return {"name": "adagc", **own}


def model_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Read the model's ``config.json``, changed by ``ernie_model_config``."""
    path = Path(recipe["model_name_or_path"]) / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    return {**settings, **recipe.get(_MODEL, {})}


def as_run_config(
    path: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> RunConfig:
    """Convert a recipe to a run config, to plan and to check it.

    Three things have no counterpart and are left out: PaddleFormers'
    checkpoints (``train.save_every`` is 0); the learning rate 0 of its first
    warm-up step (this package starts one step further); its fused parameters
    (``fuse_attn_ffn``) and ``units``: q, k, v, gate and up are parameters.
    """
    recipe = load_recipe(path, overrides)
    given = {**recipe.get(_MODEL, {}), **recipe}
    for key, modelled in _MODELLED.items():
        if given.get(key, modelled) != modelled:
            warnings.warn(
                f"{key}={given[key]!r}: the plan is that of {modelled!r}",
                stacklevel=2,
            )
    _refuse_dense_layers(model_settings(recipe))
    try:
        values = _run_values(recipe)
    except KeyError as error:
        raise ValueError(f"{path} has no {error.args[0]!r}") from error
    return parse_config(values)


def _refuse_dense_layers(model: Mapping[str, Any]) -> None:
    last = model.get("num_hidden_layers", 0) - 1
    end = model.get("moe_layer_end_index", -1)
    for key, is_usual in (
        ("moe_layer_start_index", model.get("moe_layer_start_index", 0) == 0),
        ("moe_layer_interval", model.get("moe_layer_interval", 1) == 1),
        ("moe_layer_end_index", end == -1 or end >= last),
    ):
        if not is_usual:
            raise ValueError(
                f"{key}={model[key]!r}: the plan supports experts in every "
                "layer only"
            )


def read_run_config(
    path: str | os.PathLike[str], overrides: Sequence[str] = ()
) -> RunConfig:
    """Read a run config, or a recipe for PaddleFormers as one."""
    read = as_run_config if is_recipe(path) else load_config
    return read(path, overrides)


def _run_values(recipe: Mapping[str, Any]) -> dict[str, Any]:
    model = model_settings(recipe)
    is_float8 = bool(model.get("use_fp8_mlp"))
    kind = check_choice("compute_type", recipe["compute_type"], _PRECISIONS)
    return {
        "model": _decoder_options(model),
        "clip": clip_section(recipe),
        "optimizer": {
            "name": "adamw",
            "beta1": recipe["adam_beta1"],
            "beta2": recipe["adam_beta2"],
            "epsilon": recipe["adam_epsilon"],
            "weight_decay": recipe["weight_decay"],
        },
        "schedule": _schedule(recipe),
        "data": _data(recipe),
        "parallel": {
            "sharding": recipe.get("sharding_parallel_size", 1),
            "tp": recipe.get("tensor_model_parallel_size", 1),
            "pp": recipe.get("pipeline_model_parallel_size", 1),
            "ep": recipe.get("expert_model_parallel_size", 1),
            "sharding_split_param": recipe.get("split_param", True),
        },
        "train": {
            "output_dir": recipe["output_dir"],
            "max_steps": recipe["max_steps"],
            "batch_size": recipe["per_device_train_batch_size"],
            "gradient_accumulation_steps": recipe[
                "gradient_accumulation_steps"
            ],
            "seed": recipe.get("seed", 42),
            "expert_bias_rate": recipe.get("moe_router_bias_update_rate", 0.0),
            "precision": "float8" if is_float8 else _PRECISIONS[kind],
            "log_every": recipe.get("logging_steps", 500),
            "keep_checkpoints": recipe.get("save_total_limit", 1),
        },
    }


def _check_new_keys(overrides: Sequence[str], known: Mapping[str, Any]) -> None:
    """Refuse misspelt keys and warn about other new keys.

    PaddleFormers refuses an unknown key of its own only after the launch, and
    ignores an unknown key of the model.
    """
    for override in overrides:
        key = override.partition("=")[0]
        *parents, last = key.split(".")
        if parents[:1] == ["clip"]:  # make_clip knows its arguments
            continue
        section: Any = known
        for parent in parents:
            section = section.get(parent)
            section = section if isinstance(section, Mapping) else {}
        if last in section:
            continue
        before = key.removesuffix(last)
        near = suggestion(last, section, before, similarity=_MISSPELT)
        missing = f"the recipe has no key {key!r}{near}"
        if near:
            raise ValueError(missing)
        warnings.warn(
            f"{missing}; PaddleFormers decides whether it knows it",
            stacklevel=3,
        )


def _decoder_options(model: Mapping[str, Any]) -> dict[str, Any]:
    from adagc_lab.models.hf import config_from_hf

    is_ernie = model["model_type"] == "ernie"
    if is_ernie:  # has the keys of transformers' class
        model = {**model, "model_type": "ernie4_5_moe"}
    config = config_from_hf(model)
    names = {*config.field_names()} - {"float8_linears"}  # config.json has none
    options = {name: getattr(config, name) for name in sorted(names)}
    if is_ernie:
        options["moe_correction_bias"] = model["moe_use_aux_free"]
    if model.get("use_fp8_mlp"):  # the products of all experts
        options["float8_linears"] = ["mlp", "experts"]
    return options


def _schedule(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """PaddleFormers' WSD: ``wsd`` is flat for 90%, ``wsd:N`` for N steps."""
    peak = check_positive("learning_rate", recipe["learning_rate"])
    shared = {
        "learning_rate": peak,
        "warmup_steps": recipe["warmup_steps"],
        "min_ratio": recipe.get("min_lr", 0.0) / peak,
    }
    if recipe["stage"] != ERNIE:
        kind = recipe.get("lr_scheduler_type", "linear")
        return {
            "kind": check_choice("lr_scheduler_type", kind, ("cosine",)),
            **shared,
        }
    scheduler = str(recipe["lr_scheduler"])
    kind, _, flat = scheduler.partition(":")
    check_choice("lr_scheduler", kind, ("wsd",))
    check_choice("decay_function", recipe.get("decay_function"), ("1-sqrt",))
    last = check_integer("max_steps", recipe["max_steps"], 1)
    if flat and not (flat.isdecimal() and int(flat) < last):
        raise ValueError(
            f"lr_scheduler={scheduler!r}: give wsd, or wsd:N with N steps "
            f"until the decay, less than max_steps={last}"
        )
    return {
        "kind": kind,
        **shared,
        "decay_fraction": 1 - (int(flat) / last if flat else 0.9),
        "decay_shape": "sqrt",
    }


def _data(recipe: Mapping[str, Any]) -> dict[str, Any]:
    parts = str(recipe["input_dir"]).split()
    if len(parts) != 2:
        raise ValueError(
            f"input_dir={recipe['input_dir']!r} is not one weight and one "
            "prefix: our data layer reads a single dataset"
        )
    try:
        shares = [float(part) for part in recipe["split"].split(",")]
    except (AttributeError, ValueError) as error:
        raise ValueError(
            f"split={recipe['split']!r}: give shares of the documents, such as "
            "998,1,1"
        ) from error
    train, *held_out = shares
    return {
        "kind": "mmap",
        "prefix": parts[1],
        "seq_length": recipe["max_seq_len"],
        "validation_fraction": sum(held_out) / (train + sum(held_out)),
    }
