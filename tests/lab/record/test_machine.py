# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run records about its machine."""

import json

import pytest

from paddle_adagc.lab import processor
from paddle_adagc.lab.record import machine


def test_states_processor_and_settings(monkeypatch):
    fields = {"model name": "Abacus 9", "vendor_id": "Sum", "flags": "avx fma"}
    for module in (machine, processor):
        monkeypatch.setattr(module, "processor_fields", lambda: fields)
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    facts = machine.processor_facts()
    assert facts["processor"] == "Abacus 9 (AVX)"
    assert facts["vendor"] == "Sum"
    assert facts["instruction_sets"] == ["avx", "fma"]
    assert facts["environment"]["MKL_CBWR"] == "AVX2"
    assert "GLIBC_TUNABLES" not in facts["environment"]
    assert json.loads(json.dumps(facts)) == facts


@pytest.mark.parametrize(("mkl", "blas"), [("ON", "MKL"), ("OFF", "OpenBLAS")])
def test_the_library_of_matrix_products_is_named(monkeypatch, mkl, blas):
    monkeypatch.setattr(machine.paddle.version, "mkl", lambda: mkl)
    assert machine.processor_facts()["blas"] == blas
