# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read a saved decoder: a run, a checkpoint, or a Hugging Face directory."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.lab.checksums import find_fault
from paddle_adagc.lab.models.config import DecoderConfig
from paddle_adagc.lab.models.decoder import DecoderForCausalLM
from paddle_adagc.lab.models.hf import (
    config_from_hf,
    correction_biases,
    find_family,
    state_from_hf,
)
from paddle_adagc.lab.models.hf_files import CHECKSUMS, read_json, read_weights
from paddle_adagc.lab.models.rank_weights import Array, merged_parts
from paddle_adagc.lab.models.shapes import parameter_shapes
from paddle_adagc.lab.train.checkpoints import (
    COMPLETE,
    checkpoints,
    find_checkpoint_fault,
)

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SavedDecoder:
    """A decoder's whole weights, and their source."""

    directory: Path
    """Holds the weights: a checkpoint, or a Hugging Face directory."""

    config: DecoderConfig
    """Config of the whole model."""

    state: dict[str, Array]
    """Every parameter and correction bias, in the dtype it was saved in;
    bfloat16 is `ml_dtypes.bfloat16`."""

    run: dict[str, Any]
    """`run.json` of the run that trained it; empty if there is none."""

    @property
    def step(self) -> int | None:
        """Optimizer steps that made the weights, if known."""
        facts = self.directory / COMPLETE
        return int(read_json(facts)["step"]) if facts.exists() else None


def load_saved(
    path: str | os.PathLike[str], *, verify: bool = False
) -> SavedDecoder:
    """Read a saved decoder; its run may still be in progress.

    Args:
        path: A run's output directory (its newest complete checkpoint is
            taken), a checkpoint of it, what :func:`.convert.from_hf`
            wrote, or a directory in Hugging Face's format of one of the
            supported models.
        verify: Compare the files with their checksums, where there are any;
            otherwise with their sizes.

    Raises:
        FileNotFoundError: There is nothing of that kind, or the run has no
            complete checkpoint.
        ValueError: Files that are broken or do not fit each other.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise FileNotFoundError(f"there is no directory {directory}")
    if (directory / "run.json").exists():
        directory = newest_checkpoint(directory, verify=verify)
    elif fault := _fault(directory, verify=verify):
        raise ValueError(f"{directory} is damaged: {fault}")
    config_file = directory / "config.json"
    if not config_file.exists():
        raise FileNotFoundError(
            f"{directory} holds neither run.json nor config.json: give a run's "
            "output directory, a checkpoint, or a Hugging Face directory"
        )
    options = read_json(config_file)
    if options.get("model_type") != DecoderConfig.model_type:
        config = config_from_hf(options)
        weights = read_weights(directory)
        family = find_family(options["model_type"])
        state = state_from_hf(weights, config, family)
        return SavedDecoder(directory, config, _checked(state, config), {})
    known = DecoderConfig.field_names()
    config = DecoderConfig(
        **{key: value for key, value in options.items() if key in known}
    )
    run_file = directory.parent / "run.json"
    run = read_json(run_file) if run_file.exists() else {}
    state = _checked(merged_parts(directory, parameter_shapes(config)), config)
    return SavedDecoder(directory, config, state, run)


def newest_checkpoint(output_dir: Path, *, verify: bool = False) -> Path:
    """Return the newest complete checkpoint of a run that is not damaged.

    Raises:
        FileNotFoundError: There is none.
        ValueError: All are damaged.
    """
    faults: list[str] = []
    for path in checkpoints(output_dir):
        if not (path / COMPLETE).exists():
            continue
        if (fault := _fault(path, verify=verify)) is None:
            if faults:
                logger.warning("%s: taking %s", "; ".join(faults), path.name)
            return path
        faults.append(f"{path.name} is damaged ({fault})")
    if faults:
        raise ValueError(
            f"{output_dir} has no whole checkpoint: {'; '.join(faults)}"
        )
    raise FileNotFoundError(
        f"{output_dir} has no complete checkpoint: train with "
        "train.save_every, which also saves the last step"
    )


def _fault(directory: Path, *, verify: bool) -> str | None:
    """Return what is wrong with a checkpoint's or an export's files."""
    if (directory / COMPLETE).exists():
        return find_checkpoint_fault(
            directory,
            verify=verify,
            with_record=False,
            needs_checksums=False,
        )
    described = directory / CHECKSUMS
    if not described.exists():
        return None
    return find_fault(directory, read_json(described), verify=verify)


def build_decoder(saved: SavedDecoder) -> DecoderForCausalLM:
    """Build the decoder in float32, in evaluation mode."""
    model = DecoderForCausalLM(saved.config)
    arrays = {k: v.astype(np.float32) for k, v in saved.state.items()}
    missing, unexpected = model.set_state_dict(arrays)
    assert not missing, missing
    assert not unexpected, unexpected
    model.eval()
    return model


def _checked(
    state: dict[str, Array], config: DecoderConfig
) -> dict[str, Array]:
    """Return the state in the model's order, checked.

    Raises:
        ValueError: Tensors are missing, unknown, or of another shape.
    """
    shapes = dict(parameter_shapes(config))
    for name in correction_biases(config):
        shapes[name] = (config.moe_num_experts,)
    found = {name: array.shape for name, array in state.items()}
    wrong = sorted(
        name
        for name in shapes.keys() | found.keys()
        if shapes.get(name) != found.get(name)
    )
    if wrong:
        raise ValueError(
            "the weights do not fit config.json: "
            + "; ".join(
                f"{name} is {found.get(name, 'missing')} and should be "
                f"{shapes.get(name, 'absent')}"
                for name in wrong[:5]
            )
            + ("" if len(wrong) <= 5 else f"; and {len(wrong) - 5} others")
        )
    return {name: state[name] for name in shapes}
