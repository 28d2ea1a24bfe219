# Copyright (c) 2026 PaddlePaddle Authors.
"""Measures of runs, and a page that compares them."""
