# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The same training on other instruction sets and emulated processors."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_adagc.lab.models.cpu import processor_fields

FLAGS = processor_fields()["flags"].split()
EMULATOR = shutil.which("qemu-x86_64")
SCRIPT = Path(__file__).with_name("few_steps.py")
# g++ itself is not emulated: it would see the real processor.
COMPILER = """#!/bin/sh
for word; do
    shift
    [ "$word" = -march=native ] && word=-march=x86-64-v3
    set -- "$@" "$word"
done
exec g++ "$@"
"""

pytestmark = pytest.mark.skipif(
    not {"avx2", "fma"} <= {*FLAGS}, reason="needs an x86 processor with AVX2"
)


def train(*arguments, runner=(), **variables):
    """The AdamW that was used, and the bits of the training."""
    inherited = {k: v for k, v in os.environ.items() if k[:4] != "MKL_"}
    done = subprocess.run(
        [*runner, sys.executable, str(SCRIPT), *arguments],
        env=inherited | {"OMP_NUM_THREADS": "1", **variables},
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.stdout.split()[-2:]


@functools.cache
def native_bits():
    return train()[1]


@pytest.mark.slow
def test_without_avx512_the_training_is_the_same():
    adamw, bits = train(
        "no-avx512", NPY_DISABLE_CPU_FEATURES="AVX512F AVX512_SKX"
    )
    assert adamw == "loop"
    assert bits == native_bits()


@pytest.mark.slow
def test_other_kernels_of_mkl_change_the_bits():
    # What the settings are for: without them the comparison above means little.
    assert train(MKL_DEBUG_CPU_TYPE="4")[1] != native_bits()


@pytest.mark.slow
@pytest.mark.skipif(EMULATOR is None, reason="needs qemu-user")
@pytest.mark.parametrize("processor", ["Haswell", "EPYC-Rome"])
def test_emulated_processors_train_the_same(processor, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    adamw, bits = train(
        "no-avx512",
        runner=(EMULATOR, "-cpu", processor),
        CXX=str(compiler),
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert adamw == "loop"
    assert bits == native_bits()
