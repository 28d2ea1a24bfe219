# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The processor: its facts in records, and the kernels of MKL for it."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

_NAMES = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}
"""Sets of vector instructions, the widest first."""

_INSTRUCTION_SETS = (
    "avx",
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_bf16",
    "amx_tile",
)
_VARIABLES = (
    "MKL_DEBUG_CPU_TYPE",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "NPY_DISABLE_CPU_FEATURES",
    "GLIBC_TUNABLES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)


def choose_mkl_kernels() -> None:
    """Let MKL take its AVX2 kernels on AMD: by itself it takes slower ones.

    The commands of ``tools/`` and the tests call this, the library never does.
    MKL reads the variable at the first matrix product. A value that the user
    has set stays.
    """
    fields = processor_fields()
    is_amd = fields["vendor_id"] == "AuthenticAMD"
    if is_amd and "avx2" in fields["flags"].split():
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")


def with_vectors(model: str, instruction_sets: list[str]) -> str:
    """Add the widest vectors to the name of a model.

    Losses differ between those, and virtual machines hide the model: an "AMD
    EPYC" may or may not have AVX-512.
    """
    widest = next((n for s, n in _NAMES.items() if s in instruction_sets), "")
    return f"{model} ({widest})" if widest else model


@cache
def processor_fields(facts: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Read Linux's facts about the first core, by their names.

    ``flags``, ``model name`` and ``vendor_id`` are empty where it has none.
    """
    fields = {"flags": "", "model name": "", "vendor_id": ""}
    try:
        first, *_ = facts.read_text().split("\n\n")
    except OSError:
        return fields
    for line in first.splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields


def processor_facts() -> dict[str, Any]:
    """Return processor and settings by which results may differ."""
    import paddle

    fields = processor_fields()
    flags = fields["flags"].split()
    model = fields["model name"] or platform.processor()
    return {
        "processor": with_vectors(model, flags),
        "vendor": fields["vendor_id"],
        "architecture": platform.machine(),
        "num_cores": os.cpu_count(),
        "instruction_sets": [s for s in _INSTRUCTION_SETS if s in flags],
        "libc": " ".join(platform.libc_ver()),
        "blas": "MKL" if paddle.version.mkl() == "ON" else "OpenBLAS",
        "environment": {
            name: os.environ[name] for name in _VARIABLES if name in os.environ
        },
    }
