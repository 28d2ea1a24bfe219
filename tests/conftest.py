# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Settings before the first matrix product, and the canaries.

A canary is one slow test of its kind that runs with the fast ones.
"""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

CPU = Path("/proc/cpuinfo")
FACTS = CPU.read_text() if CPU.exists() else ""
if "AuthenticAMD" in FACTS and " avx2 " in FACTS:
    # By itself MKL takes slower kernels there, and so would the commands' runs.
    os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")

# Processes that a test starts find the laboratory, too.
TOOLS = str(Path(__file__).parents[1] / "tools")
os.environ["PYTHONPATH"] = os.pathsep.join(
    [TOOLS, *filter(None, [os.environ.get("PYTHONPATH")])]
)

CANARIES = (
    "contract/test_adagc_run.py::test_the_warm_up_has_the_job_s_threshold"
    "[0.5-options0-0.5-max_grad_norm]",
    "core/parallel/test_layouts.py::test_run_is_that_of_one_process[tp2]",
    "core/parallel/test_layouts.py::test_run_is_that_of_one_process[mesh tp2]",
    "core/parallel/test_layouts.py::test_run_is_that_of_one_process"
    "[group_sharded stage 2]",
    "core/parallel/test_layouts.py::test_states_move"
    "[one process-ep2 x v2 x4-MOE]",
    "lab/reproduce/test_targets.py"
    "::test_real_runs_are_paired_resumed_and_reported",
    "lab/train/test_layouts.py::test_two_ranks_train_and_resume[ernie]",
    "lab/train/test_processes.py"
    "::test_a_stopped_command_resumes_with_the_same_record[15]",
    "run/test_forms.py::test_a_form[a callback that replaces the clip]",
    "run/test_forms.py::test_a_form[a loop with `--require`]",
    "run/test_run_formers.py::test_a_stage_trains_and_resumes[PT]",
)


def heed_signals():
    """Heed those that a shell's ``&`` or ``nohup`` ignores, as tests expect.

    Processes that a test starts would ignore them, too.
    """
    for name in ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM"):
        number = getattr(signal, name)
        if signal.getsignal(number) is signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            default = (
                signal.default_int_handler if is_interrupt else signal.SIG_DFL
            )
            signal.signal(number, default)


heed_signals()


@pytest.fixture
def scaler_on_cpu(monkeypatch):
    """Paddle's GradScaler switches itself off on a CPU; keep it on.

    It also does so unless the last ``auto_cast`` was float16.
    """
    import paddle

    place = SimpleNamespace(is_gpu_place=lambda: True)
    tracer, name = SimpleNamespace(_expected_place=place), "_dygraph_tracer"
    monkeypatch.setattr(paddle.amp.grad_scaler, name, lambda: tracer)
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0)
    monkeypatch.undo()
    assert scaler.is_enable()
    state = paddle.amp.grad_scaler.amp_global_state()
    monkeypatch.setattr(state, "amp_dtype", "float16", raising=False)
    return scaler


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the canaries."""
    for item in items:
        if item.nodeid.removeprefix("tests/") in CANARIES:
            item.add_marker("canary")
