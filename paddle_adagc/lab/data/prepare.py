# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a config to a dataset: lines, tokens, files.

The tokens of each source are an Arrow file below ``<output>.parts``: a later
call finds what an earlier one has finished.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import platform
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

import paddle_adagc
from paddle_adagc.files import TEMPORARY, temporary_path
from paddle_adagc.lab.checksums import sampled_sha256, sealed, sha256
from paddle_adagc.lab.data.config import PrepareConfig
from paddle_adagc.lab.data.encode import Encoder, read_lines, token_schema
from paddle_adagc.lab.data.indexed import (
    check_dataset,
    read_manifest,
    token_dtype,
    write_index,
)
from paddle_adagc.lab.data.sources import Source, find_files, find_shards
from paddle_adagc.lab.data.tokenizers import Tokenizer, find_tokenizer

_BATCH = 200
"""Lines that are encoded at a time; bounds a worker's memory."""

_MAX_MESSAGES = 10
"""Messages about bad documents that the manifest keeps."""


def prepare(
    config: PrepareConfig,
    command: Sequence[str] = (),
    *,
    verify: bool = False,
) -> tuple[dict[str, Any], bool]:
    """Tokenise a corpus into a memory-mapped dataset with a manifest.

    The dataset appears under its name once it is complete, and the manifest
    ``<output>.manifest.json`` last. It depends on the text and the settings
    alone, byte by byte: not on the number of workers and not on interruptions.
    Of a dataset that is there already its index, size and pieces are compared
    with its checksums; with ``verify`` all of it. Gives the manifest, and
    whether the dataset was there.
    """
    tokenizer = find_tokenizer(config.tokenizer, config.eos_token)
    folder = Path(config.output + ".parts")
    manifest_path = Path(config.output + ".manifest.json")
    own = [folder, manifest_path, *_dataset_files(config.output)]
    sources: Sequence[Source] = (
        find_files(config.inputs, config.text_format, own)
        if config.hub is None
        else find_shards(config.hub, config.text_field)
    )
    settings = {
        "tokenizer": tokenizer.identity(),
        "text_field": config.text_field,
        "validation_fraction": config.validation_fraction,
        "on_error": config.on_error,
    }
    if manifest_path.exists():
        manifest = read_manifest(manifest_path)
        _check_finished(manifest_path, manifest, settings, sources)
        for prefix in _prefixes(config.output).values():
            check_dataset(prefix, verify=verify)
        shutil.rmtree(folder, ignore_errors=True)
        return manifest, True
    with _work_folder(folder, config.output):
        encoder = Encoder(
            tokenizer,
            config.text_field,
            config.validation_fraction,
            config.on_error,
        )
        facts = [settings, tokenizer.library_version()]
        calls = [(encoder, facts, source, folder) for source in sources]
        parts = _run(_encode_source, calls, config.num_workers)
        manifest = settings | _count_documents(parts)
        manifest["inputs"] = [source.record() for source in sources]
        manifest |= _write_splits(config, parts, tokenizer, folder)
        manifest["versions"] = _versions(tokenizer)
        manifest["command"] = list(command)
        manifest = sealed(manifest)
        with temporary_path(manifest_path, folder) as temporary:
            temporary.write_text(json.dumps(manifest, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
    return manifest, False


def _prefixes(output: str) -> dict[str, str]:
    return {"train": output, "validation": f"{output}_validation"}


def _dataset_files(output: str) -> list[Path]:
    """Return the files that a dataset may consist of, without the manifest."""
    return [
        Path(prefix + ending)
        for prefix in _prefixes(output).values()
        for ending in (".bin", ".idx")
    ]


@contextlib.contextmanager
def _work_folder(folder: Path, output: str) -> Iterator[None]:
    """Make or reopen the folder of unfinished work, for this process alone."""
    if not folder.exists():
        present = [str(p) for p in _dataset_files(output) if p.exists()]
        if present:
            raise FileExistsError(
                f"{' and '.join(present)} exist without the manifest "
                f"{output}.manifest.json: remove them or give another output"
            )
        folder.mkdir(parents=True)
    with open(folder / "lock", "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FileExistsError(
                f"another process is at work in {folder}"
            ) from error
        for leftover in folder.glob(f"*{TEMPORARY}"):
            leftover.unlink(missing_ok=True)
        try:
            yield
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"{folder} is damaged ({error}): remove it and run again"
            ) from error


def _encode_source(
    encoder: Encoder, facts: Sequence[Any], source: Source, folder: Path
) -> str:
    """Encode a source, if that was not done; gives the Arrow file.

    It has a row of :func:`token_schema` for each line. The tokens depend on the
    source and these facts.
    """
    key = hashlib.sha256(repr([*facts, source]).encode()).hexdigest()
    path = folder / f"{key}.arrow"
    if not path.exists():
        schema = token_schema(encoder.tokenizer.vocab_size)
        lines = read_lines(source)
        with (
            temporary_path(path) as temporary,
            pa.ipc.new_file(str(temporary), schema) as file,
        ):
            while batch := [*itertools.islice(lines, _BATCH)]:
                file.write_table(encoder(batch, source))
    return str(path)


def _run(
    task: Callable[..., str], calls: Sequence[tuple], num_workers: int
) -> list[str]:
    """Call ``task`` with each of the tuples; results, and errors, in order.

    The workers end with this process, which alone takes Ctrl-C; one worker is
    this process.
    """
    count = min(num_workers, len(calls))
    show = functools.partial(tqdm, desc="tokenising", unit="file", disable=None)
    if count <= 1:
        return [task(*values) for values in show(calls)]
    pool = concurrent.futures.ProcessPoolExecutor(
        count,
        multiprocessing.get_context("forkserver"),
        _begin_worker,
        (num_workers // count,),
    )
    try:
        done = [pool.submit(task, *values) for values in calls]
        return [future.result() for future in show(done)]
    except concurrent.futures.BrokenExecutor as error:
        raise RuntimeError(
            "a worker died: out of memory? Run the same command again to go "
            "on, with fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker(num_threads: int) -> None:
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # of `tokenizers`
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _check_finished(
    path: Path,
    manifest: dict[str, Any],
    settings: dict[str, Any],
    sources: Sequence[Source],
) -> None:
    """Refuse a finished dataset with other settings or of other files."""
    differences = _differences(
        {name: manifest.get(name) for name in settings}, settings
    )
    records = manifest.get("inputs", [])
    if not differences and len(records) != len(sources):
        differences = [f"{len(records)} inputs, now {len(sources)}"]
    if not differences:
        differences = [
            f"input {number}, {source.name}, is not {record['name']} as it was"
            for number, (record, source) in enumerate(
                zip(records, sources, strict=True), start=1
            )
            if not source.is_same(record)
        ]
    if differences:
        raise FileExistsError(
            f"{path} describes a finished dataset with other settings: "
            f"{'; '.join(differences)}; remove it or give another output"
        )


def _differences(
    old: dict[str, Any], new: dict[str, Any], path: str = ""
) -> list[str]:
    """Describe the settings that differ."""
    found = []
    for name in {**old, **new}:
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            found += _differences(before, after, f"{path}{name}.")
        elif before != after:
            found.append(f"{path}{name} was {before!r}, is {after!r}")
    return found


def _versions(tokenizer: Tokenizer) -> dict[str, str]:
    versions = {
        "paddle_adagc": paddle_adagc.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    library = tokenizer.library_version()
    return {**versions, "tokenizer": library} if library else versions


def _tables(parts: Sequence[str]) -> Iterator[pa.Table]:
    """Read 10,000 lines at a time; there may be more parts than open files."""
    for part in parts:
        with pa.memory_map(part) as file:
            reader = pa.ipc.open_file(file)
            batches = map(reader.get_batch, range(reader.num_record_batches))
            while group := [*itertools.islice(batches, 10_000 // _BATCH)]:
                yield pa.Table.from_batches(group)


def _count_documents(parts: Sequence[str]) -> dict[str, Any]:
    """Count what the manifest says of all documents."""
    counts = dict.fromkeys(("num_text_bytes", "num_empty", "num_bad"), 0)
    bad: list[str] = []
    for table in _tables(parts):
        faults = [fault for fault in table["fault"].to_pylist() if fault]
        num_left_out = int((_sizes(table) == 0).sum())
        counts["num_text_bytes"] += int(table["num_bytes"].to_numpy().sum())
        counts["num_empty"] += num_left_out - len(faults)
        counts["num_bad"] += len(faults)
        bad += faults
    return {**counts, "bad": bad[:_MAX_MESSAGES]}


def _sizes(table: pa.Table) -> np.ndarray:
    """Return the rows' numbers of tokens, int32."""
    return pc.list_value_length(table["tokens"]).to_numpy()


def _is_in(table: pa.Table, split: str) -> np.ndarray:
    held_out = table["is_held_out"].to_numpy()
    return (_sizes(table) > 0) & (held_out == (split == "validation"))


def _split_sizes(parts: Sequence[str], split: str) -> Iterator[np.ndarray]:
    """Yield the documents' numbers of tokens, int32 ``[n]``."""
    for table in _tables(parts):
        yield _sizes(table)[_is_in(table, split)]


def _write_splits(
    config: PrepareConfig,
    parts: Sequence[str],
    tokenizer: Tokenizer,
    folder: Path,
) -> dict[str, Any]:
    """Write all splits, or none; gives what the manifest says of them."""
    prefixes = _prefixes(config.output)
    if not config.validation_fraction:
        del prefixes["validation"]
    numbers = {
        split: sum(map(len, _split_sizes(parts, split))) for split in prefixes
    }
    for split, number in numbers.items():
        if not number:
            raise ValueError(
                f"no documents for {split}: the source has "
                f"{sum(numbers.values())}, and validation_fraction is "
                f"{config.validation_fraction}. A hash of its text decides, "
                "so copies of a document stay together: with few distinct "
                "documents give another fraction"
            )
    dtype = token_dtype(tokenizer.vocab_size)
    found: dict[str, Any] = {}
    try:
        for split, prefix in prefixes.items():
            found[split] = _write_split(
                prefix, parts, split, dtype, numbers[split], folder
            )
    except BaseException:
        for path in _dataset_files(config.output):
            path.unlink(missing_ok=True)
        raise
    return found


def _write_split(
    prefix: str,
    parts: Sequence[str],
    split: str,
    dtype: np.dtype[Any],
    num_documents: int,
    folder: Path,
) -> dict[str, Any]:
    """Write one split as ``.bin`` and ``.idx``; gives its manifest's entry."""
    tokens_path, index_path = f"{prefix}.bin", f"{prefix}.idx"
    digest, num_bytes = hashlib.sha256(), 0
    with (
        temporary_path(tokens_path, folder) as temporary,
        temporary.open("wb") as file,
    ):
        for table in _tables(parts):
            chosen = table.filter(pa.array(_is_in(table, split)))
            tokens = chosen["tokens"].combine_chunks().flatten().to_numpy()
            content = tokens.astype(dtype, copy=False).tobytes()
            digest.update(content)
            num_bytes += file.write(content)
    sampled = sampled_sha256(tokens_path)
    with (
        temporary_path(index_path, folder) as temporary,
        temporary.open("wb") as file,
    ):
        write_index(
            file,
            lambda: _split_sizes(parts, split),
            num_documents=num_documents,
            dtype=dtype,
        )
    return {
        "prefix": str(Path(prefix)),
        "dtype": dtype.name,
        "num_documents": num_documents,
        "num_tokens": num_bytes // dtype.itemsize,
        "bin_sha256": digest.hexdigest(),
        "bin_sampled_sha256": sampled,
        "idx_sha256": sha256(index_path),
    }
