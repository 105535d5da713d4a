"""A process is known by more than its number."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.core.process_identity import is_alive, process_identity


def dead_process() -> tuple[int, str]:
    """Number and identity of a process that has ended."""
    child = subprocess.Popen(["sleep", "60"])
    identity = process_identity(child.pid)
    child.kill()
    child.wait()
    return child.pid, identity


@pytest.mark.fault("a process id is used again", how="the same number, another start time")
def test_reused_number_is_another_process() -> None:
    me = process_identity(os.getpid())
    assert is_alive(os.getpid(), me)
    boot, space, ticks = me.rsplit("/", 2)
    assert not is_alive(os.getpid(), f"{boot}/{space}/{int(ticks) - 1}")
    assert not is_alive(os.getpid(), "")
    assert not is_alive(*dead_process())


def test_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["sleep", "60"])
    identity = process_identity(child.pid)
    child.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while is_alive(child.pid, identity) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(child.pid, identity)
    assert Path(f"/proc/{child.pid}").exists()
    child.wait()


def test_identities_differ_between_processes_and_last() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        first = process_identity(child.pid)
        assert first and first != process_identity(os.getpid())
        assert process_identity(child.pid) == first
    finally:
        child.kill()
        child.wait()
    assert process_identity(child.pid) == ""
