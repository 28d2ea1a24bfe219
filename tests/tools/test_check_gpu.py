# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""tools/check_gpu.py without a GPU: on the emulated one, with its own clock."""

import json
from types import SimpleNamespace

import backends
import paddle
from helpers import run_python
from pages import ROOT, load_tool

from paddle_adagc.kernels.host import load_code

tool = load_tool("check_gpu")
gpu = tool.gpu


def emulated():
    """A framework whose events say that each step takes 2 ms."""
    event = SimpleNamespace(
        record=lambda: None,
        synchronize=lambda: None,
        elapsed_time=lambda end: 2.0,
        query=lambda: False,
    )
    facts = {
        "event": lambda self: event,
        "name": lambda self: "NVIDIA H200, emulated",
    }
    return type("Paddle", (gpu.Paddle,), facts)("cpu")


def float32_global_norm(bound):
    """Paddle's own clip, which has no bfloat16 on a CPU."""
    clip = paddle.nn.clip.ClipGradByGlobalNorm(bound)
    return lambda pairs: clip([(p, g.astype("float32")) for p, g in pairs])


def run(monkeypatch, capsys, tmp_path, cuda, *arguments):
    """Status and rows of the command, with the real search for the kernels."""
    used = emulated()
    backends.use_cuda(monkeypatch, cuda)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(paddle.nn, "ClipGradByGlobalNorm", float32_global_norm)
    monkeypatch.setattr(gpu.launch, "load_nvrtc", lambda major: cuda)
    for place, values in {
        gpu: {
            "pick_framework": lambda name: used,
            "DRIVER": cuda._name,
            "REPETITIONS": 2,
            "BUSY_BYTES": 8,
            "BUSY_COPIES": 2,
            "LISTS": ((3, 3e4, 0), (5, 1e4, 1)),
        },
        tool: {
            "REPEATS": 2,
            "ORDER_VALUES": 1 << 12,
            "LARGE_VALUES": gpu.launch.CHUNK + 77,
            "TOOL_PATH": "",
        },
    }.items():
        for key, value in values.items():
            monkeypatch.setattr(place, key, value)
    status = tool.main([*arguments])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return status, rows


def test_it_runs_to_its_end(monkeypatch, capsys, tmp_path):
    cuda = backends.emulated_cuda()
    status, rows = run(monkeypatch, capsys, tmp_path, cuda)
    assert not [row["error"] for row in rows if "error" in row]
    assert status == 0
    checks = ["step", "rule", "ClipGradByAdaGC", *["same bits"] * 4, "order"]
    assert [row["check"] for row in rows if "check" in row] == [
        *checks,
        "large",
        "compute-sanitizer",
    ]
    assert not any("skipped" in row for row in rows[:-1])
    assert {(row["driver"], row["target"]) for row in rows} == {
        (12090, "sm_90")
    }
    times = [row for row in rows if "time" in row]
    assert len(times) == 2 * len(gpu.LISTS) * len(gpu.SHARES)
    assert {row["ms"] for row in times} == {2.0}
    # Norms alone read half of what a copy reads and writes.
    assert times[0]["of_copy_bandwidth"] == 2.0
    assert all(row["clip_host_ms"] > 0 for row in times)
    bytes_read = times[0]["values"] * 4
    assert times[0]["ms_at_peak_bandwidth"] == bytes_read / 4.8e9  # an H200


def test_a_failed_check_does_not_end_the_others(tmp_path, monkeypatch, capsys):
    source = gpu.launch.SOURCE.read_text()
    wrong = source.replace("fminf(threshold / norm, 1.0f)", "1.0f")
    assert wrong != source
    cuda = load_code(backends.compile_emulated(wrong))
    status, rows = run(monkeypatch, capsys, tmp_path, cuda, "--quick")
    assert status == 1
    assert [row["error"] for row in rows] == [
        "AssertionError: h differs",
        "AssertionError: h differs: 513 tensors, beta 0.99, h of Inf 0",
        "AssertionError: step 6: gradient 0 differs",
    ]


def test_without_a_gpu_it_says_what_is_missing():
    done = run_python(ROOT, "tools/check_gpu.py")
    assert done.returncode == 2
    assert "no GPU to check" in done.stderr


def test_the_page_has_the_tables_of_the_stored_rows(capsys):
    assert tool.main(["--tables", str(ROOT / "results/gpu.jsonl")]) == 0
    page = (ROOT / "docs/gpu.md").read_text("utf-8")
    tables = capsys.readouterr().out
    assert "passed" in tables
    assert tables in page
