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
import itertools
import json
import multiprocessing
import os
import platform
import shutil
import signal
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import paddle_adagc
from adagc_lab.checksums import sampled_sha256, sealed, sha256
from adagc_lab.data.config import PrepareConfig
from adagc_lab.data.indexed import (
    check_dataset,
    read_manifest,
    token_dtype,
    write_index,
)
from adagc_lab.data.sources import (
    Source,
    find_files,
    find_shards,
    parse_text,
    read_lines,
)
from adagc_lab.data.tokenizers import Tokenizer, find_tokenizer
from paddle_adagc.files import sync, temporary_path

_SPLITS = ("train", "validation")
_COUNTS = ("num_text_bytes", "num_empty", "num_bad")

_BATCH = 200  # lines that are encoded at a time; bounds a worker's memory
_MAX_MESSAGES = 10  # messages about bad documents that the manifest keeps


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
    sources: Sequence[Source] = (
        find_files(config.inputs, config.text_format)
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
        parts = []
        for source in sources:  # a part's tokens depend on these facts
            facts = repr([settings, version, source]).encode()
            parts.append(folder / f"{hashlib.sha256(facts).hexdigest()}.npz")
        calls = [
            (source, part, tokenizer, config)
            for source, part in zip(sources, parts, strict=True)
        ]
        _run(_write_part, calls, config.num_workers)
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
        yield


def _tokens_path(part: Path, split: str) -> Path:
    """File with a part's tokens of one split, each document with its end."""
    return part.with_suffix(f".{split}")


def _read_part(part: Path, num_bytes: int) -> dict[str, np.ndarray]:
    """Read a part: sizes int32 ``[num_documents]`` by split, counts, faults.

    A token has ``num_bytes``.
    """
    try:
        with np.load(part) as file:
            found = dict(file)
        for split in _SPLITS:
            size = _tokens_path(part, split).stat().st_size
            if size != found[split].sum(dtype=np.int64) * num_bytes:
                raise ValueError(f"{split} has {size:,} bytes")
    except (EOFError, MemoryError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{part.parent} is damaged ({part.stem}): remove it and run again"
        ) from error
    return found


def _write_part(
    source: Source, part: Path, tokenizer: Tokenizer, config: PrepareConfig
) -> None:
    """Encode a source; the file ``part`` appears once all is written."""
    if part.exists():  # an earlier call's
        return
    sizes: dict[str, list[int]] = {split: [] for split in _SPLITS}
    num_bytes = num_empty = 0
    faults: list[str] = []
    threshold = int(config.validation_fraction * 2**64)
    end = np.array([tokenizer.eos_id], token_dtype(tokenizer.vocab_size))
    with contextlib.ExitStack() as stack:
        files = {
            split: stack.enter_context(_tokens_path(part, split).open("wb"))
            for split in _SPLITS
        }
        for text, tokens in _documents(source, tokenizer, config, faults):
            if not len(tokens):
                num_empty += 1
                continue
            head = hashlib.sha256(text).digest()[:8]
            split = _SPLITS[int.from_bytes(head, "big") < threshold]
            files[split].write(tokens.tobytes() + end.tobytes())
            sizes[split].append(len(tokens) + 1)
            num_bytes += len(text)
    for split in _SPLITS:
        sync(_tokens_path(part, split))
    with temporary_path(part) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            counts=np.array([num_bytes, num_empty, len(faults)]),
            faults=np.array(faults[:_MAX_MESSAGES], str),
            **{k: np.array(v, np.int32) for k, v in sizes.items()},
        )


def _documents(
    source: Source,
    tokenizer: Tokenizer,
    config: PrepareConfig,
    faults: list[str],
) -> Iterator[tuple[bytes, np.ndarray]]:
    """Yield the good documents, UTF-8 and tokens.

    Faults of the others are added; with ``on_error="stop"`` the first one is
    raised. They name file and line.
    """

    def refuse(place: str, fault: object) -> None:
        if config.on_error == "stop":
            raise ValueError(f"{place}: {fault}")
        faults.append(f"{place}: {fault}")

    lines, encode = read_lines(source), tokenizer.load()
    while batch := [*itertools.islice(lines, _BATCH)]:
        texts = {}
        for place, line in batch:
            try:
                texts[place] = parse_text(
                    line, source.text_format, config.text_field
                )
            except (ValueError, RecursionError) as error:
                refuse(place, error)
        encoded = encode([*texts.values()])
        for place, tokens in zip(texts, encoded, strict=True):
            text = texts[place]
            if (tokens == tokenizer.eos_id).any():
                start = f"the document {text[:60]!r}"
                refuse(place, f"{start} holds the token that ends a document")
            else:
                yield text.encode(), tokens


def _run(
    task: Callable[..., None], calls: Sequence[tuple], num_workers: int | None
) -> None:
    """Call ``task`` with each of the tuples; errors come in their order.

    The workers end with this process, which alone takes Ctrl-C; one worker is
    this process.
    """
    num_workers = num_workers or len(os.sched_getaffinity(0))
    count = min(num_workers, len(calls))
    show = functools.partial(tqdm, desc="tokenising", unit="file", disable=None)
    if count <= 1:
        for values in show(calls):
            task(*values)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        count,
        multiprocessing.get_context("forkserver"),
        _begin_worker,
        (num_workers // count,),
    )
    try:
        for future in show([pool.submit(task, *values) for values in calls]):
            future.result()
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
    pairs = {name: (manifest.get(name), wanted[name]) for name in wanted}
    were, are = pairs.pop("inputs")
    for number, pair in enumerate(itertools.zip_longest(were or [], are), 1):
        pairs[f"input {number}"] = pair
    differences = [
        f"{name} was {was!r}, is {now!r}"
        for name, (was, now) in pairs.items()
        if was != now
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
    parts = [_read_part(path, dtype.itemsize) for path in paths]
    counts = np.sum([part["counts"] for part in parts], 0).tolist()
    faults = [fault for part in parts for fault in part["faults"]]
    prefixes = _prefixes(config.output)
    if not config.validation_fraction:
        del prefixes["validation"]
    sizes = {
        split: np.concatenate([part[split] for part in parts])
        for split in prefixes
    }
    if not any(map(len, sizes.values())):
        _, num_empty, num_bad = counts
        first = f"; the first bad one: {faults[0]}" if faults else ""
        raise ValueError(
            f"no documents for {config.output}: {num_bad:,} are bad, "
            f"{num_empty:,} have no tokens{first}"
        )
    for split in prefixes:
        if not len(sizes[split]):
            raise ValueError(
                f"no documents for {split}: the source has "
                f"{sum(map(len, sizes.values()))}, and validation_fraction is "
                f"{config.validation_fraction}. A hash of its text decides, "
                "so copies of a document stay together: with few distinct "
                "documents give another fraction"
            )
    found = dict(zip(_COUNTS, counts, strict=True))
    found["bad"] = [str(fault) for fault in faults[:_MAX_MESSAGES]]
    try:
        for split, prefix in prefixes.items():
            sources = [_tokens_path(path, split) for path in paths]
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
