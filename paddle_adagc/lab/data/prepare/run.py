# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a config to a dataset, in as many attempts as it takes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.files import TEMPORARY, atomic_write_json, temporary_path
from paddle_adagc.lab.checksums import sealed
from paddle_adagc.lab.data.index_format import token_dtype
from paddle_adagc.lab.data.manifest import check_dataset, read_manifest
from paddle_adagc.lab.data.prepare.chunks import Chunk, Source, read_chunks
from paddle_adagc.lab.data.prepare.config import PrepareConfig
from paddle_adagc.lab.data.prepare.encode import Job
from paddle_adagc.lab.data.prepare.files import find_files
from paddle_adagc.lab.data.prepare.hub import find_shards
from paddle_adagc.lab.data.prepare.merge import (
    Parts,
    dataset_files,
    split_prefix,
)
from paddle_adagc.lab.data.prepare.parts import (
    MAX_MESSAGES,
    SPLITS,
    check_part,
    count_parts,
    part_path,
    read_part,
)
from paddle_adagc.lab.data.prepare.pool import WorkerPool
from paddle_adagc.lab.data.prepare.progress import Progress
from paddle_adagc.lab.data.prepare.tokenizer import Tokenizer, find_tokenizer

_JOURNAL = "settings.json"


def prepare(
    config: PrepareConfig,
    command: Sequence[str] = (),
    *,
    verify: bool = False,
) -> tuple[dict[str, Any], bool]:
    """Tokenise a corpus into a memory-mapped dataset with a manifest.

    Every chunk of the text becomes a part in ``<output>.parts``, which a later
    call with the same settings, or with ``on_error="skip"`` after ``"stop"``,
    does not make again; the dataset appears under its name once it is complete,
    and the manifest ``<output>.manifest.json`` last. The dataset depends on the
    text and the settings alone, byte by byte: not on the number of workers and
    not on interruptions.

    Args:
        config: Source, tokenizer, destination.
        command: Command line, for the manifest.
        verify: Compare all of a dataset that is there with its checksums;
            otherwise its index, size and pieces of it.

    Returns:
        The manifest, and whether the dataset was there already.

    Raises:
        FileNotFoundError: A source or the tokenizer does not exist.
        FileExistsError: The dataset, or a part of it, is there with other
            settings, or another process is at work on it.
        ValueError: A document or a file is bad; the message has file and line.
        RuntimeError: A worker died.
        OSError: The disk is full, or the hub cannot be reached.
    """
    tokenizer = find_tokenizer(config.tokenizer, config.eos_token)
    folder = Path(config.output + ".parts")
    manifest_path = Path(config.output + ".manifest.json")
    own = [folder, manifest_path, *dataset_files(config.output)]
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
        for split in range(len(SPLITS)):
            prefix = split_prefix(config.output, split)
            check_dataset(str(prefix), verify=verify)
        shutil.rmtree(folder, ignore_errors=True)
        return manifest, True
    work_settings = {
        **settings,
        "text_format": config.text_format,
        "chunk_bytes": config.chunk_bytes,
        "tokenizer_version": tokenizer.library_version(),
    }
    with _work_folder(folder, work_settings, config.output):
        num_parts = _make_parts(config, tokenizer, sources, folder)
        parts = Parts(folder, num_parts, tokenizer.vocab_size)
        manifest = _write_dataset(config, parts, settings)
        manifest["versions"] = _versions(tokenizer)
        manifest["command"] = list(command)
        manifest = sealed(manifest)
        with temporary_path(manifest_path, folder) as temporary:
            temporary.write_text(json.dumps(manifest, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
    return manifest, False


@contextlib.contextmanager
def _work_folder(
    folder: Path, settings: dict[str, Any], output: str
) -> Iterator[None]:
    """Make or reopen the folder of the parts, for this process alone."""
    if not folder.exists():
        present = [str(p) for p in dataset_files(output) if p.exists()]
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
        journal = folder / _JOURNAL
        if journal.exists() and any(folder.glob("*.part")):
            earlier = _read_journal(journal)
            if earlier.get("on_error") == "stop":
                # Its parts hold all of their documents: nothing to skip there.
                earlier["on_error"] = settings["on_error"]
            difference = _difference(earlier, settings)
            if difference:
                raise FileExistsError(
                    f"{folder} holds unfinished work with other settings: "
                    f"{difference}; repeat those, remove the folder, or give "
                    "another output"
                )
        atomic_write_json(journal, settings)
        for leftover in folder.glob(f"*{TEMPORARY}"):
            leftover.unlink(missing_ok=True)
        yield


def _read_journal(path: Path) -> dict[str, Any]:
    try:
        earlier = json.loads(path.read_bytes())
        if not isinstance(earlier, dict):
            raise ValueError(f"a {type(earlier).__name__}, not an object")
    except (RecursionError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): remove {path.parent} and run again"
        ) from error
    return earlier


def _make_parts(
    config: PrepareConfig,
    tokenizer: Tokenizer,
    sources: Sequence[Source],
    folder: Path,
) -> list[int]:
    """Make all parts that are not there; gives each source's number."""
    num_parts = [0] * len(sources)
    job = Job(
        folder=folder,
        tokenizer=tokenizer,
        text_field=config.text_field,
        validation_fraction=config.validation_fraction,
        on_error=config.on_error,
    )
    item_size = np.dtype(token_dtype(tokenizer.vocab_size)).itemsize
    finished = _finished_sources(sources, folder, item_size)
    with Progress(sources) as progress:

        def chunks() -> Iterator[Chunk]:
            for number, source in enumerate(sources):
                if number in finished:
                    num_parts[number] = finished[number]
                    progress.skip(source)
                    continue
                for chunk in read_chunks(source, number, config.chunk_bytes):
                    yield chunk
                    num_parts[number] = chunk.index + 1
                progress.end_source()

        with WorkerPool(config.num_workers, job) as pool:
            for result in pool.run(chunks()):
                progress.add(result)
    return num_parts


def _finished_sources(
    sources: Sequence[Source], folder: Path, item_size: int
) -> dict[int, int]:
    """Count the parts of each source that has all of them."""
    finished = {}
    for number, count in count_parts(folder).items():
        if number >= len(sources) or not count:
            continue
        last = read_part(part_path(folder, number, count - 1), item_size)
        record = last and last.header.record
        if record and sources[number].is_unchanged(record):
            finished[number] = count
    return finished


def _write_dataset(
    config: PrepareConfig, parts: Parts, settings: dict[str, Any]
) -> dict[str, Any]:
    """Write all splits, or none; gives the manifest."""
    splits = SPLITS if config.validation_fraction else SPLITS[:1]
    manifest: dict[str, Any] = {
        **settings,
        "num_text_bytes": 0,
        "num_empty": 0,
        "num_bad": 0,
        "bad": [],
        "inputs": [],
    }
    num_documents = [0] * len(SPLITS)
    for part in parts:
        check_part(part)
        header = part.header
        for name in ("num_text_bytes", "num_empty", "num_bad"):
            manifest[name] += getattr(header, name)
        manifest["bad"] = (manifest["bad"] + header.bad)[:MAX_MESSAGES]
        num_documents = list(
            map(sum, zip(num_documents, header.num_documents, strict=True))
        )
        if header.record:
            manifest["inputs"].append(header.record)
    for name, count in zip(splits, num_documents, strict=False):
        if not count:
            raise ValueError(
                f"no documents for {name}: the source has "
                f"{sum(num_documents)}, and validation_fraction is "
                f"{config.validation_fraction}. A hash of its text decides, so "
                "copies of a document stay together: with few distinct "
                "documents give another fraction"
            )
    try:
        for number, name in enumerate(splits):
            prefix = split_prefix(config.output, number)
            manifest[name] = parts.write(prefix, number)
    except BaseException:
        for path in dataset_files(config.output):
            path.unlink(missing_ok=True)
        raise
    return manifest


def _check_finished(
    path: Path,
    manifest: dict[str, Any],
    settings: dict[str, Any],
    sources: Sequence[Source],
) -> None:
    """Refuse a finished dataset with other settings or of other files."""
    difference = _difference(
        {name: manifest.get(name) for name in settings}, settings
    )
    records = manifest.get("inputs", [])
    if not difference and len(records) != len(sources):
        difference = f"{len(records)} inputs, now {len(sources)}"
    if not difference:
        difference = "; ".join(
            f"input {number}, {source.name}, is not {record['name']} as it was"
            for number, (record, source) in enumerate(
                zip(records, sources, strict=True), start=1
            )
            if not source.is_unchanged(record)
        )
    if difference:
        raise FileExistsError(
            f"{path} describes a finished dataset with other settings: "
            f"{difference}; remove it or give another output"
        )


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Describe the settings that differ; ``""`` if none do."""
    parts = []
    for name in {**old, **new}:
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            inner = _difference(before, after)
            parts += [f"{name}.{text}" for text in inner.split("; ") if text]
        elif before != after:
            parts.append(f"{name} was {before!r}, is {after!r}")
    return "; ".join(parts)


def _versions(tokenizer: Tokenizer) -> dict[str, str]:
    from paddle_adagc import __version__

    versions = {
        "paddle_adagc": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    library = tokenizer.library_version()
    return {**versions, "tokenizer": library} if library else versions
