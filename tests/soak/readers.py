# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every kind of input: a sound one, and what reads it."""

import functools
import io
import json
import math
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from adagc_lab.checksums import sealed
from adagc_lab.data.indexed import IndexedTokens, check_dataset
from adagc_lab.data.tokenizers import find_tokenizer
from adagc_lab.models import hf_files
from adagc_lab.models.hf import config_from_hf
from adagc_lab.models.shapes import parameter_shapes
from adagc_lab.record import files
from adagc_lab.reproduce import results
from adagc_lab.reproduce.claims import load_claims
from adagc_lab.reproduce.grid import load_target
from adagc_lab.train.checkpoints import read_complete
from adagc_lab.train.parse import load_config
from pages import ROOT
from safetensors.numpy import save_file
from soak.runs import prepare_corpus, prepare_text

from paddle_adagc.record import read_record
from paddle_adagc.record.blocks import QUANTITIES as COLUMNS
from paddle_adagc.record.writer import RecordWriter
from paddle_adagc.state import load_state, save_state


class Reader(NamedTuple):
    """A kind of input, and what reads it."""

    file: str  # that is changed, below a folder
    sound: str | Callable[[Path], Any]
    """Its content; or what writes it, and all that belongs to it."""

    read: Callable[[Path], Any]  # reads that file
    has_checksum: bool = False  # every change must be refused
    names_file: bool = True
    """Errors name the file (those of a config's values name the key)."""

    def make(self, folder):
        """Write the sound input; return the file to change."""
        path = folder / self.file
        path.parent.mkdir(exist_ok=True)
        if callable(self.sound):
            self.sound(folder)
        else:
            path.write_text(self.sound, "utf-8")
        return path


def folder_of(read):
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
_COMPLETE = """{"step": 8, "wall_seconds": 0.5, "monitor": {"spikes": []},
"has_diverged": false, "clip_step": 8, "run": {"seed": 3}, "record": {},
"files": {"config.json": {"bytes": 3, "sha256": "%s"}}}""" % ("a" * 64)
STATE = "adagc_state.safetensors"
_DOCUMENTS = "".join(f'{{"text": "document {i}"}}\n' for i in range(9))


def _make_state(folder):
    gamma = {f"layers.{i}.weight": np.float32(0.1 + i) for i in range(4)}
    config = {"lambda_rel": 1.04, "beta": 0.98}
    save_state({"step": 7, "gamma": gamma, "config": config}, folder)


def _make_old_state(folder):
    metadata = {
        "format": "paddle_adagc.state.3",
        "keys": '["a", "b"]',
        "scalars": "[]",
        "step": "7",
        "config": "{}",
    }
    gamma = np.array([0.5, 1.5], np.float32)
    save_file({"gamma": gamma}, folder / STATE, metadata)


def _make_weights(folder):
    weights = {f"layers.{i}": np.ones([2, 3], np.float32) for i in range(3)}
    hf_files.write_weights(folder, weights, max_shard_bytes=30)


def _make_bare_dataset(folder):
    prepare_text(folder)
    (folder / "corpus.manifest.json").unlink()


def _read_dataset(path):
    prefix = str(path.parent / "corpus")
    check_dataset(prefix, verify=True)
    return IndexedTokens(prefix).all().sum()


def _read_hf_config(path):
    options = hf_files.read_json(path)
    return dict(parameter_shapes(config_from_hf(options, source=path)))


def _make_record(folder):
    writer = files.RunWriter(folder, ["a", "b"])
    for step in range(5):
        block = np.full((len(files.QUANTITIES), 2), step, np.float32)
        row = {"step": step, "loss": 5.0 - step, "nonfinite": 0}
        writer.append(row, block)
    writer.close()


def _make_ended_record(folder):
    _make_record(folder)
    record = files.RunWriter(folder, ["a", "b"], 5).sync()
    files.update_run_json(folder, status="finished", record=record)


def _make_run_json(folder):
    _make_record(folder)
    (folder / "run.json").write_text('{"status": "running", "seed": 3}')


