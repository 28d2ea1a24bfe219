# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""Disks that fail, and disks as a power loss leaves them."""

import contextlib
import filecmp
import os
import shutil
import signal
import subprocess

import numpy as np
import pytest
from core.parallel.ranks import run_on_ranks
from lab.train.runs import at_step
from soak import runs

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


def remount(folder, options):
    command = ["mount", "-o", f"remount,{options}", str(folder)]
    subprocess.run(command, check=True)


@pytest.fixture
def disk(tmp_path):
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


class Subject:
    """A run on a disk, and the record of the same run on another."""

    def __init__(self, folder, disk, **length):
        self.prefix, self.run = runs.prepare_text(folder), disk / "run"
        self.whole = runs.uninterrupted(folder / "whole", self.prefix, **length)
        self.config = runs.write_config(
            folder / "run.yaml", self.run, self.prefix, **length
        )

    def resume(self, case):
        """Give the command again: it must end with the same record."""
        answer = runs.run_command(self.config)
        outcome = runs.judge(case, answer, self.run, self.whole)
        assert outcome != "refused", f"{case}: {answer}"


def fill(subject, disk):
    """Let a small disk run full: the run needs 600 KiB."""
    first = runs.run_command(subject.config)
    remount(disk, "size=64m")
    return first


def make_read_only(subject, disk):
    def interrupt():
        raise InterruptedError  # which leaves no file open

    with at_step(10, interrupt):
        runs.run_command(subject.config)
    remount(disk, "ro")
    first = runs.run_command(subject.config)
    remount(disk, "rw")
    return first


def remove_folder(subject, disk):
    with at_step(6, lambda: shutil.rmtree(subject.run)):
        return runs.run_command(subject.config)


def test_a_disk_that_failed_is_named_and_the_command_resumes(tmp_path, disk):
    """Exit status 3, the path and what to do; then the same command ends."""
    subject = Subject(tmp_path, disk)
    sizes = np.random.default_rng(0).integers(100, 560, 2 * runs.REPEAT)
    for fail, size, advice in (
        *((fill, f"{size}k", "free space") for size in sizes),
        (make_read_only, "64m", "make it writable"),
        (remove_folder, "64m", "put the folder back"),
    ):
        case = f"{fail.__name__}, {size}"
        with mounted(disk, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
            status, text = fail(subject, disk)
            assert status == 3, f"{case}: {text}"
            assert advice in text, case
            assert "cannot write to" in text or "cannot be" in text, case
            subject.resume(case)


@pytest.mark.long
def test_power_losses(tmp_path, disk):
    """Take images of a run's disk, and resume each.

    The run writes to an ext4 file system in a file. A copy of that file, taken
    at a random moment, is what a disk without a volatile cache would hold after
    a power loss: whatever the kernel has not written out is missing. To mount
    the copy replays the journal.
    """
    subject = Subject(tmp_path, disk, max_steps=48, save_every=3)
    rng = np.random.default_rng(0)
    for number in range(2 * runs.REPEAT):
        image = tmp_path / f"{number}.img"
        take_image(image, subject, rng, in_save=number % 2)
        with mounted(disk, "-o", "loop", str(image)):
            subject.resume(f"power loss {number}")
        image.unlink()


def take_image(image, subject, rng, in_save):
    """Copy the disk of a run at a random moment, or in a random save."""
    file, run = image.with_suffix(".disk"), subject.run
    with file.open("wb") as empty:
        empty.truncate(32 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(file)], check=True)

    def stop(ranks):
        steps = rng.integers(1, 40)
        runs.wait_for_moment(ranks, run, steps, in_save, rng)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(ranks[0].pid, signal.SIGSTOP)
        while True:  # until the kernel does not write meanwhile
            shutil.copyfile(file, image)
            if filecmp.cmp(file, image, shallow=False):
                break
        ranks[0].kill()

    with (
        mounted(run.parent, "-o", "loop", str(file)),
        contextlib.suppress(RuntimeError),
    ):
        run_on_ranks(
            runs.command, 1, meanwhile=stop, config_file=subject.config
        )
    file.unlink()
