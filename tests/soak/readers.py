# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every kind of input: a sound one, and what reads it."""

import functools
import gzip
import io
import json
import math
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file
from soak.runs import prepare_corpus, prepare_text
from soak.trials import ROOT

from paddle_adagc.lab.checksums import sealed
from paddle_adagc.lab.data.indexed import IndexedTokens
from paddle_adagc.lab.data.manifest import check_dataset
from paddle_adagc.lab.data.prepare.tokenizer import find_tokenizer
from paddle_adagc.lab.evaluate.flight import flight_text
from paddle_adagc.lab.models.hf_config import config_from_hf
from paddle_adagc.lab.models.hf_files import (
    read_json,
    read_weights,
    write_weights,
)
from paddle_adagc.lab.models.sizes import parameter_shapes
from paddle_adagc.lab.record.files import (
    QUANTITIES,
    RunRecord,
    RunWriter,
    update_run_json,
)
from paddle_adagc.lab.record.flight import FOLDER, Flight, event_path
from paddle_adagc.lab.reproduce.claims import load_claims
from paddle_adagc.lab.reproduce.grid_file import load_target
from paddle_adagc.lab.reproduce.results import (
    CellResult,
    ExperimentResult,
    TargetResult,
    read_results,
    write_results,
)
from paddle_adagc.lab.train.checkpoints import read_complete
from paddle_adagc.lab.train.parse import load_config, read_overrides
from paddle_adagc.state import load_state, save_state


