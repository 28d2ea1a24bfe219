# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The compiled loops: built once, switched off, and done without."""

import hashlib
import logging
import os
import re
from types import SimpleNamespace

import numpy as np
import paddle
import pytest

from paddle_adagc.clips.gradients import GradientList
from paddle_adagc.kernels import host
from paddle_adagc.kernels.host import HostTensors


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """No library stays loaded from one test to the next."""
    monkeypatch.setattr(host, "_FAILED", [])
    host.load_library.cache_clear()
    yield
    host.load_library.cache_clear()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache of compiled code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "paddle_adagc"


def test_library_is_built_once_for_each_source(monkeypatch, cache, tmp_path):
    monkeypatch.setenv("CXX", "env LANG=C g++")  # may be a command line
    assert host.load_library() is not None
    assert cache.stat().st_mode & 0o077 == 0
    (built,) = cache.iterdir()
    host.load_library.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(host.subprocess, "run", None)
        assert host.load_library() is not None
    assert [*cache.iterdir()] == [built]
    for name in ("numbers.h", "host.cpp"):
        source = host.SOURCE.with_name(name).read_text()
        (tmp_path / name).write_text(source + "\n")
    monkeypatch.setattr(host, "SOURCE", tmp_path / "host.cpp")
    host.load_library.cache_clear()
    host.load_library()
    assert len([*cache.iterdir()]) == 2


def no_home(patch, folder):
    def home():
        raise RuntimeError("Could not determine home directory.")

    patch.delenv("XDG_CACHE_HOME")
    patch.setattr(host.Path, "home", home)


@pytest.mark.parametrize(
    ("breakage", "message"),
    [
        (lambda p, folder: p.setenv("CXX", "false"), "exit status"),
        (lambda p, folder: p.setenv("CXX", "nowhere"), "nowhere"),
        (lambda p, folder: p.setenv("CXX", "g++ -DX='a"), "No closing quot"),
        (lambda p, folder: p.setenv("CXX", "g++ -mnone"), "option.*-mnone"),
        (lambda p, folder: p.setattr(host, "_PROCESS", "/none"), "/none"),
        (lambda p, folder: p.delattr(host.os, "memfd_create"), "memfd_create"),
    ],
)
def test_without_the_loops_the_operators_are_used(
    monkeypatch, caplog, cache, breakage, message
):
    cache.mkdir(mode=0o700)
    breakage(monkeypatch, cache)
    with caplog.at_level(logging.WARNING):
        assert host.load_library() is None
        assert host.load_library() is None
    assert len(caplog.records) == 1
    assert re.search(message, caplog.text)
    assert re.search(message, host.why_not())
    norms = GradientList([paddle.ones([3])]).squared_norms()
    assert norms.tolist() == [3.0]


@pytest.mark.parametrize(
    ("breakage", "message"),
    [
        (lambda p, folder: folder.chmod(0o777), "chmod 700"),
        (no_home, "XDG_CACHE_HOME"),
    ],
)
def test_without_a_cache_a_process_compiles_for_itself(
    monkeypatch, caplog, cache, breakage, message
):
    cache.mkdir(mode=0o700)
    breakage(monkeypatch, cache)
    with caplog.at_level(logging.INFO):
        assert host.keep_or_make("code", [], lambda: b"made") == b"made"
    assert message in caplog.text
    assert not [*cache.iterdir()]


@pytest.mark.parametrize("way", ["damage", "mode", "link"])
def test_file_that_others_could_have_written_is_made_again(way, cache):
    host.keep("code", [], lambda: b"sound")
    (file,) = cache.iterdir()
    if way == "damage":
        file.write_bytes(b"r" + file.read_bytes()[1:])
    else:
        file.write_bytes(b"foreign" + hashlib.sha256(b"foreign").digest())
    if way == "mode":
        file.chmod(0o666)
    elif way == "link":
        file.rename(cache.parent / "code")
        file.symlink_to(cache.parent / "code")
    assert host.keep("code", [], lambda: b"sound") == b"sound"
    assert file.read_bytes().startswith(b"sound")
    assert not file.is_symlink()
    assert file.stat().st_mode & 0o022 == 0


def test_folder_that_is_swapped_after_the_check_is_not_used(monkeypatch, cache):
    host.keep("code", [], lambda: b"sound")
    foreign, mine = cache.with_name("foreign"), cache.with_name("mine")
    foreign.mkdir()
    (name,) = os.listdir(cache)
    (foreign / name).write_bytes(b"bad" + hashlib.sha256(b"bad").digest())
    is_private = host._is_private

    def check(descriptor):
        passes = is_private(descriptor)
        if not mine.exists():
            cache.rename(mine)
            cache.symlink_to(foreign)
        return passes

    monkeypatch.setattr(host, "_is_private", check)
    assert host.keep("code", [], list) == b"sound"
    assert host.keep("new", [], lambda: b"new") == b"new"
    assert os.listdir(mine) == [name]


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


@pytest.mark.parametrize(("number", "device"), [(3, (2 << 8) + 3), (None, -1)])
def test_tensors_on_devices(number, device):
    place = SimpleNamespace(
        is_cpu_place=lambda: False,
        is_gpu_place=lambda: number is not None,
        gpu_device_id=lambda: number,
    )
    tensor = SimpleNamespace(
        place=place,
        dtype=paddle.float16,
        shape=[2, 3],
        is_contiguous=lambda: True,
        data_ptr=lambda: 64,
    )
    known = host.describe([tensor, paddle.ones([2])])
    assert known[0].tolist() == (64, 6, 3, device)
    assert HostTensors.can_take(known).tolist() == [False, True]
