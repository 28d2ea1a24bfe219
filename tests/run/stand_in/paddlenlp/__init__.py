# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""A package of PaddleNLP's name and shape, which is imported at once."""
