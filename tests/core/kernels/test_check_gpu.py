# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""tools/check_gpu.py without a GPU: on the emulated one, with its own clock."""

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import backends
import pytest

TOOL = Path(__file__).parents[3] / "tools/check_gpu.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("check_gpu", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def module_of(tool, cuda):
    cuda.emulated_reset()
    return tool.driver.Driver(cuda).load(b"emulated sm_90")


def on_cpu(tool, name):
    """A framework whose events say that each step takes 2 ms."""
    if name == "Torch":
        pytest.importorskip("torch")
    kind = getattr(tool, name)
    event = types.SimpleNamespace(
        record=lambda: None,
        synchronize=lambda: None,
        elapsed_time=lambda end: 2.0,
    )
    facts = {"event": lambda self: event, "name": lambda self: "emulated"}
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


def shorten(monkeypatch, tool):
    monkeypatch.setattr(tool, "LISTS", {3: 3e4, 5: 1e4})
    monkeypatch.setattr(tool, "REPETITIONS", 2)
    monkeypatch.setattr(tool, "BUSY_BYTES", 8)
    monkeypatch.setattr(tool, "STREAM_VALUES", 1 << 12)
    monkeypatch.setattr(tool, "CAPTURE_VALUES", 103)
    monkeypatch.setattr(tool.shutil, "which", lambda *args, **kwargs: None)


@pytest.mark.parametrize("framework", ["Paddle", "Torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_values_are_right_on_the_emulated_gpu(tool, framework, dtype):
    if framework == "Torch":
        pytest.importorskip("torch")
    row = tool.check_values(
        module_of(tool, backends.emulated_cuda()),
        getattr(tool, framework)("cpu"),
        dtype,
    )
    assert row["norm_error"] < 1e-6


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("i < part.size;", "i + 7 < part.size;"), ("factor == 1.0f", "true")],
)
@pytest.mark.slow
def test_wrong_kernels_are_found(tool, tmp_path, right, wrong):
    source = (tool.CUDA / "multi_tensor.cu").read_text()
    assert right in source
    cuda = backends.build_emulated(tmp_path, source.replace(right, wrong))
    module = module_of(tool, cuda)
    with pytest.raises(AssertionError, match="float32"):
        tool.check_values(module, tool.Paddle("cpu"), "float32")


@pytest.mark.parametrize("framework", ["Paddle", "Torch"])
def test_rule_is_right_on_the_emulated_gpu(tool, framework):
    module = module_of(tool, backends.emulated_cuda())
    tool.check_rule(module, on_cpu(tool, framework))


