# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoders to Hugging Face's format and back."""

from __future__ import annotations

import os
from pathlib import Path

import paddle

from paddle_adagc.files import atomic_write_json
from paddle_adagc.lab.checksums import describe
from paddle_adagc.lab.evaluate.saved import load_saved
from paddle_adagc.lab.evaluate.tokenizer import tokenizer_of, write_tokenizer
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.hf import config_to_hf, state_to_hf
from paddle_adagc.lab.models.hf_files import (
    CHECKSUMS,
    INDEX,
    MAX_SHARD_BYTES,
    copy_tokenizer,
    new_directory,
    read_json,
    write_weights,
)
from paddle_adagc.lab.models.rank_weights import to_paddle

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def to_hf(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    tokenizer: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    verify: bool = False,
) -> str:
    """Export a saved decoder for transformers.

    The config decides the family (see `paddle_adagc.lab.models.families`).
    Every tensor keeps its dtype and bits. `target` appears only when it is
    complete.

    Args:
        source: See :func:`paddle_adagc.lab.evaluate.saved.load_saved`.
        target: New directory for `config.json`, `generation_config.json`,
            safetensors, and the tokenizer's files if the tokenizer is known.
        tokenizer: See :func:`paddle_adagc.lab.evaluate.tokenizer.tokenizer_of`;
            None for what the run was trained with.
        max_shard_bytes: Weights of more bytes become several files.
        verify: See :func:`paddle_adagc.lab.evaluate.saved.load_saved`.

    Returns:
        A line that says what was exported.

    Raises:
        FileNotFoundError: There is no decoder or no tokenizer.
        FileExistsError: `target` holds something.
        ValueError: A broken source, or a model that transformers has no
            class for.
    """
    saved = load_saved(source, verify=verify)
    options = config_to_hf(saved.config)
    name = tokenizer_of(saved, tokenizer)
    ids: dict[str, int | None] = dict.fromkeys(_TOKEN_IDS)
    with new_directory(target) as directory:
        if name is not None:
            eos = write_tokenizer(name, directory, saved)
            ids.update(eos_token_id=eos, pad_token_id=eos)
        dtype = saved.state["model.embed_tokens.weight"].dtype.name
        atomic_write_json(
            directory / "config.json",
            {**options, "torch_dtype": dtype, **ids},
        )
        atomic_write_json(directory / "generation_config.json", ids)
        weights = state_to_hf(saved.state, saved.config)
        write_weights(directory, weights, max_shard_bytes)
        _write_checksums(directory)
    step = "" if saved.step is None else f" of step {saved.step}"
    tail = "no tokenizer" if name is None else f"tokenizer {name}"
    return (
        f"{target}: {options['architectures'][0]}{step}, "
        f"{len(saved.state)} tensors, {dtype}, {tail}"
    )


def from_hf(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    verify: bool = False,
) -> str:
    """Import a model of transformers.

    Args:
        source: Directory with `config.json` and safetensors.
        target: New directory in the format of a run's checkpoints:
            `config.json` and `model_state.pdparams`, which
            `DecoderForCausalLM.from_pretrained` reads, and the tokenizer's
            files.
        verify: See :func:`paddle_adagc.lab.evaluate.saved.load_saved`.

    Returns:
        A line that says what was imported.

    Raises:
        FileNotFoundError: Files are missing.
        FileExistsError: `target` holds something.
        ValueError: A run or a checkpoint of it, another model than the
            supported ones, or broken files.
    """
    family = _family(Path(source))
    saved = load_saved(source, verify=verify)
    with new_directory(target) as directory:
        saved.config.architectures = ["DecoderForCausalLM"]
        saved.config.save_pretrained(str(directory))
        tensors = {name: to_paddle(a) for name, a in saved.state.items()}
        paddle.save(tensors, str(directory / "model_state.pdparams"))
        _write_checksums(directory)
        copy_tokenizer(Path(source), directory)
    return f"{target}: {family}, {len(tensors)} tensors"


def _write_checksums(directory: Path) -> None:
    """Describe the weights; other files may be edited later."""
    names = sorted(
        path.name
        for path in directory.iterdir()
        if path.name == INDEX or path.suffix in (".safetensors", ".pdparams")
    )
    atomic_write_json(directory / CHECKSUMS, describe(directory, names))


def _family(source: Path) -> str | None:
    """Return the `model_type` of a directory in Hugging Face's format."""
    config = source / "config.json"
    is_run = (source / "run.json").exists()
    if not is_run and not config.exists():
        raise FileNotFoundError(
            f"{source} holds no config.json: give a directory in Hugging "
            "Face's format"
        )
    family = None if is_run else read_json(config).get("model_type")
    if is_run or family == DecoderConfig.model_type:
        kind = "run" if is_run else "checkpoint"
        raise ValueError(
            f"{source} is a {kind} of this package: to-hf exports it; from-hf "
            "takes a directory in Hugging Face's format"
        )
    return family
