# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""For tools that want this file; everything stands in pyproject.toml."""

from setuptools import setup

setup()
