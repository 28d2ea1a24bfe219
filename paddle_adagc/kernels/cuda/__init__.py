# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels through NVRTC and the driver API; not run on a GPU so far."""
