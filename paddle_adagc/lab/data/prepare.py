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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    config: PrepareConfig, command: Sequence[str] = ()
) -> tuple[dict[str, Any], bool]:
    """Tokenise a corpus into a memory-mapped dataset with a manifest.

    The dataset appears under its name once it is complete, and the manifest
    ``<output>.manifest.json`` last. It depends on the text and the settings
    alone, byte by byte: not on the number of workers and not on interruptions.
    A dataset that is there already is compared with its manifest. Gives the
    manifest, and whether the dataset was there.
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
        inputs = [source.record() for source in sources]
        _check_finished(manifest_path, manifest, settings | {"inputs": inputs})
        for prefix in _prefixes(config.output).values():
            check_dataset(prefix)
        shutil.rmtree(folder, ignore_errors=True)
        return manifest, True
    version = tokenizer.library_version()
    with _work_folder(folder, config.output):
        facts = [settings, version]
        calls = [
            (facts, source, folder, tokenizer, config) for source in sources
        ]
        parts = _run(_encode_source, calls, config.num_workers)
        inputs = [source.record() for source in sources]
        manifest = settings | {"inputs": inputs}
        dtype = token_dtype(tokenizer.vocab_size)
        manifest |= _write_dataset(config, parts, dtype)
        manifest["versions"] = {
            "paddle_adagc": paddle_adagc.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            **({"tokenizer": version} if version else {}),
        }
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
    path: Path, manifest: dict[str, Any], wanted: Mapping[str, Any]
) -> None:
    """Refuse a finished dataset with other settings or of other files."""
    was, now = (
        {f"input {n}": value for n, value in enumerate(facts["inputs"], 1)}
        | {name: facts.get(name) for name in wanted if name != "inputs"}
        for facts in (manifest, wanted)
    )
    differences = [
        f"{name} was {was.get(name)!r}, is {now.get(name)!r}"
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    ]
    if differences:
        raise FileExistsError(
            f"{path} describes a finished dataset with other settings: "
            f"{differences[0]}; remove it or give another output"
        )


def _write_dataset(
    config: PrepareConfig, paths: Sequence[Path], dtype: np.dtype[Any]
) -> dict[str, Any]:
    """Write all splits, or none; gives what the manifest says of the text."""
    parts = {path: read_part(path, dtype.itemsize) for path in paths}
    counts = sum(part["counts"] for part in parts.values()).tolist()
    faults = [fault for part in parts.values() for fault in part["faults"]]
    prefixes = _prefixes(config.output)
    if not config.validation_fraction:
        del prefixes["validation"]
    sizes = {
        split: np.concatenate([part[split] for part in parts.values()])
        for split in prefixes
    }
    for split in prefixes:
        if not len(sizes[split]):
            raise ValueError(
                f"no documents for {split}: the source has "
                f"{sum(map(len, sizes.values()))}, and validation_fraction is "
                f"{config.validation_fraction}. A hash of its text decides, "
                "so copies of a document stay together: with few distinct "
                "documents give another fraction"
            )
    found = dict(zip(COUNTS, counts, strict=True))
    found["bad"] = [str(fault) for fault in faults[:MAX_MESSAGES]]
    try:
        for split, prefix in prefixes.items():
            sources = [tokens_path(path, split) for path in paths]
            found[split] = _write_split(prefix, sources, sizes[split], dtype)
    except BaseException:
        for path in _dataset_files(config.output):
            path.unlink(missing_ok=True)
        raise
    return found


def _write_split(
    prefix: str,
    sources: Sequence[Path],
    sizes: np.ndarray,
    dtype: np.dtype[Any],
) -> dict[str, Any]:
    """Write one split as ``.bin`` and ``.idx``; gives its manifest's entry."""
    path, index = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
    folder = sources[0].parent
    with temporary_path(path, folder) as new, new.open("wb") as file:
        for source in sources:
            with source.open("rb") as tokens:
                shutil.copyfileobj(tokens, file)
    with temporary_path(index, folder) as new, new.open("wb") as file:
        write_index(file, sizes, dtype)
    return {
        "prefix": str(Path(prefix)),
        "dtype": dtype.name,
        "num_documents": len(sizes),
        "num_tokens": int(sizes.sum(dtype=np.int64)),
        "bin_sha256": sha256(path),
        "bin_sampled_sha256": sampled_sha256(path),
        "idx_sha256": sha256(index),
    }
