# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Settings before the first matrix product, and the canaries.

A canary is one slow test of its kind that runs with the fast ones.
"""

import os
import signal
from pathlib import Path

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

CANARIES = {
    "core/parallel/test_layouts.py": (
        "test_run_is_that_of_one_process[sp with tp2]",
        "test_run_is_that_of_one_process[mesh tp2]",
        "test_run_is_that_of_one_process[group_sharded stage 2]",
        "test_states_move[one process-ep2 x v2 x4-MOE]",
    ),
    "run/test_forms.py": (
        "test_a_form[a callback that replaces the clip]",
        "test_a_form[a loop with `--require`]",
    ),
    "lab/train/test_layouts.py": ("test_two_ranks_train_and_resume[ernie]",),
    "run/test_paddlenlp.py": ("test_a_script_of_paddlenlp_s_trainer",),
    "lab/train/test_processes.py": (
        "test_a_stopped_command_resumes_with_the_same_record[15]",
    ),
    "lab/reproduce/test_targets.py": (
        "test_real_runs_are_paired_resumed_and_reported",
    ),
}
"""File -> its canaries."""


NO_FLOATS = (
    *("lab/configs/", "lab/data/"),
    "tools/test_tools.py",
    *("test_architecture.py", "test_docs.py", "test_snippets.py"),
    "test_wheel.py",
)
"""Documents, command lines, tokens: no processor computes another number; and
the copy of tests that run beside it."""


def pytest_runtest_logstart(nodeid):
    """Keep the names of the tests that run, for .ci/run."""
    if path := os.environ.get("ADAGC_RAN"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{nodeid}\n")


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the canaries; refuse one that a whole file no longer has."""
    found = {}
    for item in items:
        file = item.path.relative_to(config.rootpath / "tests").as_posix()
        found.setdefault(file, set()).add(item.name)
        if item.name in CANARIES.get(file, ()):
            item.add_marker("canary")
        if file.startswith(NO_FLOATS):
            item.add_marker("no_floats")
    if any("::" in argument for argument in config.args):
        return
    for file in found.keys() & CANARIES.keys():
        gone = {*CANARIES[file]} - found[file]
        if gone:
            raise pytest.UsageError(f"{file} has no canary {sorted(gone)}")
