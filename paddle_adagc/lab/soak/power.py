# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Power losses: images of a file system, taken while a run writes to it.

A run writes to an ext4 file system in a file. A copy of that file, taken at a
random moment, is what a disk without a volatile cache would hold after a power
loss: whatever the kernel has not written out is missing. The copy is mounted,
which replays the journal, and the run's command is given again.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paddle_adagc.lab.record.files import RunRecord
from paddle_adagc.lab.soak.runs import (
    Main,
    Trial,
    command,
    is_saving,
    judge,
    prepare_text,
    run_command,
    values,
    write_config,
)

NUM_STEPS = 48
_SAVE_EVERY = 3
_IMAGE_BYTES = 32 * 2**20
_IMAGES_PER_RUN = 10
_SECONDS_PER_RUN = 4.0
"""About what the run takes, of which the images are spread over."""


def power_trials(
    folder: Path, main: Main, count: int, seed: int
) -> Iterator[Trial]:
    """Take ``count`` images of runs, and resume each.

    Needs the right to mount.

    Args:
        folder: Empty folder to work in.
        main: The command.
        count: Number of images.
        seed: Of the moments.
    """
    prefix = prepare_text(folder)
    length: dict[str, Any] = {"max_steps": NUM_STEPS, "save_every": _SAVE_EVERY}
    file = write_config(
        folder / "whole.yaml", values(folder / "whole", prefix, **length)
    )
    run_command(main, file)
    whole = RunRecord.load(folder / "whole")
    mount = folder / "disk"
    mount.mkdir()
    file = write_config(
        folder / "run.yaml", values(mount / "run", prefix, **length)
    )
    rng = np.random.default_rng(seed)
    images: list[Path] = []
    while len(images) < count:
        wanted = min(_IMAGES_PER_RUN, count - len(images))
        images += _take_images(folder, mount, file, wanted, len(images), rng)
    for image in images:
        with _mounted(image, mount):
            steps = sorted(
                int(p.name.split("-")[1])
                for p in (mount / "run").glob("checkpoint-*")
            )
            answer = run_command(main, file)
            case = f"{image.stem}: checkpoints {steps} on the disk"
            yield judge("power", case, answer, mount / "run", whole)
        image.unlink()


def _take_images(
    folder: Path,
    mount: Path,
    config_file: Path,
    count: int,
    first: int,
    rng: np.random.Generator,
) -> list[Path]:
    """Copy the disk of one run at random moments, half of them in a save."""
    disk = folder / "disk.img"
    with disk.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(disk)], check=True)
    images = []
    with _mounted(disk, mount):
        process = subprocess.Popen(
            command(config_file),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _wait(process, lambda: (mount / "run" / "metrics.jsonl").exists())
        for number in range(first, first + count):
            time.sleep(rng.uniform(0, 2 * _SECONDS_PER_RUN / _IMAGES_PER_RUN))
            if number % 2:
                _wait(process, lambda: is_saving(mount / "run"))
                time.sleep(rng.uniform(0, 0.02))
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGSTOP)
            images.append(_copy(disk, folder / f"power loss {number + 1}.img"))
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
    return images


def _wait(process: subprocess.Popen[bytes], is_there: Any) -> None:
    while process.poll() is None and not is_there():
        time.sleep(0.0005)


def _copy(disk: Path, image: Path) -> Path:
    """Copy a disk that is not written to meanwhile."""
    before = None
    while True:
        shutil.copyfile(disk, image)
        digest = hashlib.sha256(image.read_bytes()).digest()
        if digest == before:
            return image
        before = digest


@contextlib.contextmanager
def _mounted(image: Path, mount: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)
