# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Settings that must stand before the first matrix product."""

from paddle_adagc.lab.processor import choose_mkl_kernels

choose_mkl_kernels()
