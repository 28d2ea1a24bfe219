# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""One dataset, whatever the number of workers and interruptions."""

import fcntl
import functools
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from adagc_lab.data import prepare as prepare_run
from adagc_lab.data.config import DataConfig
from adagc_lab.data.datasets import build_datasets
from adagc_lab.data.indexed import check_dataset, manifest_tokenizer
from paddlenlp.data.indexed_dataset import make_builder

ROOT = Path(__file__).parents[3]
SPLITS = ("train", "validation")


def start(*arguments, **options):
    """Give the command in a session of its own."""
    command = [sys.executable, "-W", "ignore", "tools/prepare_data.py"]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def finish(process):
    output, errors = process.communicate(timeout=600)
    return process.returncode, output, errors


def test_files_are_those_of_paddlenlps_builder(
    tmp_path, documents, jsonl, run, read_files
):
    run(jsonl)
    theirs = str(tmp_path / "theirs")
    builder = make_builder(f"{theirs}.bin", "mmap", np.uint16)
    for text in documents:
        builder.add_item([*text.encode(), 0])
        builder.end_document()
    builder.finalize(f"{theirs}.idx")
    assert read_files() == read_files("theirs")


@pytest.fixture
def folder(tmp_path, to_jsonl, documents):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        path = folder / f"{number:02}.jsonl"
        path.write_bytes(to_jsonl(documents[number::40]))
    return folder


def test_workers_do_not_matter(folder, run, read_files, tokenizer_json):
    values = {"tokenizer": str(tokenizer_json), "validation_fraction": 0.2}
    run(folder, output="a", **values)
    assert len(read_files("a")) == 4
    run(folder, output="b", num_workers=3, **values)
    assert read_files("a") == read_files("b")


def test_the_split_depends_on_the_text_alone(
    tmp_path, documents, to_jsonl, run, read_texts
):
    path = tmp_path / "twice.jsonl"
    path.write_bytes(to_jsonl([*documents, *reversed(documents)]))
    manifest = run(path, validation_fraction=0.25)
    train, validation = read_texts(), read_texts("out_validation")
    assert not set(train) & set(validation)
    assert sorted(train + validation) == sorted(documents * 2)
    assert len(validation) == pytest.approx(200, abs=60)
    config = DataConfig(
        kind="mmap",
        prefix=manifest["train"]["prefix"],
        validation_prefix=manifest["validation"]["prefix"],
        validation_size=8,
    )
    for dataset, split in zip(build_datasets(config, 8), SPLITS, strict=True):
        assert len(dataset.tokens) == manifest[split]["num_tokens"]


def test_a_finished_dataset_is_left_alone(jsonl, run, tmp_path):
    first = run(jsonl)
    stamp = (tmp_path / "out.bin").stat().st_mtime_ns
    os.utime(jsonl)
    assert run(jsonl, num_workers=2) == first
    assert (tmp_path / "out.bin").stat().st_mtime_ns == stamp
    with pytest.raises(FileExistsError, match="on_error was 'stop', is 'skip'"):
        run(jsonl, on_error="skip")
    with pytest.raises(
        FileExistsError, match=r"input 2 was None, .*corpus\.jsonl"
    ):
        run(jsonl, jsonl)
    content = jsonl.read_bytes()
    jsonl.write_bytes(content.replace(b"spike", b"SPIKE"))
    with pytest.raises(FileExistsError, match=r"input 1 was .*corpus\.jsonl"):
        run(jsonl)
    (tmp_path / "out.manifest.json").unlink()
    with pytest.raises(FileExistsError, match="exist without the manifest"):
        run(jsonl)


@pytest.fixture
def stopped(tmp_path, jsonl, run):
    """The inputs of a call that a bad line of the second has stopped."""
    bad = tmp_path / "z.jsonl"
    bad.write_text('{"text": "last"}\n[]\n')
    with pytest.raises(ValueError, match="line 2"):
        run(jsonl, bad)
    (part,) = (tmp_path / "out.parts").glob("*.npz")
    return jsonl, bad, part


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_unfinished_work_is_not_mixed(
    stopped, run, tmp_path, read_files, on_error
):
    jsonl, bad, part = stopped
    with open(part.parent / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FileExistsError, match="another process is at work"):
            run(jsonl)
    stamp = part.stat().st_mtime_ns
    with pytest.raises(ValueError, match="line 2"):
        run(jsonl, bad)
    assert part.stat().st_mtime_ns == stamp  # not done again
    if on_error == "stop":
        jsonl.write_bytes(jsonl.read_bytes().replace(b"0 ", b"9 "))
        bad.write_text('{"text": "last"}\n')
    manifest = run(jsonl, bad, on_error=on_error)
    assert manifest["num_bad"] == (on_error == "skip")
    run(jsonl, bad, output="b", on_error=on_error)
    assert read_files() == read_files("b")
    assert not (tmp_path / "out.parts").exists()


