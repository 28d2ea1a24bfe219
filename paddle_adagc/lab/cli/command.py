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
"""What the commands share: names, early checks, errors.

A command answers ``--help`` and a mistake before it imports Paddle: it parses
its arguments and checks extras and files first.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from paddle_adagc.lab.storage import StorageError

ROOT = Path(__file__).resolve().parents[3]
"""The checkout: the laboratory is in no wheel."""

ERRORS = (ImportError, OSError, TypeError, ValueError)
"""What a user can mend; other errors keep their traceback."""

_RUN_FILES = ("run.json", "metrics.jsonl", "tensors.json", "tensors.f32")


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Parser of ``tools/<name>.py``, which is also installed as ``adagc-...``.

    Args:
        name: File name in ``tools`` without ending.
        description: The command's module docstring.
    """
    script = f"adagc-{name.replace('_', '-')}"
    is_script = Path(sys.argv[0]).stem == script
    return argparse.ArgumentParser(
        prog=script if is_script else f"python tools/{name}.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def exit_status(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int],
    options: argparse.Namespace,
    errors: tuple[type[Exception], ...] = ERRORS,
) -> int:
    """Run a command.

    Returns:
        What ``run`` returns; 2 after an error that the user can mend, which is
        printed; 3 if a folder cannot be written to.
    """
    try:
        return run(options)
    except StorageError as error:
        # A progress bar may have left the cursor in its line.
        print(f"\n{parser.prog}: {error}", file=sys.stderr)
        return 3
    except errors as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def check_config_file(path: str | os.PathLike[str]) -> None:
    """Check that a config is there.

    Raises:
        FileNotFoundError: There is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no config file {path}")


def check_folder(path: str | os.PathLike[str]) -> None:
    """Check that a folder to read from is there.

    Raises:
        FileNotFoundError: There is no such directory.
    """
    if not Path(path).is_dir():
        raise FileNotFoundError(f"there is no directory {path}")


def check_run(path: Path) -> None:
    """Check that a directory holds a run.

    Raises:
        FileNotFoundError: It does not.
    """
    missing = [name for name in _RUN_FILES if not (path / name).is_file()]
    if missing:
        inside = sorted(found.parent for found in path.glob("*/run.json"))
        there = f"; runs in it: {', '.join(map(str, inside))}" if inside else ""
        raise FileNotFoundError(
            f"{path} is no run: it has no {missing[0]}; give a directory that "
            f"tools/pretrain.py wrote (train.output_dir){there}"
        )
