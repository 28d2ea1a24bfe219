# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The processor's name, and the choice of MKL's kernels."""

import os

import pytest
from adagc_lab import processor

AMD, INTEL = "AuthenticAMD", "GenuineIntel"


@pytest.mark.parametrize(
    ("vendor", "flags", "given", "chosen"),
    [
        (AMD, "avx avx2", None, "5"),
        (AMD, "avx avx2", "4", "4"),
        (AMD, "avx", None, None),
        (INTEL, "avx avx2 avx512f", None, None),
    ],
)
def test_mkl_takes_avx2_on_amd(monkeypatch, vendor, flags, given, chosen):
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", given or "")
    if given is None:
        monkeypatch.delenv("MKL_DEBUG_CPU_TYPE")
    fields = {"vendor_id": vendor, "flags": flags}
    monkeypatch.setattr(processor, "processor_fields", lambda: fields)
    processor.choose_mkl_kernels()
    assert os.environ.get("MKL_DEBUG_CPU_TYPE") == chosen


@pytest.mark.parametrize(
    ("flags", "widest"),
    [("sse avx avx2 avx512f", " (AVX-512)"), ("avx avx2", " (AVX2)"), ("", "")],
)
def test_one_model_with_other_vectors_has_another_name(flags, widest):
    assert processor.with_vectors("EPYC", flags.split()) == "EPYC" + widest
