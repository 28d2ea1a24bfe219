# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The compiled loops: built once, switched off, and done without."""

import hashlib
import logging
import shutil
import subprocess
import sys

import numpy as np
import paddle
import pytest
from helpers import strided_gradient

from paddle_adagc import kernels
from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.kernels import host
from paddle_adagc.kernels.host import HostTensors
from paddle_adagc.kernels.operators import OperatorTensors


@pytest.fixture(autouse=True)
def forget():
    """No library stays loaded from one test to the next."""
    host.load_library.cache_clear()
    yield
    host.load_library.cache_clear()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache of compiled code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "paddle_adagc"


def test_library_is_built_once(monkeypatch, cache):
    monkeypatch.setenv("CXX", "env LANG=C g++")  # may be a command line
    assert host.load_library() is not None
    assert cache.stat().st_mode & 0o077 == 0
    (built,) = cache.iterdir()
    host.load_library.cache_clear()
    monkeypatch.setattr(host.subprocess, "run", None)
    assert host.load_library() is not None
    assert [*built.parent.iterdir()] == [built]


def test_other_source_is_another_library(tmp_path, monkeypatch, cache):
    host.load_library()
    source = tmp_path / "changed.cpp"
    shutil.copy(host.SOURCE.with_name("numbers.h"), tmp_path)
    source.write_text(host.SOURCE.read_text() + "\n")
    monkeypatch.setattr(host, "SOURCE", source)
    host.load_library.cache_clear()
    host.load_library()
    assert len([*cache.iterdir()]) == 2


@pytest.mark.parametrize(
    ("compiler", "message"), [("false", "exit status"), ("nowhere", "nowhere")]
)
def test_compiler_that_fails_leaves_paddle_s_operators(
    monkeypatch,
    caplog,
    compiler,
    message,
    cache,
):
    monkeypatch.setenv("CXX", compiler)
    with caplog.at_level(logging.WARNING):
        assert host.load_library() is None
    assert message in caplog.text
    assert not [*cache.iterdir()]
    norms = GradientList([paddle.ones([3])]).squared_norms()
    assert norms.tolist() == [3.0]


def flipped(content):
    at = content.index(b"\x7fELF") + 5000
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("damage", [flipped, lambda content: content[:-1]])
def test_damaged_library_is_built_again(damage, cache):
    host.load_library()
    (built,) = cache.iterdir()
    whole = built.read_bytes()
    host.load_library.cache_clear()
    built.write_bytes(damage(whole))  # the loaded one does not notice
    assert host.load_library() is not None
    assert built.read_bytes() == whole


def test_code_that_others_could_have_written_is_not_loaded(caplog, cache):
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert host.load_library() is None
    assert "chmod 700" in caplog.text


@pytest.mark.parametrize("way", ["mode", "link"])
def test_file_that_others_could_have_written_is_made_again(way, cache):
    host.keep("code", lambda: b"sound")
    file = cache / "code"
    file.write_bytes(b"foreign" + hashlib.sha256(b"foreign").digest())
    if way == "mode":
        file.chmod(0o666)
    else:
        file.rename(cache.parent / "code")
        file.symlink_to(cache.parent / "code")
    assert host.keep("code", lambda: b"sound") == b"sound"
    assert not file.is_symlink()
    assert file.stat().st_mode & 0o022 == 0


def test_folder_that_is_swapped_after_the_check_is_not_used(monkeypatch, cache):
    host.keep("code", lambda: b"sound")
    foreign, mine = cache.with_name("foreign"), cache.with_name("mine")
    foreign.mkdir()
    (foreign / "code").write_bytes(b"bad" + hashlib.sha256(b"bad").digest())
    is_private = host._is_private

    def check(descriptor):
        passes = is_private(descriptor)
        if not mine.exists():
            cache.rename(mine)
            cache.symlink_to(foreign)
        return passes

    monkeypatch.setattr(host, "_is_private", check)
    assert host.keep("code", list) == b"sound"
    assert host.keep("new", lambda: b"new") == b"new"
    assert not (mine / "new").exists()


@pytest.mark.parametrize("missing", ["/nowhere", "memfd_create"])
def test_without_loading_from_memory_the_operators_are_used(
    monkeypatch, caplog, cache, missing
):
    if missing == "/nowhere":
        monkeypatch.setattr(host, "_PROCESS", missing)
    else:
        monkeypatch.delattr(host.os, "memfd_create")
    with caplog.at_level(logging.WARNING):
        assert host.load_library() is None
        assert host.load_library() is None
    assert len(caplog.records) == 1
    assert missing in caplog.text
    assert "Paddle's operators" in caplog.text
    norms = GradientList([paddle.ones([3])]).squared_norms()
    assert norms.tolist() == [3.0]


def test_without_a_home_directory_the_operators_are_used(
    monkeypatch, caplog, cache
):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(host.Path, "home", no_home)
    with caplog.at_level(logging.WARNING):
        assert host.load_library() is None
    assert "XDG_CACHE_HOME" in caplog.text


