# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A decoder of a run or of one of its checkpoints, read back."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from adagc_lab.models.config import DecoderConfig
from adagc_lab.models.decoder import DecoderForCausalLM
from adagc_lab.train.checkpoints import (
    find_checkpoint_fault,
    last_checkpoint,
    load_weights,
    read_complete,
)


@dataclasses.dataclass(frozen=True)
class SavedDecoder:
    """A decoder in evaluation mode, and where it comes from."""

    model: DecoderForCausalLM
    checkpoint: Path
    step: int  # optimizer steps that made the weights
    run: dict[str, Any]  # ``run.json``; empty without one beside the checkpoint


def load_saved(path: str | os.PathLike[str]) -> SavedDecoder:
    """Read a run's newest whole checkpoint, or one checkpoint.

    The run may still be in progress. One that split tensors over ranks is
    refused.
    """
    directory = Path(path)
    if (directory / "run.json").exists():
        found = last_checkpoint(directory, resumes=False)
        if found is None:
            raise FileNotFoundError(
                f"{directory} has no complete checkpoint: train with "
                "train.save_every, which also saves the last step"
            )
        directory = found
    elif fault := find_checkpoint_fault(directory):
        raise ValueError(f"{directory} is no whole checkpoint: {fault}")
    options = json.loads((directory / "config.json").read_text("utf-8"))
    # Scored in float32, whatever it was trained in.
    names = {*DecoderConfig.field_names()} & options.keys() - {"float8_linears"}
    config = DecoderConfig(**{name: options[name] for name in names})
    model = DecoderForCausalLM(config)
    load_weights(model, directory)
    model.eval()
    file = directory.parent / "run.json"
    run = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return SavedDecoder(model, directory, read_complete(directory)["step"], run)
