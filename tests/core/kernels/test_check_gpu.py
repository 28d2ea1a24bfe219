# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""tools/check_gpu.py without a GPU: on the emulated one, with its own clock."""

import contextlib
import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path

import backends
import paddle
import pytest

TOOL = Path(__file__).parents[3] / "tools/check_gpu.py"


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(TOOL.parent))  # as for a script
    spec = importlib.util.spec_from_file_location("check_gpu", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(TOOL.parent))
    return module


def module_of(tool, cuda):
    cuda.emulated_reset()
    found = tool.parts.driver.Driver(cuda)
    return found.load(b"emulated sm_90", found.context(0))


def on_cpu(tool, name, has_waited=False):
    """A framework whose events say that each step takes 2 ms."""
    if name == "Torch":
        pytest.importorskip("torch")
    kind = getattr(tool, name)
    event = types.SimpleNamespace(
        record=lambda: None,
        synchronize=lambda: None,
        elapsed_time=lambda end: 2.0,
        query=lambda: has_waited,
    )
    facts = {
        "event": lambda self: event,
        "name": lambda self: "NVIDIA H200, emulated",
        "other_stream": lambda self: contextlib.nullcontext(),
    }
    return type(name, (kind,), facts)("cpu")


class Graphs:
    """The parts of torch.cuda that the checks call; launches can be captured.

    Args:
        module: Of the emulated driver.
    """

    def __init__(self, module):
        self._launch = module.launch
        self._captured = None
        self.copy = module.copy

    def launch(self, *arguments):
        if self._captured is None:
            self._launch(*arguments)
        else:
            self._captured.append(arguments)

    @contextlib.contextmanager
    def graph(self, graph, stream):
        self._captured = graph.launches = []
        yield
        self._captured = None

    def __call__(self):  # CUDAGraph()
        graph = types.SimpleNamespace()
        graph.replay = lambda: [self._launch(*a) for a in graph.launches]
        return graph

    def replace(self, monkeypatch, torch):
        stream = types.SimpleNamespace(wait_stream=lambda other: None)
        for name, fake in {
            "CUDAGraph": self,
            "graph": self.graph,
            "Stream": lambda: stream,
            "current_stream": lambda: stream,
            "stream": lambda stream: contextlib.nullcontext(),
            "synchronize": lambda: None,
        }.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        return self


def shorten(monkeypatch, tool, cuda):
    monkeypatch.setattr(tool.parts, "DRIVER", cuda._name)
    monkeypatch.setattr(tool.times, "LISTS", ((3, 3e4, 0), (5, 1e4, 1)))
    monkeypatch.setattr(tool.parts, "REPETITIONS", 2)
    monkeypatch.setattr(tool.parts, "BUSY_BYTES", 8)
    # Paddle's own clip has no bfloat16 on a CPU.
    theirs = paddle.nn.ClipGradByGlobalNorm
    monkeypatch.setattr(
        paddle.nn,
        "ClipGradByGlobalNorm",
        lambda bound: (
            lambda pairs: theirs(bound)(
                [(p, g.astype("float32")) for p, g in pairs]
            )
        ),
    )
    monkeypatch.setattr(tool.parts, "BUSY_COPIES", 2)
    monkeypatch.setattr(tool, "REPEATS", 2)
    monkeypatch.setattr(tool, "ORDER_VALUES", 1 << 12)
    monkeypatch.setattr(tool, "LARGE_VALUES", tool.tables.CHUNK + 77)
    monkeypatch.setattr(tool, "CAPTURE_VALUES", 103)
    monkeypatch.setattr(tool, "TOOL_PATH", "")


