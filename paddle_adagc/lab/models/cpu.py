# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Same bits on every x86 processor with AVX2.

Three things differ between processors in Paddle 3.3.1's float32 training:
MKL's kernels; AdamW, which has one kernel for AVX-512 and another one; and the
square root and its reciprocal, which start from the processor's own
approximation (see `rms_norm`).
"""

import logging
import os
from functools import cache
from pathlib import Path

from paddle_adagc.kernels.adamw import replace_adamw

logger = logging.getLogger(__name__)

_MKL_VARIABLE = "MKL_DEBUG_CPU_TYPE"
_MKL_AVX2 = "5"


def use_portable_arithmetic() -> bool:
    """Choose the kernels that round alike on every x86 processor with AVX2.

    MKL reads its variable at the first matrix product, so call this before
    any. A value that the user has set stays. On AMD processors, where this MKL
    takes its slowest path by itself, AVX2 is about 3 times as fast.

    Returns:
        Whether results are the same as on other processors.
    """
    flags = processor_fields()["flags"].split()
    if not {"avx2", "fma"} <= {*flags}:
        return False
    chosen = os.environ.setdefault(_MKL_VARIABLE, _MKL_AVX2)
    is_portable = "avx512f" in flags or replace_adamw()
    if not is_portable:
        logger.warning(
            "AdamW rounds otherwise than on processors with AVX-512: install "
            "g++ for the compiled loop"
        )
    return is_portable and chosen == _MKL_AVX2


@cache
def processor_fields(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Read Linux's facts about the first core, by their names.

    Returns:
        `flags`, `model name`, `vendor_id` and others; these three are empty
        where Linux does not say.
    """
    fields = {"flags": "", "model name": "", "vendor_id": ""}
    try:
        first, *_ = cpuinfo.read_text().split("\n\n")
    except OSError:
        return fields
    for line in first.splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields
