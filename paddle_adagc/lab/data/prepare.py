# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a config to a dataset: sources, parts, files.

Each source becomes a part below ``<output>.parts``: a later call finds what an
earlier one has finished.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import functools
import hashlib
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
from tqdm import tqdm

import paddle_adagc
from paddle_adagc.files import TEMPORARY, temporary_path
from paddle_adagc.lab.checksums import sampled_sha256, sealed, sha256
from paddle_adagc.lab.data.config import PrepareConfig
from paddle_adagc.lab.data.encode import (
    COUNTS,
    MAX_MESSAGES,
    damaged,
    read_part,
    tokens_path,
    write_part,
)
from paddle_adagc.lab.data.indexed import (
    check_dataset,
    read_manifest,
    token_dtype,
    write_index,
)
from paddle_adagc.lab.data.sources import Source, find_files, find_shards
from paddle_adagc.lab.data.tokenizers import Tokenizer, find_tokenizer


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
        else find_shards(config.hub, config.hub_name, config.text_field)
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
    version = tokenizer.library_version()
    with _work_folder(folder, config.output):
        facts = [settings, version]
        calls = [
            (facts, source, folder, tokenizer, config) for source in sources
        ]
        parts = _run(_encode_source, calls, config.num_workers)
        manifest = settings | _count_documents(parts)
        manifest["inputs"] = [source.record() for source in sources]
        dtype = token_dtype(tokenizer.vocab_size)
        manifest |= _write_splits(config, parts, dtype, folder)
        manifest["versions"] = {
            "paddle_adagc": paddle_adagc.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            **({"tokenizer": version} if version else {}),
        }
        manifest["command"] = list(command)
        with temporary_path(manifest_path, folder) as temporary:
            text = json.dumps(sealed(manifest), indent=2)
            temporary.write_text(text + "\n")
        shutil.rmtree(folder, ignore_errors=True)
    return sealed(manifest), False


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
        yield


def _encode_source(
    facts: Sequence[Any],
    source: Source,
    folder: Path,
    tokenizer: Tokenizer,
    config: PrepareConfig,
) -> Path:
    """Encode a source, if that was not done; its tokens depend on the facts."""
    key = hashlib.sha256(repr([*facts, source]).encode()).hexdigest()
    part = folder / f"{key}.npz"
    if not part.exists():
        write_part(source, part, tokenizer, config)
    return part


def _run(
    task: Callable[..., Path], calls: Sequence[tuple], num_workers: int | None
) -> list[Path]:
    """Call ``task`` with each of the tuples; results, and errors, in order.

    The workers end with this process, which alone takes Ctrl-C; one worker is
    this process.
    """
    num_workers = num_workers or len(os.sched_getaffinity(0))
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
    differences = [
        f"{name} was {manifest.get(name)!r}, is {value!r}"
        for name, value in settings.items()
        if manifest.get(name) != value
    ]
    records = manifest.get("inputs", [])
    if len(records) != len(sources):
        differences.append(f"{len(records)} inputs, now {len(sources)}")
    elif not differences:
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


def _count_documents(parts: Sequence[Path]) -> dict[str, Any]:
    """Count what the manifest says of all documents."""
    counts = np.zeros(len(COUNTS), np.int64)
    faults: list[str] = []
    for part in map(read_part, parts):
        counts += part["counts"]
        faults += part["faults"].tolist()
    found = dict(zip(COUNTS, counts.tolist(), strict=True))
    return {**found, "bad": faults[:MAX_MESSAGES]}


def _split_sizes(parts: Sequence[Path], split: str) -> Iterator[np.ndarray]:
    """Yield the documents' numbers of tokens, int32 ``[n]`` a part."""
    for part in parts:
        yield read_part(part)[split]


def _write_splits(
    config: PrepareConfig,
    parts: Sequence[Path],
    dtype: np.dtype[Any],
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
    parts: Sequence[Path],
    split: str,
    dtype: np.dtype[Any],
    num_documents: int,
    folder: Path,
) -> dict[str, Any]:
    """Write one split as ``.bin`` and ``.idx``; gives its manifest's entry."""
    tokens_file, index = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
    num_tokens = 0
    with (
        temporary_path(tokens_file, folder) as temporary,
        temporary.open("wb") as file,
    ):
        for part, sizes in zip(parts, _split_sizes(parts, split), strict=True):
            source, count = tokens_path(part, split), int(sizes.sum(dtype="i8"))
            if source.stat().st_size != count * dtype.itemsize:
                raise damaged(part)
            num_tokens += count
            with source.open("rb") as tokens:
                shutil.copyfileobj(tokens, file)
    with (
        temporary_path(index, folder) as temporary,
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
        "num_tokens": num_tokens,
        "bin_sha256": sha256(tokens_file),
        "bin_sampled_sha256": sampled_sha256(tokens_file),
        "idx_sha256": sha256(index),
    }
