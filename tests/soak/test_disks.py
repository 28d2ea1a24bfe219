# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Disks that fail, and disks as a power loss leaves them."""

import contextlib
import filecmp
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from soak import ranks, runs
from soak.trials import REPEAT

ENDED = ("resumed", "fell back")
SMALLEST, LARGEST = 100, 560
"""KiB of a disk on which the run does not end: it needs 600."""

IMAGE_BYTES = 32 * 2**20
SECONDS = 2.0
"""Less than what a run with power losses takes."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def needs_the_right_to_mount():
    command = "dir=$(mktemp -d) && mount -t tmpfs tmpfs $dir && umount $dir"
    if subprocess.run(command, shell=True, capture_output=True).returncode:
        pytest.skip("needs the right to mount")


@contextlib.contextmanager
def mounted(folder, *what):
    subprocess.run(["mount", *what, str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def memory_of(folder, size):
    return mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs")


def remount(folder, options):
    command = ["mount", "-o", f"remount,{options}", str(folder)]
    subprocess.run(command, check=True)


def storage_trials(folder):
    """Let a run's storage fail, mend it, and give the same command again.

    The first command must exit with status 3, the path and what to do, and the
    second must end with the record of an uninterrupted run.
    """
    prefix = runs.prepare_text(folder)
    whole = runs.uninterrupted(folder / "whole", prefix)
    disk = folder / "disk"
    disk.mkdir()
    run = disk / "run"
    config = runs.write_config(folder / "run.yaml", run, prefix)

    def mended(case, first, advice):
        trial = runs.judge(
            "storage", case, runs.run_command(config), run, whole
        )
        is_named = "cannot write to" in first.text or "cannot be" in first.text
        if first.status is None or "Traceback" in first.text:
            return trial._replace(outcome="traceback", message=first.text)
        if first.status != 3 or advice not in first.text or not is_named:
            text = f"exit status {first.status}: {first.text}"
            return trial._replace(outcome="silent", message=text)
        if trial.outcome not in ENDED:
            return trial
        return trial._replace(outcome="fell back", message=first.text)

    rng = np.random.default_rng(0)
    for size in rng.integers(SMALLEST, LARGEST, 2 * REPEAT):
        with memory_of(disk, f"{size}k"):
            first = runs.run_command(config)
            remount(disk, "size=64m")
            yield mended(f"disk of {size} KiB", first, "free space")
    with memory_of(disk, "64m"):
        with runs.at_step(10, runs.interrupt):
            runs.run_command(config)
        remount(disk, "ro")
        first = runs.run_command(config)
        remount(disk, "rw")
        yield mended("read-only disk", first, "make it writable")
    with memory_of(disk, "64m"):
        with runs.at_step(6, lambda: shutil.rmtree(run)):
            first = runs.run_command(config)
        yield mended("removed folder", first, "put the folder back")
    away = disk / "away"
    with memory_of(disk, "64m"):
        with runs.at_step(6, lambda: run.rename(away)):
            first = runs.run_command(config)
        subprocess.run(["mv", str(away), str(run)], check=True)
        yield mended("folder moved, put back", first, "put the folder back")


def power_trials(folder):
    """Take images of a run's disk, and resume each.

    The run writes to an ext4 file system in a file. A copy of that file, taken
    at a random moment, is what a disk without a volatile cache would hold after
    a power loss: whatever the kernel has not written out is missing. To mount
    the copy replays the journal.
    """
    prefix = runs.prepare_text(folder)
    length = {"max_steps": 48, "save_every": 3}
    whole = runs.uninterrupted(folder / "whole", prefix, **length)
    mount = folder / "disk"
    mount.mkdir()
    run = mount / "run"
    config = runs.write_config(folder / "run.yaml", run, prefix, **length)
    rng = np.random.default_rng(0)
    for number in range(2 * REPEAT):
        image = folder / f"power loss {number + 1}.img"
        take_image(image, run, config, rng, in_save=number % 2)
        with mounted(mount, "-o", "loop", str(image)):
            paths = run.glob("checkpoint-*")
            steps = sorted(int(path.name.split("-")[1]) for path in paths)
            case = f"{image.stem}: checkpoints {steps} on the disk"
            yield runs.judge(
                "power", case, runs.run_command(config), run, whole
            )
        image.unlink()


def take_image(image, run, config, rng, in_save):
    """Copy the disk of a run at a random moment, or in a random save."""
    disk = image.with_suffix(".disk")
    with disk.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(disk)], check=True)
    with mounted(run.parent, "-o", "loop", str(disk)):
        (process,) = ranks.start(config, 1)

        def wait(is_there):
            while process.is_alive() and not is_there():
                time.sleep(0.0005)

        wait((run / "metrics.jsonl").exists)
        time.sleep(rng.uniform(0, SECONDS))
        if in_save:
            wait(lambda: runs.is_saving(run))
            time.sleep(rng.uniform(0, 0.02))
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(process.pid, signal.SIGSTOP)
        while True:  # until the kernel does not write meanwhile
            shutil.copyfile(disk, image)
            if filecmp.cmp(disk, image, shallow=False):
                break
        process.kill()
        process.join()
    disk.unlink()


LONG = pytest.param(power_trials, marks=pytest.mark.long)


@pytest.mark.parametrize("trials_of", [storage_trials, LONG])
def test_disks(trials_of, tmp_path, trials):
    found = [*trials_of(tmp_path)]
    trials += found
    assert len(found) >= 2
    assert not [trial for trial in found if trial.outcome not in ENDED]
