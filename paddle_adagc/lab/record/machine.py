# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The machine of a run, as far as results may depend on it."""

from __future__ import annotations

import os
import platform
from typing import Any

import paddle

from paddle_adagc.lab.processor import processor_fields, processor_name

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


def processor_facts() -> dict[str, Any]:
    """Return processor and settings by which results may differ."""
    fields = processor_fields()
    flags = fields["flags"].split()
    return {
        "processor": processor_name(),
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
