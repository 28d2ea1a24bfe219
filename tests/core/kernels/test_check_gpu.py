# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""tools/check_gpu.py without a GPU: on the emulated one, with its own clock."""

import contextlib
import ctypes
import importlib.util
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import backends
import numpy as np
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
    [
        ("i < part.size;", "i + 7 < part.size;"),
        ("(h[chunk.slot] == 1.0f)", "true"),
    ],
)
@pytest.mark.slow
def test_wrong_kernels_are_found(tool, tmp_path, right, wrong):
    source = (tool.parts.CUDA / "multi_tensor.cu").read_text()
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


QUICK_FAULTS = {
    "h differs": ("fminf(threshold / norm, 1.0f)", "1.0f"),
    "gamma differs": ("? observed : old", "? old : observed"),
    r"gradient \d+ \(\w+\) differs": (
        "[chunk.slot] == 1.0f",
        "[chunk.slot] <= 1.0f",
    ),
}


@pytest.mark.parametrize("error", QUICK_FAULTS)
def test_quick_checks_find_wrong_kernels(tool, monkeypatch, tmp_path, error):
    right, wrong = QUICK_FAULTS[error]
    source = (tool.parts.CUDA / "multi_tensor.cu").read_text()
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
    assert {
        row["of_copy_bandwidth"] for row in times if not row["clipped"]
    } == {
        2.0  # norms alone read what a copy reads and writes
    }
    others = {
        "Torch": ["foreach_ms", "foreach_host_ms"],
        "Paddle": ["clip_ms", "clip_host_ms", "globalgc_ms"],
    }[framework]
    for row in times:
        assert all(row[name] > 0 for name in others)
        width = {"float32": 4, "bfloat16": 2}[row["dtype"]]
        moved = width * row["values"] / 4.8e12  # seconds on an H200
        if row["clipped"] in (0, 1):
            moved *= 1 + 2 * row["clipped"]
            assert row["ms_at_peak_bandwidth"] == pytest.approx(1e3 * moved)
    tool.times.write_table(map(json.dumps, rows))
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 2 + len(times)
    assert len({line.count(" | ") for line in table}) == 1
    heading = {"Torch": "foreach", "Paddle": "GlobalGC"}[framework]
    assert f"| {heading} |" in table[0]
    assert " | 3 | 0 | float32 | 0% | 2 | " in table[2]


def test_a_failed_check_does_not_end_the_others(
    tool, tmp_path, monkeypatch, capsys
):
    source = (tool.parts.CUDA / "multi_tensor.cu").read_text()
    wrong = source.replace("fminf(threshold / norm, 1.0f)", "1.0f")
    assert wrong != source
    cuda = backends.build_emulated(tmp_path, wrong)
    shorten(monkeypatch, tool, cuda)
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
    assert "time" in rows[-2]


def test_a_large_tensor_is_skipped_where_memory_does_not_suffice(
    tool, monkeypatch
):
    cuda = backends.use_cuda(monkeypatch)
    monkeypatch.setattr(tool.parts, "DRIVER", cuda._name)
    row = tool.check_large(module_of(tool, cuda), tool.Paddle("cpu"))
    assert row["values"] > 2**31
    assert row["skipped"] == "1.1 GB are free, 4.8 are needed"


class Late:
    """Kernels that start only when the next ones are asked for."""

    def __init__(self, module):
        self._module, self.copy = module, module.copy
        self._waiting = []

    def launch(self, *arguments):
        for waiting in self._waiting:
            self._module.launch(*waiting)
        self._waiting = [arguments]


class Never(Late):
    """Scales that do not start in time."""

    def launch(self, name, *arguments):
        if not name.startswith("scale"):
            self._module.launch(name, *arguments)


@pytest.mark.parametrize("framework", ["Paddle", "Torch"])
def test_a_wrong_order_and_a_host_that_waits_are_found(
    tool, monkeypatch, framework
):
    cuda = backends.emulated_cuda()
    shorten(monkeypatch, tool, cuda)
    module = module_of(tool, cuda)
    for kind, wrong in ((Late, "norms"), (Never, "scales")):
        with pytest.raises(AssertionError, match=f"{wrong} in no order"):
            tool.check_order(kind(module), on_cpu(tool, framework))
    with pytest.raises(AssertionError, match="the host waited"):
        tool.check_order(module, on_cpu(tool, framework, has_waited=True))


class Unsteady:
    """Kernels that add the chunks' sums in another order in a late run."""

    def __init__(self, module):
        self._module, self.copy = module, module.copy
        self._num_runs = 0

    def launch(self, name, *arguments):
        self._module.launch(name, *arguments)
        self._num_runs += name == "finish_norms"
        if name == "finish_norms" and self._num_runs == 4:
            out = ctypes.cast(arguments[-1].value, self.sums)
            out[0] = np.nextafter(np.float32(out[0]), np.float32(9))

    sums = ctypes.POINTER(ctypes.c_float)


def test_a_run_with_other_bits_is_found(tool, monkeypatch):
    cuda = backends.emulated_cuda()
    shorten(monkeypatch, tool, cuda)
    module = Unsteady(module_of(tool, cuda))
    with pytest.raises(AssertionError, match="2 different results"):
        tool.check_repeats(module, on_cpu(tool, "Paddle"), "float32")


def test_floors_are_bytes_over_bandwidth(tool, capsys):
    assert tool.main(["--floors"]) == 0
    first = capsys.readouterr().out.splitlines()[2]
    # 165 million float32 at 3.35 and 4.8 TB/s, once, 1.2 and 3 times.
    numbers = "0.197 | 0.236 | 0.591 | 0.138 | 0.165 | 0.412"
    assert first == f"| 196 | 165 | float32 | {numbers} |"


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
