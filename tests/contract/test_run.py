# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""adagc-run steps aside: what a command does before it, it does behind it."""

import os
import pty
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

RUN = (sys.executable, "-m", "paddle_adagc.run", "--")
JOB = """
import os, signal, sys, time
log = os.open("log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
def show(number, frame):
    # Not by print: a signal that comes while a line is flushed raises there.
    os.write(log, f"got {signal.Signals(number).name}\\n".encode())
for name in HANDLED:
    signal.signal(getattr(signal, name), show)
os.write(log, f"ready {os.getpid()}\\n".encode())
while not os.path.exists("stop"):
    time.sleep(0.02)
sys.exit(7)
"""
SIGNALS = (
    *("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGXCPU"),
    *("SIGALRM", "SIGCONT"),
)
KEYS = {"Ctrl-C": b"\x03", "Ctrl-\\": b"\x1c", "nothing": b""}
WAYS = {
    "python": "{python} job.py",
    "bash": "bash job.sh",
}


def run(words, **options):
    return subprocess.run(words, capture_output=True, text=True, **options)


def test_the_process_is_the_command_s():
    process = subprocess.Popen(
        [*RUN, "bash", "-c", "echo $$"], stdout=subprocess.PIPE, text=True
    )
    printed, _ = process.communicate()
    assert int(printed) == process.pid


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        *(
            (f"kill -{name[3:]} $$", -number)
            for name, number in (
                ("SIGINT", 2),
                ("SIGKILL", 9),
                ("SIGTERM", 15),
                ("SIGPIPE", 13),
            )
        ),
        ("bash -c 'kill -INT $$'; exit $?", 130),
        ("bash -c 'kill -KILL $$'; exit $?", 137),
        ("bash -c 'kill -TERM $$'; exit $?", 143),
    ],
)
def test_the_status_is_the_command_s(script, status):
    assert run([*RUN, "bash", "-c", script]).returncode == status


@pytest.mark.parametrize("ignored", ["SIGCHLD", "SIGHUP", "SIGINT"])
def test_an_ignored_signal_stays_ignored(ignored):
    """With SIGCHLD ignored a parent cannot see how a child ended."""
    ignore = lambda: signal.signal(getattr(signal, ignored), signal.SIG_IGN)  # noqa: E731
    script = "grep SigIgn /proc/self/status; exit 7"
    plain, ours = (
        run([*before, "bash", "-c", script], preexec_fn=ignore)
        for before in ((), RUN)
    )
    assert plain.returncode == ours.returncode == 7
    assert plain.stdout == ours.stdout


def test_the_standard_streams_are_the_command_s():
    ended = run([*RUN, "cat"], input="in\n")
    assert (ended.stdout, ended.returncode) == ("in\n", 0)
    assert ended.stderr.count("\n") == 1
    assert "Without that line a node trains without" in ended.stderr
    ended = run(["bash", "-c", f"{' '.join(RUN)} yes | head -1"])
    assert (ended.stdout, ended.stderr.count("\n")) == ("y\n", 1)


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "too late"
        time.sleep(0.02)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def in_terminal(folder, words, act):
    """Do something to a command that has a terminal of its own.

    Returns:
        What its Python got, its status, and whether it could be stopped.
    """
    log, has_stopped = folder / "log", None
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvp(words[0], words)
    try:
        wait_until(lambda: log.exists() and "\n" in log.read_text())
        child = int(log.read_text().split()[1])
        if act == "hang up":
            os.close(terminal)
        elif act in KEYS:
            os.write(terminal, KEYS[act])
        else:
            os.kill(pid, getattr(signal, act))
        if act == "SIGSTOP":
            _, status = os.waitpid(pid, os.WUNTRACED)
            has_stopped = os.WIFSTOPPED(status)
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.4)
        (folder / "stop").touch()
        _, status = os.waitpid(pid, 0)
        wait_until(lambda: not is_alive(child))
    finally:
        if act != "hang up":
            os.close(terminal)
    return log.read_text().splitlines()[1:], status, has_stopped


@pytest.mark.parametrize("handled", [(), SIGNALS], ids=["default", "handles"])
@pytest.mark.parametrize("way", WAYS)
def test_signals_and_keys_do_what_they_do(way, handled, tmp_path):
    words = WAYS[way].format(python=sys.executable).split()

    def outcome(case):
        before, act = case
        folder = tmp_path / f"{act} {len(before)}"
        folder.mkdir()
        (folder / "job.py").write_text(JOB.replace("HANDLED", repr(handled)))
        script = f"{sys.executable} job.py\nexit $?\n"
        (folder / "job.sh").write_text(script)
        return in_terminal(folder, [*before, *words], act)

    acts = [*SIGNALS, "SIGSTOP", *KEYS]
    with ThreadPoolExecutor(6) as pool:
        plain = pool.map(outcome, [((), act) for act in acts])
        ours = pool.map(outcome, [(RUN, act) for act in acts])
        found = dict(zip(acts, ours, strict=True))
        assert found == dict(zip(acts, plain, strict=True))
    assert found["nothing"][:2] != found["Ctrl-C"][:2]


@pytest.mark.parametrize("before", [(), RUN], ids=["alone", "adagc-run"])
def test_a_closed_terminal_ends_the_command(before, tmp_path):
    (tmp_path / "job.py").write_text(JOB.replace("HANDLED", "()"))
    words = [*before, sys.executable, "job.py"]
    _, status, _ = in_terminal(tmp_path, words, "hang up")
    assert os.WTERMSIG(status) == signal.SIGHUP