def test_switch(monkeypatch, cache):
    monkeypatch.setenv("PADDLE_ADAGC_NATIVE", "0")
    assert host.load_library() is None
    assert not HostTensors.is_available()
    (part,) = kernels.split([paddle.ones([1])])
    assert isinstance(part, OperatorTensors)


def test_sums_are_the_same_bits_at_every_vector_width(monkeypatch):
    rng = np.random.default_rng(0)
    tensors = [
        paddle.to_tensor(rng.normal(size=n).astype("float32")).astype(dtype)
        for n in (1, 31, 33, 300, 2047, 2048, 2049, 100_003)
        for dtype in ("float32", "float64", "bfloat16", "float16")
    ]
    sums, flags = set(), host.FLAGS
    for narrow in ((), ("-DADAGC_NARROW",)):
        monkeypatch.setattr(host, "FLAGS", (*flags, *narrow))
        host.load_library.cache_clear()
        sums.add(GradientList(tensors).squared_norms().numpy().tobytes())
    assert len(sums) == 1


@pytest.mark.parametrize("value", [0.1, 1.7])
def test_norm_of_a_long_vector_is_as_exact_as_that_of_a_short_one(value):
    # Each equal value adds its rounding error in the same direction: a float32
    # sum over all of them, or over the blocks' sums, is off by 1e-5 or more.
    vector = paddle.full([2**23], value)
    exact = 2**23 * float(np.float32(value)) ** 2
    norm = GradientList([vector]).squared_norms().item()
    assert norm == pytest.approx(exact, rel=1e-6)


_SLOW_COMPILER = """#!/bin/sh
# Compiles while the other process compiles, too.
touch "FOLDER/started.$$"
for _ in $(seq 1000); do
    [ "$(ls "FOLDER"/started.* | wc -l)" -lt 2 ] || exec g++ "$@"
    sleep 0.01
done
exit 1
"""
_BUILD = """
import hashlib, sys
from paddle_adagc.kernels.host import build, load_code
code = build(sys.argv[1])
assert load_code(code).adagc_scale
print(hashlib.sha256(code).hexdigest())
"""


def test_processes_may_build_at_once(tmp_path, cache):
    compiler = tmp_path / "compiler"
    compiler.write_text(_SLOW_COMPILER.replace("FOLDER", str(tmp_path)))
    compiler.chmod(0o755)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _BUILD, str(compiler)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        built = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0]
    (path,) = cache.iterdir()
    kept = hashlib.sha256(path.read_bytes()[:-32]).hexdigest()
    assert kept in {text.strip() for text in built}


def test_tensor_in_a_device_s_memory_is_not_taken():
    known = host.describe([paddle.ones([2])] * 2)
    known["device"][1] = host.CUDA << 8
    assert HostTensors.can_take(known).tolist() == [True, False]


def test_results_that_would_lie_on_a_device_are_not_written(monkeypatch):
    assert HostTensors.is_available()
    monkeypatch.setattr(paddle.device, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(host, "load_library", None)  # nothing is compiled
    assert not HostTensors.is_available()


def test_descriptors_of_any_layout():
    memory = paddle.zeros([6, 2], "float16")
    _, strided = strided_gradient(1.0)
    read = [memory, None, memory[2:], memory.T, paddle.ones([2], "int64")]
    read += [strided, memory._slice(1, 3), paddle.ones([0, 3]), paddle.ones([])]
    known = host.describe(read)
    start = memory.data_ptr()
    addresses = known["address"].tolist()
    assert addresses[:4] == [start, 0, start + 8, start]
    assert addresses[6] == start + 4
    size = strided.size
    assert known["size"].tolist() == [12, 0, 8, 12, 2, size, 4, 0, 1]
    assert known["dtype"].tolist() == [3, -1, 3, -1, -1, -1, 3, 0, 0]
    assert known["device"].tolist() == [256, 0, *[256] * 7]


@pytest.mark.parametrize(
    ("device", "is_rocm", "memory"),
    [
        ("cpu", False, 1 << 8),
        ("gpu:0", False, 2 << 8),
        ("gpu:3", False, (2 << 8) + 3),
        ("gpu:3", True, 0),
        ("xpu:0", False, 0),
    ],
)
def test_memory_has_the_number_of_dlpack(monkeypatch, device, is_rocm, memory):
    monkeypatch.setattr(paddle.device, "get_device", lambda: device)
    monkeypatch.setattr(paddle, "is_compiled_with_rocm", lambda: is_rocm)
    assert host.current_memory() == memory


class OnDevice:
    """Stands for a tensor on the GPU of this number; None: another device."""

    dtype, shape, place = paddle.float16, [2, 3], property(lambda self: self)

    def __init__(self, number):
        self.number = number

    def is_cpu_place(self):
        return False

    def is_gpu_place(self):
        return self.number is not None

    def gpu_device_id(self):
        return self.number

    def is_contiguous(self):
        return True

    def data_ptr(self):
        return 64


def test_tensors_on_devices():
    known = host.describe([OnDevice(3), OnDevice(None)])
    assert known.tolist() == [(64, 6, 3, (2 << 8) + 3), (64, 6, 3, 0)]
