# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The settings that make CPUs round alike."""

import pytest
from paddle import _C_ops

from paddle_adagc.kernels import adamw
from paddle_adagc.lab.models import cpu

FLAGS = "sse2 avx avx2 fma"


@pytest.fixture
def processor(monkeypatch):
    """Sets the flags of the processor; every setting is put back."""
    monkeypatch.setattr(_C_ops, "adamw_", adamw._OPERATOR)
    monkeypatch.delenv("MKL_DEBUG_CPU_TYPE", raising=False)

    def choose(flags):
        monkeypatch.setattr(cpu, "processor_fields", lambda: {"flags": flags})

    return choose


@pytest.mark.parametrize(
    ("flags", "uses_loop"), [(FLAGS, True), (f"{FLAGS} avx512f", False)]
)
def test_chooses_avx2_and_one_adamw(processor, flags, uses_loop):
    processor(flags)
    assert cpu.use_portable_arithmetic()
    assert cpu.os.environ["MKL_DEBUG_CPU_TYPE"] == "5"
    assert (_C_ops.adamw_ is adamw.adamw_) == uses_loop


def test_leaves_processors_without_avx2_alone(processor):
    processor("sse2 avx")
    assert not cpu.use_portable_arithmetic()
    assert "MKL_DEBUG_CPU_TYPE" not in cpu.os.environ
    assert _C_ops.adamw_ is adamw._OPERATOR


def test_says_when_results_stay_those_of_this_processor(
    processor, monkeypatch, caplog
):
    processor(FLAGS)
    monkeypatch.setattr(cpu, "replace_adamw", lambda: False)
    assert not cpu.use_portable_arithmetic()
    assert "install g++" in caplog.text


def test_keeps_the_user_s_choice(processor, monkeypatch):
    processor(FLAGS)
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "4")
    assert not cpu.use_portable_arithmetic()
    assert cpu.os.environ["MKL_DEBUG_CPU_TYPE"] == "4"


def test_reads_the_first_core(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nmodel name\t: Abacus: 9\nflags\t\t: sse2 avx\n\n"
        "processor\t: 1\nmodel name\t: Other\n"
    )
    fields = cpu.processor_fields(path)
    assert fields["model name"] == "Abacus: 9"
    assert fields["flags"] == "sse2 avx"
    assert fields["vendor_id"] == ""
    assert cpu.processor_fields(tmp_path / "missing")["flags"] == ""