@pytest.mark.parametrize("ending", ["npz", "train"])
def test_a_damaged_part_is_named(stopped, run, ending):
    jsonl, bad, part = stopped
    bad.write_text('{"text": "last"}\n')
    file = part.with_suffix(f".{ending}")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"is damaged.*remove it"):
        run(jsonl, bad)


@pytest.mark.slow
def test_kills_lose_and_double_nothing(
    tmp_path, folder, run, read_files, tokenizer_json
):
    values = {"tokenizer": str(tokenizer_json), "validation_fraction": 0.1}
    run(folder, output="whole", **values)
    arguments = [folder, "--output", tmp_path / "out", "--workers", 2]
    for key, value in values.items():
        arguments += [f"--{key.replace('_', '-')}", value]
    for kill, num_parts in ((os.killpg, 3), (os.kill, 16)):
        process = start(*arguments)
        while len([*tmp_path.glob("out.parts/*.npz")]) < num_parts:
            assert process.poll() is None
            time.sleep(0.002)
        kill(process.pid, signal.SIGKILL)
        # Workers, which hold the pipes too, end by themselves.
        assert finish(process)[0] == -signal.SIGKILL
        assert not (tmp_path / "out.manifest.json").exists()
    code, output, errors = finish(start(*arguments))
    assert code == 0, errors
    assert "documents" in output
    assert read_files() == read_files("whole")
    assert not (tmp_path / "out.parts").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", ["out.bin", "_validation.idx", "t.json", "out.parts"]
)
def test_a_kill_while_the_dataset_is_written(
    tmp_path, jsonl, run, read_files, moment
):
    def until_killed(function, *arguments, **options):
        if str(arguments[-1]).endswith(moment):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    run(jsonl, output="whole", validation_fraction=0.1)
    child = os.fork()
    if child == 0:
        for name in ("replace", "rmdir"):
            function = getattr(os, name)
            killer = functools.partial(until_killed, function)
            setattr(os, name, killer)
        try:
            run(jsonl, validation_fraction=0.1)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert (tmp_path / "out.parts").exists()
    run(jsonl, validation_fraction=0.1)
    assert read_files() == read_files("whole")
    assert {path.name for path in tmp_path.glob("*out*")} == {
        *("out.bin", "out.idx", "out.manifest.json"),
        *("out_validation.bin", "out_validation.idx"),
    }


@pytest.mark.slow
def test_the_keyboard_stops_it(tmp_path, to_jsonl, documents):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(to_jsonl(documents * 100))
    process = start(
        *(path, "--output", tmp_path / "out", "--tokenizer", "bytes"),
        # A shell's background job hands down that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (tmp_path / "out.parts/lock").exists():
        assert process.poll() is None
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    message = "stopped: the same command resumes\n"
    assert finish(process) == (130, "", message)


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_half_written(
    tmp_path, jsonl, run, read_files
):
    run(jsonl, output="whole")
    limit = 200_000
    assert (tmp_path / "whole.bin").stat().st_size > limit
    arguments = [jsonl, "--output", tmp_path / "out", "--tokenizer", "bytes"]

    def lower_the_limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    code, _, errors = finish(start(*arguments, preexec_fn=lower_the_limit))
    assert (code, "File too large" in errors) == (3, True)
    left = {path.name for path in tmp_path.iterdir() if "out" in path.name}
    assert left == {"out.parts"}
    assert finish(start(*arguments))[0] == 0
    assert read_files() == read_files("whole")


def test_a_dead_worker_is_noticed():
    # A function of this module would import Paddle into the workers, where
    # SIGTERM, with which the pool ends the others, can stand in Paddle's
    # handler for ever.
    with pytest.raises(RuntimeError, match="a worker died"):
        prepare_run._run(signal.raise_signal, [(signal.SIGKILL,)] * 2, 2)


def test_a_dataset_may_be_called_validation(run, tmp_path, jsonl):
    """Its own manifest is read, not that of another dataset."""
    for name in ("out", "out_validation"):
        run(jsonl, output=name)
    prefix = str(tmp_path / "out_validation")
    check_dataset(prefix)
    assert manifest_tokenizer(prefix)["kind"] == "bytes"
    path = tmp_path / "out_validation.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match="is damaged"):
        check_dataset(prefix)
