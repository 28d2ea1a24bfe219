# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The trials of a session."""

import os

import pytest
from soak import trials as results


@pytest.fixture(scope="session")
def trials():
    """A list for the session's trials (``SOAK_RECORD=1`` commits them)."""
    found = []
    yield found
    if os.environ.get("SOAK_RECORD"):
        results.write_trials(results.RESULTS, found)
        text = results.PAGE.read_text("utf-8")
        made = results.page(text, results.read_trials(results.RESULTS))
        results.PAGE.write_text(made, "utf-8")
