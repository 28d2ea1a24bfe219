# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Saved decoders: read back, and converted to Hugging Face's format and back.

A saved decoder is a run's output directory (its newest complete checkpoint is
taken), a checkpoint of it, what :func:`from_hf` wrote, or a directory in
Hugging Face's format of one of the supported models.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from adagc_lab.checksums import describe, find_fault
from adagc_lab.data.indexed import manifest_tokenizer
from adagc_lab.data.tokenizers import (
    BYTES,
    FILES,
    copy_tokenizer,
    find_tokenizer,
    is_bytes,
    write_tokenizer,
)
from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.models.hf import (
    check_counts,
    config_from_hf,
    config_to_hf,
    family_of,
    state_from_hf,
    state_to_hf,
)
from adagc_lab.models.hf_files import (
    CHECKSUMS,
    INDEX,
    new_directory,
    read_json,
    read_weights,
    write_weights,
)
from adagc_lab.models.rank_weights import Array, merged_parts, to_paddle
from adagc_lab.models.shapes import Shape, state_shapes
from adagc_lab.train.checkpoints import (
    COMPLETE,
    find_checkpoint_fault,
    last_checkpoint,
)
from paddle_adagc.files import atomic_write_json

_DTYPES = ("bfloat16", "float16", "float32", "float64")
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclasses.dataclass(frozen=True)
class SavedDecoder:
    """A decoder's whole weights, and their source."""

    directory: Path  # of the weights: a checkpoint, or Hugging Face's
    config: DecoderConfig  # config of the whole model

    state: dict[str, Array]
    """Every parameter and correction bias, in the dtype it was saved in;
    bfloat16 is `ml_dtypes.bfloat16`."""

    run: dict[str, Any]  # `run.json` of the run that trained it, if any
    is_own: bool  # it has this package's format, not Hugging Face's

    @property
    def step(self) -> int | None:
        """Optimizer steps that made the weights, if known."""
        facts = self.directory / COMPLETE
        return int(read_json(facts)["step"]) if facts.exists() else None

    @property
    def data(self) -> dict[str, Any]:
        """`data` section of the run's config; empty if it is unknown."""
        return self.run.get("config", {}).get("data", {})

    @property
    def document_end(self) -> int | None:
        """Id of the token after each document of the data, if known."""
        return manifest_tokenizer(self.data.get("prefix")).get("eos_id")

    def tokenizer(self, given: str | None = None) -> str | None:
        """Return the name of the tokenizer that the decoder was trained with.

        `given` is taken if it is not None, see :func:`.find_tokenizer`. None:
        nothing says what the tokens are.
        """
        kind, prefix = self.data.get("kind"), self.data.get("prefix")
        if given is not None:
            expected = manifest_tokenizer(prefix)
            found = find_tokenizer(given, eos_id=self.document_end).identity()
            if expected and found["sha256"] != expected["sha256"]:
                raise ValueError(
                    f"tokenizer {given!r} is not the one that the data was "
                    f"made with: its SHA-256 is {found['sha256']}, the "
                    f"manifest has {expected['sha256']}"
                )
            return given
        if any((self.directory / name).exists() for name in FILES[:2]):
            return str(self.directory)
        return BYTES if is_bytes(kind, prefix) else None