@pytest.mark.parametrize("framework", ["Paddle", "Torch"])
def test_quick_checks_on_the_emulated_gpu(
    tool, monkeypatch, tmp_path, capsys, framework
):
    """With the real search for device, driver and kernels."""
    used = on_cpu(tool, framework)
    cuda = backends.use_cuda(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tool, "pick_framework", lambda: used)
    monkeypatch.setattr(tool, "DRIVER", cuda._name)
    monkeypatch.setattr(tool.driver, "load_nvrtc", lambda major: cuda)
    status = tool.main(["--quick"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status == 0, rows
    names = ["step"] + ["ClipGradByAdaGC"] * (framework == "Paddle")
    assert [row["check"] for row in rows] == names
    for row in rows:
        assert (row["driver"], row["target"]) == (12090, "sm_90")
        assert (row["nvrtc"], row["nvrtc_file"]) == ("0.1", cuda._name)
        assert row["stream"] == 0


QUICK_FAULTS = {
    "h differs": ("fminf(threshold / norm, 1.0f)", "1.0f"),
    "gamma differs": ("? observed : old", "? old : observed"),
    r"gradient \d+ \(\w+\) differs": ("factor == 1.0f", "factor <= 1.0f"),
}


@pytest.mark.parametrize("error", QUICK_FAULTS)
def test_quick_checks_find_wrong_kernels(tool, monkeypatch, tmp_path, error):
    right, wrong = QUICK_FAULTS[error]
    source = (tool.CUDA / "multi_tensor.cu").read_text()
    assert right in source
    cuda = backends.build_emulated(tmp_path, source.replace(right, wrong))
    with pytest.raises(AssertionError, match=error):
        tool.check_step(module_of(tool, cuda), tool.Paddle("cpu"))
    backends.use_cuda(monkeypatch, cuda)
    with pytest.raises(AssertionError, match=r"step \d+: .* differs"):
        tool.check_clip(on_cpu(tool, "Paddle"))


def test_quick_check_wants_the_kernels(tool):
    with pytest.raises(AssertionError, match="ran in 0 of 20 steps"):
        tool.check_clip(on_cpu(tool, "Paddle"))


@pytest.mark.parametrize("framework", ["Paddle", "Torch"])
def test_it_runs_to_its_end(tool, monkeypatch, capsys, framework):
    shorten(monkeypatch, tool)
    used = on_cpu(tool, framework)
    module = module_of(tool, backends.use_cuda(monkeypatch))
    if framework == "Torch":
        module = Graphs(module).replace(monkeypatch, used.lib)
    monkeypatch.setattr(tool, "pick_framework", lambda: used)
    monkeypatch.setattr(tool, "load_kernels", lambda major: (module, {}))
    status = tool.main([])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (status, [row for row in rows if "error" in row]) == (0, [])
    checks = ["step"] + ["ClipGradByAdaGC"] * (framework == "Paddle")
    checks += ["values"] * 4 + ["rule"]
    checks += ["two streams", "capture and 3 replays"] * (framework == "Torch")
    assert [row["check"] for row in rows if "check" in row] == [
        *checks,
        "compute-sanitizer",
    ]
    times = [row for row in rows if "time" in row]
    assert len(times) == 2 * len(tool.LISTS) * len(tool.SHARES)
    assert {row["ms"] for row in times} == {2.0}
    assert {
        row["of_copy_bandwidth"] for row in times if not row["clipped"]
    } == {
        2.0  # norms alone read what a copy reads and writes
    }
    assert all(("foreach_ms" in row) == (framework == "Torch") for row in times)


def test_a_failed_check_does_not_end_the_others(
    tool, tmp_path, monkeypatch, capsys
):
    shorten(monkeypatch, tool)
    source = (tool.CUDA / "multi_tensor.cu").read_text()
    wrong = source.replace("fminf(threshold / norm, 1.0f)", "1.0f")
    assert wrong != source
    cuda = backends.build_emulated(tmp_path, wrong)
    module = module_of(tool, backends.use_cuda(monkeypatch, cuda))
    used = on_cpu(tool, "Paddle")
    monkeypatch.setattr(tool, "pick_framework", lambda: used)
    monkeypatch.setattr(tool, "load_kernels", lambda major: (module, {}))
    assert tool.main([]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    failed = [row for row in rows if "error" in row]
    assert [(row["check"], row["error"]) for row in failed] == [
        ("step", "AssertionError: h differs"),
        ("ClipGradByAdaGC", "AssertionError: step 8: gradient 3 differs"),
        ("rule", "AssertionError: h differs"),
    ]
    assert "time" in rows[-2]


@pytest.mark.parametrize("finds_errors", [False, True])
def test_memory_check_starts_the_values_under_the_tool(
    tool, tmp_path, monkeypatch, finds_errors
):
    sanitizer = tmp_path / "compute-sanitizer"
    sanitizer.write_text(f"#!/bin/sh\necho $*; exit {int(finds_errors)}\n")
    sanitizer.chmod(0o755)
    monkeypatch.setattr(tool, "TOOL_PATH", str(tmp_path))
    (row,) = tool.attempt("compute-sanitizer", tool.check_memory)
    if finds_errors:
        assert "check_gpu.py --values" in row["error"]
    else:
        assert row == {"check": "compute-sanitizer"}


def test_without_a_gpu_it_says_what_is_missing():
    done = subprocess.run(
        [sys.executable, TOOL], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no GPU to check" in done.stderr


def test_its_parts_need_no_framework():
    for name in ("driver", "tables"):
        text = (
            TOOL.parent.parent / f"paddle_adagc/kernels/cuda/{name}.py"
        ).read_text()
        assert not re.search(r"^(import|from) (paddle|torch)", text, re.M)