@pytest.mark.parametrize("framework", ["Paddle", "Torch"])
def test_quick_checks_on_the_emulated_gpu(
    tool, monkeypatch, tmp_path, capsys, framework
):
    """With the real search for device, driver and kernels."""
    used = on_cpu(tool, framework)
    cuda = backends.use_cuda(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tool.parts, "pick_framework", lambda name: used)
    monkeypatch.setattr(tool.parts, "DRIVER", cuda._name)
    monkeypatch.setattr(tool.parts.driver, "load_nvrtc", lambda major: cuda)
    status = tool.main(["--quick"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status == 0, rows
    names = ["step"] + ["ClipGradByAdaGC"] * (framework == "Paddle")
    assert [row["check"] for row in rows] == names
    for row in rows:
        assert (row["driver"], row["target"]) == (12090, "sm_90")
        assert (row["nvrtc"], row["nvrtc_file"]) == ("0.1", cuda._name)
        assert row["stream"] == 0


@pytest.mark.parametrize("framework", ["Paddle", "Torch"])
def test_it_runs_to_its_end(tool, monkeypatch, capsys, framework):
    cuda = backends.use_cuda(monkeypatch)
    shorten(monkeypatch, tool, cuda)
    used = on_cpu(tool, framework)
    module = module_of(tool, cuda)
    if framework == "Torch":
        module = Graphs(module).replace(monkeypatch, used.lib)
    monkeypatch.setattr(tool.parts, "pick_framework", lambda name: used)
    monkeypatch.setattr(tool.parts, "load_kernels", lambda major: (module, {}))
    status = tool.main([])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (status, [row for row in rows if "error" in row]) == (0, [])
    checks = ["step"] + ["ClipGradByAdaGC"] * (framework == "Paddle")
    checks += ["values"] * 4 + ["rule"] + ["same bits"] * 4 + ["order"]
    checks += ["capture and 3 replays"] * (framework == "Torch")
    assert [row["check"] for row in rows if "check" in row] == [
        *checks,
        "large",
        "compute-sanitizer",
    ]
    assert not any("skipped" in row for row in rows[:-1])
    times = [row for row in rows if "time" in row]
    assert len(times) == 2 * len(tool.times.LISTS) * len(tool.times.SHARES)
    assert {row["ms"] for row in times} == {2.0}
    # Norms alone read half of what a copy reads and writes.
    assert times[0]["of_copy_bandwidth"] == 2.0
    other = {"Torch": "foreach", "Paddle": "clip"}[framework]
    assert all(row[f"{other}_host_ms"] > 0 for row in times)
    bytes_read = times[0]["values"] * 4
    assert times[0]["ms_at_peak_bandwidth"] == bytes_read / 4.8e9  # an H200


def test_a_failed_check_does_not_end_the_others(
    tool, tmp_path, monkeypatch, capsys
):
    source = (tool.parts.CUDA / "multi_tensor.cu").read_text()
    wrong = source.replace("fminf(threshold / norm, 1.0f)", "1.0f")
    assert wrong != source
    cuda = backends.build_emulated(tmp_path, wrong)
    shorten(monkeypatch, tool, cuda)
    monkeypatch.setattr(tool, "LARGE_VALUES", 1 << 31)
    module = module_of(tool, backends.use_cuda(monkeypatch, cuda))
    used = on_cpu(tool, "Paddle")
    monkeypatch.setattr(tool.parts, "pick_framework", lambda name: used)
    monkeypatch.setattr(tool.parts, "load_kernels", lambda major: (module, {}))
    assert tool.main([]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    failed = [row for row in rows if "error" in row]
    assert [(row["check"], row["error"]) for row in failed] == [
        ("step", "AssertionError: h differs"),
        ("ClipGradByAdaGC", "AssertionError: step 6: gradient 0 differs"),
        (
            "rule",
            "AssertionError: h differs: 513 tensors, beta 0.99, h of Inf 0",
        ),
    ]
    large, *times, _ = rows[-2 - 6 * len(tool.times.LISTS) :]
    assert large["skipped"] == "1.1 GB are free, 4.8 are needed"
    assert all("time" in row for row in times)


def test_without_a_gpu_it_says_what_is_missing():
    done = subprocess.run(
        [sys.executable, TOOL], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no GPU to check" in done.stderr