def load_saved(
    path: str | os.PathLike[str], *, verify: bool = False
) -> SavedDecoder:
    """Read a saved decoder; its run may still be in progress.

    `verify` compares the files with their checksums, otherwise with their
    sizes.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise FileNotFoundError(f"there is no directory {directory}")
    if (directory / "run.json").exists():
        found = last_checkpoint(directory, resumes=False, verify=verify)
        if found is None:
            raise FileNotFoundError(
                f"{directory} has no complete checkpoint: train with "
                "train.save_every, which also saves the last step"
            )
        directory = found
    elif fault := _fault(directory, verify=verify):
        raise ValueError(f"{directory} is damaged: {fault}")
    config_file = directory / "config.json"
    if not config_file.exists():
        raise FileNotFoundError(
            f"{directory} holds neither run.json nor config.json: give a run's "
            "output directory, a checkpoint, or a Hugging Face directory"
        )
    options = read_json(config_file)
    run: dict[str, Any] = {}
    if is_own := options.get("model_type") == DecoderConfig.model_type:
        names = {*DecoderConfig.field_names()} & options.keys()
        config = DecoderConfig(**{name: options[name] for name in names})
        check_counts(config)
        state = merged_parts(directory, state_shapes(config))
        if (run_file := directory.parent / "run.json").exists():
            run = read_json(run_file)
    else:
        config = config_from_hf(options, source=config_file)
        weights = read_weights(directory)
        try:
            state = state_from_hf(weights, config)
        except ValueError as error:
            raise ValueError(f"{directory}: {error}") from error
    state = _checked(directory, state, state_shapes(config))
    return SavedDecoder(directory, config, state, run, is_own)


def _fault(directory: Path, *, verify: bool) -> str | None:
    """Return what is wrong with a checkpoint's or an export's files."""
    if (directory / COMPLETE).exists():
        return find_checkpoint_fault(
            directory, verify=verify, with_record=False
        )
    described = directory / CHECKSUMS
    if not described.exists():
        return None
    return find_fault(directory, read_json(described), verify=verify)


def _checked(
    directory: Path, state: dict[str, Array], shapes: dict[str, Shape]
) -> dict[str, Array]:
    """Return the state in the model's order; refuse one that does not fit."""
    found = {name: array.shape for name, array in state.items()}
    wrong = [
        f"{name} is {found.get(name, 'missing')} and should be "
        f"{shapes.get(name, 'absent')}"
        for name in sorted(shapes.keys() | found.keys())
        if shapes.get(name) != found.get(name)
    ]
    wrong += [
        f"{name} is {array.dtype}, no {', '.join(_DTYPES)}: scales of "
        "quantized weights are not applied"
        for name, array in state.items()
        if array.dtype.name not in _DTYPES
    ]
    if len(wrong) > 5:
        wrong[5:] = [f"and {len(wrong) - 5} others"]
    if wrong:
        raise ValueError(
            f"{directory}: the weights do not fit config.json: "
            f"{'; '.join(wrong)}"
        )
    return {name: state[name] for name in shapes}


def build_decoder(saved: SavedDecoder) -> DecoderForCausalLM:
    """Build the decoder in float32, in evaluation mode."""
    model = DecoderForCausalLM(saved.config)
    arrays = {k: v.astype(np.float32) for k, v in saved.state.items()}
    missing, unexpected = model.set_state_dict(arrays)
    assert not missing, missing
    assert not unexpected, unexpected
    model.eval()
    return model


def to_hf(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    tokenizer: str | None = None,
    verify: bool = False,
) -> str:
    """Export a saved decoder for transformers; tells what was exported.

    Every tensor keeps its dtype and bits. `target` appears only when it is
    complete, with the tokenizer's files if the tokenizer is known.
    """
    saved = load_saved(source, verify=verify)
    options = config_to_hf(saved.config)
    name = saved.tokenizer(tokenizer)
    ids: dict[str, int | None] = dict.fromkeys(_TOKEN_IDS)
    with new_directory(target) as directory:
        if name is not None:
            found = find_tokenizer(name, eos_id=saved.document_end)
            if found.vocab_size > saved.config.vocab_size:
                raise ValueError(
                    f"tokenizer {name!r} has {found.vocab_size} tokens, the "
                    f"model {saved.config.vocab_size}: give the one it was "
                    "trained with"
                )
            length = saved.config.max_position_embeddings
            write_tokenizer(name, directory, found, length)
            ids.update(eos_token_id=found.eos_id, pad_token_id=found.eos_id)
        dtype = saved.state["model.embed_tokens.weight"].dtype.name
        config = {**options, "torch_dtype": dtype, **ids}
        atomic_write_json(directory / "config.json", config)
        atomic_write_json(directory / "generation_config.json", ids)
        weights = state_to_hf(saved.state, saved.config)
        write_weights(directory, weights)
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
    """Import a model of transformers; tells what was imported.

    `target` has the format of a run's checkpoints, which
    `DecoderForCausalLM.from_pretrained` reads, and the tokenizer's files.
    """
    saved = load_saved(source, verify=verify)
    if saved.is_own:
        raise ValueError(
            f"{source} is a run or checkpoint of this package: to-hf exports "
            "it; from-hf takes a directory in Hugging Face's format"
        )
    with new_directory(target) as directory:
        saved.config.architectures = ["DecoderForCausalLM"]
        saved.config.save_pretrained(str(directory))
        tensors = {name: to_paddle(a) for name, a in saved.state.items()}
        paddle.save(tensors, str(directory / "model_state.pdparams"))
        _write_checksums(directory)
        copy_tokenizer(Path(source), directory)
    family = family_of(saved.config).model_type
    return f"{target}: {family}, {len(tensors)} tensors"


def _write_checksums(directory: Path) -> None:
    """Describe the weights; other files may be edited later."""
    names = sorted(
        path.name
        for path in directory.iterdir()
        if path.name == INDEX or path.suffix in (".safetensors", ".pdparams")
    )
    atomic_write_json(directory / CHECKSUMS, describe(directory, names))