class Reader(NamedTuple):
    """A kind of input, and what reads it.

    ``make`` writes a sound input below a folder and returns the file to change.
    ``has_checksum``: every change must be refused. ``names_file``: errors name
    the file (those of a config's values name the key).
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    has_checksum: bool = False
    names_file: bool = True


def writes(name, content):
    """A sound input of one file with this content."""
    data = content.encode() if isinstance(content, str) else content

    def make(folder):
        path = folder / name
        path.write_bytes(data)
        return path

    return make


def copies(name):
    """A sound input that is one of the configs."""
    return lambda folder: Path(shutil.copy(ROOT / "configs" / name, folder))


def folder_of(read):
    """Read the folder of a file."""
    return lambda path: read(path.parent)


_CONFIG = """\
model: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}
clip: {name: adagc, lambda_rel: 1.04}
train: {output_dir: out, max_steps: 12, batch_size: 4}
data: {kind: stdlib, seq_length: 16}
faults: [{kind: gradient_nan, steps: [3]}]
"""
_HF_CONFIG = """{"model_type": "llama", "vocab_size": 64, "hidden_size": 16,
"intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
"num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
"max_position_embeddings": 64, "initializer_range": 0.02,
"tie_word_embeddings": false}"""
_TOKENIZER = """{"version": "1.0", "truncation": null, "padding": null,
"added_tokens": [], "normalizer": null, "post_processor": null,
"pre_tokenizer": {"type": "Whitespace"}, "decoder": null, "model":
{"type": "WordLevel", "vocab": {"a": 0, "b": 1, "</s>": 2}, "unk_token": "a"}}
"""
_RUN = '{"status": "running", "seed": 3}'
_COMPLETE = """{"step": 8, "wall_seconds": 0.5, "monitor": {"spikes": []},
"has_diverged": false, "clip_step": 8, "run": {"seed": 3}, "record": {},
"files": {"config.json": {"bytes": 3, "sha256": "%s"}}}""" % ("a" * 64)
_DOCUMENTS = "".join(f'{{"text": "document {i}"}}\n' for i in range(9))
_OVERRIDES = "train.max_steps=100\nclip.lambda_rel=1.1\nmodel={a: [1, 2]}\n"


def _read_overrides(path):
    return read_overrides(path.read_text("utf-8", "replace").splitlines())


def _make_state(folder):
    gamma = {f"layers.{i}.weight": np.float32(0.1 + i) for i in range(4)}
    config = {"lambda_rel": 1.04, "beta": 0.98}
    return save_state({"step": 7, "gamma": gamma, "config": config}, folder)


def _make_old_state(folder):
    metadata = {
        "format": "paddle_adagc.state.3",
        "keys": '["a", "b"]',
        "scalars": "[]",
        "step": "7",
        "config": "{}",
    }
    path = folder / "adagc_state.safetensors"
    save_file({"gamma": np.array([0.5, 1.5], np.float32)}, path, metadata)
    return path


def _make_weights(folder, name="model.safetensors.index.json"):
    weights = {f"layers.{i}": np.ones([2, 3], np.float32) for i in range(3)}
    write_weights(folder, weights.items(), max_shard_bytes=30)
    return folder / name


def _dataset(name, has_manifest=True):
    """A sound dataset, of which one file is changed."""

    def make(folder):
        prefix = prepare_text(folder)
        if not has_manifest:
            Path(f"{prefix}.manifest.json").unlink()
        return folder / f"corpus.{name}"

    return make


def _read_dataset(path):
    prefix = str(path.parent / "corpus")
    check_dataset(prefix, verify=True)
    return IndexedTokens(prefix).all().tokens.sum()


def _read_hf_config(path):
    return dict(parameter_shapes(config_from_hf(read_json(path))))


def _make_record(folder):
    writer = RunWriter(folder, ["a", "b"])
    for step in range(5):
        block = np.full((len(QUANTITIES), 2), step, np.float32)
        row = {"step": step, "loss": 5.0 - step, "nonfinite": 0}
        writer.append(row, block)
    writer.close()
    return folder / "metrics.jsonl"


def _make_ended_record(folder):
    path = _make_record(folder)
    record = RunWriter(folder, ["a", "b"], 5).sync()
    update_run_json(folder, status="finished", record=record)
    return path


def _make_run_json(folder):
    _make_record(folder)
    return writes("run.json", _RUN)(folder)


def _make_complete(folder):
    checkpoint = folder / "checkpoint-8"
    checkpoint.mkdir()
    facts = json.dumps(sealed(json.loads(_COMPLETE)))
    return writes("complete.json", facts)(checkpoint)


def _make_flight(folder):
    steps = 5
    block = np.linspace(0.5, 1, 3 * steps, dtype=np.float32).reshape(steps, 3)
    flight = Flight(
        reason=np.array("alarm"),
        tensor_names=np.array(["a", "b", "c"]),
        step=np.arange(steps),
        samples=np.arange(2 * steps).reshape(steps, 2),
        learning_rate=np.full(steps, 1e-3),
        loss=np.linspace(3, 2, steps),
        rng=np.array(["1 2"] * steps),
        **dict.fromkeys(("norm", "h", "gamma"), block),
    )
    (folder / FOLDER).mkdir()
    path = event_path(folder, steps, "alarm", 0)
    flight.save(path)
    return path


def _read_text(path):
    prepare_corpus(path, path.with_name("out"))


def _make_tar(folder):
    path = folder / "shard.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("a.txt", "a.png", "b.txt", "b.png"):
            info = tarfile.TarInfo(name)
            info.size = 20
            archive.addfile(info, io.BytesIO(b"x" * 20))
    return path


def _read_tar(path):
    # It needs webdataset, of an extra of its own.
    from paddle_adagc.lab.data.image_text.shards import (
        find_shards,
        read_samples,
    )

    return [len([*read_samples(s.path)]) for s in find_shards(str(path))]


def _make_results(folder):
    cell = CellResult(
        method="AdaGC", seed=1, measures={"steps": 5.0, "gap": math.inf}
    )
    experiment = ExperimentResult(name="a", title="A", cells=[cell])
    result = TargetResult(target="t", title="T", experiments=[experiment])
    return write_results(folder / "results.jsonl", result)


_READ_RECORD = folder_of(functools.partial(RunRecord.load, verify=True))

READERS = {
    "config": Reader(
        writes("config.yaml", _CONFIG), load_config, names_file=False
    ),
    "overrides": Reader(
        writes("overrides.txt", _OVERRIDES), _read_overrides, names_file=False
    ),
    "claims": Reader(copies("claims.yaml"), load_claims),
    "experiments": Reader(
        copies("experiments/ablation-init.yaml"), load_target
    ),
    "clip state": Reader(_make_state, folder_of(load_state), has_checksum=True),
    "clip state without checksum": Reader(
        _make_old_state, folder_of(load_state)
    ),
    "weights' index": Reader(_make_weights, folder_of(read_weights)),
    "weights": Reader(
        functools.partial(
            _make_weights, name="model-00001-of-00003.safetensors"
        ),
        folder_of(read_weights),
        names_file=False,
    ),
    ".bin": Reader(_dataset("bin"), _read_dataset, has_checksum=True),
    ".idx": Reader(_dataset("idx"), _read_dataset, has_checksum=True),
    "manifest": Reader(
        _dataset("manifest.json"), _read_dataset, has_checksum=True
    ),
    ".idx without manifest": Reader(
        _dataset("idx", has_manifest=False), _read_dataset
    ),
    "Hugging Face config": Reader(
        writes("config.json", _HF_CONFIG),
        _read_hf_config,
        names_file=False,
    ),
    "tokenizer": Reader(
        writes("tokenizer.json", _TOKENIZER),
        lambda path: find_tokenizer(str(path), "</s>"),
    ),
    "record": Reader(_make_record, _READ_RECORD),
    "ended record": Reader(_make_ended_record, _READ_RECORD, has_checksum=True),
    "run.json": Reader(_make_run_json, _READ_RECORD),
    "complete.json": Reader(
        _make_complete, folder_of(read_complete), has_checksum=True
    ),
    "flight recorder": Reader(
        _make_flight, lambda path: flight_text(path.parents[1])
    ),
    "jsonl": Reader(writes("text.jsonl", _DOCUMENTS), _read_text),
    "gzip": Reader(
        writes("text.jsonl.gz", gzip.compress(_DOCUMENTS.encode(), mtime=0)),
        _read_text,
    ),
    "tar": Reader(_make_tar, _read_tar),
    "results": Reader(_make_results, read_results, has_checksum=True),
}
"""Everything that is read from outside, by its name in the report."""