def _make_tensors(folder):
    writer = RecordWriter(folder / "record")
    writer.index(["a", "b", "c"])
    block = np.linspace(0.5, 1, 15, dtype=np.float32).reshape(5, 3)
    writer.append_tensors([*range(5)], dict.fromkeys(COLUMNS, block))
    writer.append_steps({"step": step, "loss": 1.0} for step in range(5))
    writer.close()


def _read_tensors(path):
    return read_record(path.parent).tensors("norm")


def _read_text(path):
    prepare_corpus(path, path.with_name("out"))


def _make_tar(folder):
    with tarfile.open(folder / "shard.tar", "w") as archive:
        for name in ("a.txt", "a.png", "b.txt", "b.png"):
            info = tarfile.TarInfo(name)
            info.size = 20
            archive.addfile(info, io.BytesIO(b"x" * 20))


def _read_tar(path):
    # It needs webdataset, of an extra of its own.
    from adagc_lab.data.shards import find_shards, read_samples

    return [len([*read_samples(s.path)]) for s in find_shards(str(path))]


def _make_results(folder):
    run = results.RunResult(
        method="AdaGC", seed=1, measures={"steps": 5.0, "gap": math.inf}
    )
    experiment = results.ExperimentResult(name="a", title="A", all_runs=[run])
    result = results.TargetResult(
        target="t", title="T", experiments=[experiment]
    )
    results.write_results(folder / "results.jsonl", result)


_CLAIMS = (ROOT / "configs/claims.yaml").read_text("utf-8")
_EXPERIMENT = (ROOT / "configs/experiments/ablation-init.yaml").read_text()
_READ_RECORD = folder_of(functools.partial(files.RunRecord.load, verify=True))
_SEALED = json.dumps(sealed(json.loads(_COMPLETE)))
_STATE = folder_of(load_state)
_WEIGHTS = folder_of(hf_files.read_weights)
_COMPLETED = folder_of(read_complete)

READERS = {
    "config": Reader("config.yaml", _CONFIG, load_config, False, False),
    "claims": Reader("claims.yaml", _CLAIMS, load_claims),
    "experiments": Reader("experiment.yaml", _EXPERIMENT, load_target),
    "clip state": Reader(STATE, _make_state, _STATE, True),
    "clip state without checksum": Reader(STATE, _make_old_state, _STATE),
    "weights' index": Reader(
        "model.safetensors.index.json", _make_weights, _WEIGHTS
    ),
    "weights": Reader(
        "model-00001-of-00003.safetensors",
        _make_weights,
        _WEIGHTS,
        names_file=False,
    ),
    ".bin": Reader("corpus.bin", prepare_text, _read_dataset, True),
    ".idx": Reader("corpus.idx", prepare_text, _read_dataset, True),
    "manifest": Reader(
        "corpus.manifest.json", prepare_text, _read_dataset, True
    ),
    ".idx without manifest": Reader(
        "corpus.idx", _make_bare_dataset, _read_dataset
    ),
    "Hugging Face config": Reader("config.json", _HF_CONFIG, _read_hf_config),
    "tokenizer": Reader(
        "tokenizer.json",
        _TOKENIZER,
        lambda path: find_tokenizer(str(path), "</s>"),
    ),
    "record": Reader("metrics.jsonl", _make_record, _READ_RECORD),
    "ended record": Reader(
        "metrics.jsonl", _make_ended_record, _READ_RECORD, True
    ),
    "run.json": Reader("run.json", _make_run_json, _READ_RECORD),
    "complete.json": Reader(
        "checkpoint-8/complete.json", _SEALED, _COMPLETED, True
    ),
    "tensors.npy": Reader("record/tensors.npy", _make_tensors, _read_tensors),
    "record.json": Reader("record/record.json", _make_tensors, _read_tensors),
    "steps.jsonl": Reader("record/steps.jsonl", _make_tensors, _read_tensors),
    "jsonl": Reader("text.jsonl", _DOCUMENTS, _read_text),
    "tar": Reader("shard.tar", _make_tar, _read_tar),
    "results": Reader(
        "results.jsonl", _make_results, results.read_results, True
    ),
}
"""Everything that is read from outside, by its name in the report."""
