# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Settings before the first matrix product, and the canaries.

A canary is one slow test of its kind that runs with the fast ones.
"""

import os
from pathlib import Path

import pytest
from adagc_lab.processor import choose_mkl_kernels

choose_mkl_kernels()

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
        "test_a_form[a script]",
        "test_a_form[a callback that replaces the clip]",
        "test_a_form[a loop, `--watch`]",
        "test_a_form[a loop with `--require`]",
    ),
    "run/test_paddlenlp.py": ("test_a_script_of_paddlenlp_s_trainer",),
    "core/optimizers/test_layouts.py": (
        "test_run_is_that_of_one_process[v2 x2]",
    ),
    "lab/train/test_processes.py": (
        "test_a_stopped_command_resumes_with_the_same_record[15]",
    ),
    "lab/train/test_resharding.py": (
        "test_a_run_of_one_process_continues_on_two_ranks",
    ),
    "lab/data/test_prepare.py": (
        "test_a_kill_while_the_dataset_is_written[out.bin]",
    ),
    "lab/plan/test_plan.py": ("test_command",),
    "lab/reproduce/test_targets.py": ("test_a_grid_of_one_s_own",),
}
"""File -> its canaries."""


NO_FLOATS = (
    *("lab/configs/", "lab/data/", "tools/test_mistakes.py"),
    *("tools/test_research_module.py", "tools/test_tools.py"),
    *("test_architecture.py", "test_docs.py", "test_snippets.py"),
    "test_wheel.py",
)
"""Documents, command lines, tokens: no processor computes another number; and
the copy of tests that run beside it."""


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
