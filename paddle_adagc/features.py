# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Features that a smaller copy of the package leaves out, each with its file.

``Research/AdaGC`` of PaddleFleet is such a copy. The rest of the package
imports a feature here alone, when it is first used.
"""

from __future__ import annotations

import importlib
import types


class MissingFeatureError(ImportError):
    """This copy of the package lacks a feature."""


def import_feature(module: str, wanted: str) -> types.ModuleType:
    """Import a module that a copy of the package may lack.

    Args:
        module: Its name below ``paddle_adagc``.
        wanted: What the user asked for: an option or a name.

    Returns:
        The module.

    Raises:
        MissingFeatureError: This copy lacks it; the error names ``wanted``.
    """
    name = f"paddle_adagc.{module}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # another package, which the feature needs
        raise MissingFeatureError(
            f"{wanted} needs {name}, which this copy of paddle_adagc leaves "
            "out: install the whole package"
        ) from error
