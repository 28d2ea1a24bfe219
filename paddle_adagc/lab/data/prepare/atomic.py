# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Files that are there completely or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

_SUFFIX = ".tmp"


@contextlib.contextmanager
def written_atomically(path: Path, folder: Path) -> Iterator[BinaryIO]:
    """Open a file that appears under ``path`` once its content is on the disk.

    Killed, or out of disk space, the ``with`` block leaves what ``path`` held
    before; after an exception the temporary file is removed.

    Args:
        path: Of the file.
        folder: On the same file system, for the temporary file;
            :func:`remove_leftovers` finds there what a kill left.
    """
    temporary = folder / f"{path.name}.{os.getpid()}{_SUFFIX}"
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files in ``folder``."""
    for leftover in folder.glob(f"*{_SUFFIX}"):
        leftover.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any, folder: Path) -> None:
    """Write ``value`` as an indented JSON file, atomically."""
    with written_atomically(path, folder) as file:
        file.write(json.dumps(value, indent=2).encode() + b"\n")
