# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the library's tests."""

import backends
import pytest


@pytest.fixture(params=["operators", "host", "cuda"])
def backend(request, monkeypatch):
    """Run a test on each backend of the clip; gives its name."""
    backends.use(request.param, monkeypatch)
    return request.param
