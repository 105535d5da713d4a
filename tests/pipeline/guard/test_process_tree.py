"""The descendants of a process: new ones are found, ended ones forgotten, excluded ones left out."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from pipeline.guard import process_tree
from pipeline.guard.process_tree import ProcessTree, descendants, kill_tree, parent_of, send


def test_the_tree_follows_forks_and_forgets_the_dead() -> None:
    """Threads are not counted, grandchildren are; nothing but the cheap look is used."""
    code = "import subprocess, threading, time\n"
    code += "for _ in range(3): threading.Thread(target=time.sleep, args=(20,)).start()\n"
    code += "subprocess.Popen(['sleep', '20']); print('ready', flush=True); time.sleep(20)"
    tree = ProcessTree(os.getpid())
    tree._next_full = float("inf")
    before = set(tree.pids())
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout and child.stdout.readline()
        new = tree.pids() - before
        expected = {
            child.pid,
            *(process.pid for process in psutil.Process(child.pid).children(recursive=True)),
        }
        assert new == expected and len(new) == 2
        assert new == descendants(os.getpid()) - before
    finally:
        killed = kill_tree(child.pid)
        child.kill()
        child.wait()
    assert killed == expected - {child.pid}
    assert not (tree.rescan() & expected)


def test_an_excluded_process_is_left_out_but_its_children_are_not() -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 20 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        grandchild = int(child.stdout.readline())
        assert descendants(os.getpid(), {child.pid}) & {child.pid, grandchild} == {grandchild}
        tree = ProcessTree(os.getpid(), {child.pid})
        assert tree.pids() & {child.pid, grandchild} == {grandchild}
    finally:
        kill_tree(child.pid)
        child.wait()


def test_without_a_hint_the_tree_is_found_by_full_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "last_process_id", lambda: None)
    monkeypatch.setattr(process_tree, "FULL_SCAN_SHARE", 1.0)
    tree = ProcessTree(os.getpid())
    child = subprocess.Popen(["sleep", "20"])
    try:
        end = time.monotonic() + 5
        while child.pid not in tree.pids():
            assert time.monotonic() < end
    finally:
        child.kill()
        child.wait()


def test_a_process_that_ended_has_no_parent_and_takes_no_signal() -> None:
    child = subprocess.Popen(["sleep", "20"])
    assert parent_of(child.pid) == os.getpid()
    assert send(child.pid, 9)
    while parent_of(child.pid) is not None:
        time.sleep(0.001)
    child.wait()
    assert not send(child.pid, 9)
