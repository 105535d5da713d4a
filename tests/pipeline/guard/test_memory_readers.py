"""What the guard reads: figures against an independent source, and every mood of a driver."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.core.settings import ReaderKind
from pipeline.guard import gpu as gpu_sources
from pipeline.guard import memory_readers as memory
from pipeline.guard import process_tree as proctree
from pipeline.guard.gpu import MIB
from pipeline.guard.memory_readers import (
    GpuReader,
    MemoryReading,
    MemoryUnreadable,
    ResidentReader,
    open_reader,
)


class FakeNvml(types.ModuleType):
    """A `pynvml` whose driver answers as told."""

    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
    nvmlMemory_v2 = 33554472
    old = False

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(value)
            self.value = value

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.gpus: list[dict[int, int | None]] = [{}]
        """Of each GPU: process id → MiB, or None."""
        self.used: list[int | None] = [0]
        """MiB of each GPU; None: not supported."""
        self.fails: int = 0
        """Error of every query; 0: none."""
        self.open = False

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.NVMLError(self.fails)
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[types.SimpleNamespace]:
        if self.fails:
            raise self.NVMLError(self.fails)
        gpu = self.gpus[handle].items()
        return [
            types.SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else int(mib * MIB))
            for pid, mib in gpu
        ]

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> types.SimpleNamespace:
        if self.old and version is not None:
            raise self.NVMLError(self.NVML_ERROR_FUNCTION_NOT_FOUND)
        used = self.used[handle]
        if self.fails or used is None:
            raise self.NVMLError(self.fails or self.NVML_ERROR_NOT_SUPPORTED)
        return types.SimpleNamespace(used=int(used * MIB))


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(memory, "in_container", lambda: False)
    return fake


def test_resident_agrees_with_psutil() -> None:
    block = bytearray(b"1") * (50 << 20)
    reading = ResidentReader().read([os.getpid()])
    expected = psutil.Process().memory_info().rss / MIB
    machine = psutil.virtual_memory()
    assert reading.tree_mib == pytest.approx(expected, abs=5) and reading.tree_mib > 50
    assert reading.available_mib == pytest.approx(machine.available / MIB, rel=0.2)
    assert reading.total_mib + reading.available_mib == pytest.approx(machine.total / MIB)
    assert len(block) == 50 << 20


def test_resident_sums_processes_and_forgives_the_dead() -> None:
    reader = ResidentReader()
    ended = subprocess.Popen(["true"])
    ended.wait()
    sleeper = subprocess.Popen(["sh", "-c", "echo; sleep 20 & wait"], stdout=subprocess.PIPE)
    assert sleeper.stdout and sleeper.stdout.readline()
    try:
        own, both = reader.read([os.getpid()]), reader.read([os.getpid(), sleeper.pid, ended.pid])
        assert 0.1 < both.tree_mib - own.tree_mib < 20
        assert reader.read([ended.pid]).tree_mib == 0
    finally:
        proctree.kill_tree(sleeper.pid)
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("old", [False, True])
def test_nvml_counts_the_tree_on_all_gpus(nvml: FakeNvml, old: bool) -> None:
    nvml.old = old
    nvml.gpus, nvml.used = [{11: 100, 99: 5000}, {11: 30, 12: 7}], [5200, 50]
    reader = open_reader()
    assert reader.kind is ReaderKind.NVML and not reader.unified
    reading = reader.read({11, 12, 13})
    assert (reading.tree_mib, reading.total_mib) == (137, 5250) and reading.available_mib > 0
    assert reader.read({13}).tree_mib == 0
    reader.close()
    assert not nvml.open


def test_unified_memory_takes_the_rest_from_the_machine(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GB10 answers: per-process figures, "Not Supported" for the whole."""
    nvml.gpus, nvml.used = [{11: 40807}], [None]
    monkeypatch.setattr(memory, "machine_memory", lambda: (122_000.0, 70_000.0))
    reader = open_reader()
    assert reader.unified and "MemAvailable" in reader.describe()
    assert reader.read({11}) == MemoryReading(40807, 52_000, 70_000)


def test_a_driver_that_hides_figures_is_not_read_as_zero(nvml: FakeNvml) -> None:
    nvml.used = [1000]
    reader = open_reader()
    nvml.gpus, nvml.used = [{11: None}], [9000]
    assert reader.read({11}).tree_mib == 8000
    assert reader.read({12}).tree_mib == 0  # it is not on the GPU


def test_in_a_container_growth_stands_for_the_tree(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "in_container", lambda: True)
    nvml.used = [1000]
    reader = open_reader()
    nvml.gpus, nvml.used = [{777_777: 8000}], [9000]
    assert "container" in reader.describe()
    assert reader.read({11}).tree_mib == 8000
    nvml.gpus = [{11: 6000, 777_777: 2000}]
    assert reader.read({11}).tree_mib == 6000  # the driver does know it: no need to guess


def test_nvml_that_fails_while_running_is_unreadable_not_zero(nvml: FakeNvml) -> None:
    reader = open_reader()
    nvml.fails = 15
    with pytest.raises(MemoryUnreadable, match="NVML"):
        reader.read({11})


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> Iterator[Path]:
    """A folder whose files `apps` and `used` a fake `nvidia-smi` prints; NVML fails."""
    nvml.fails = 9
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in *compute*) cat "{tmp_path}/apps";; *) cat "{tmp_path}/used";; esac\n'
    )
    program.chmod(0o755)
    (tmp_path / "apps").write_text("")
    (tmp_path / "used").write_text("512\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    yield tmp_path


def test_nvidia_smi_where_nvml_fails(smi: Path) -> None:
    reader = open_reader()
    (smi / "apps").write_text("11, 300\n99, 4000\n11, 20\n")
    (smi / "used").write_text("4500\n10\n")
    reading = reader.read({11})
    assert reader.kind is ReaderKind.SMI and (reading.tree_mib, reading.total_mib) == (320, 4510)


@pytest.mark.parametrize("word", ["[N/A]", "[Not Supported]", "N/A"])
def test_nvidia_smi_on_unified_memory(smi: Path, word: str) -> None:
    (smi / "used").write_text(word + "\n")
    (smi / "apps").write_text("11, 300\n")
    reader = open_reader()
    assert reader.unified and reader.read({11}).tree_mib == 300


@pytest.mark.parametrize(("file", "text"), [("apps", "what is this\n"), ("used", "lots\n"), ("used", "")])
def test_nvidia_smi_that_babbles_is_unreadable(smi: Path, file: str, text: str) -> None:
    (smi / file).write_text(text)
    with pytest.raises(MemoryUnreadable, match="nvidia-smi"):
        open_reader(ReaderKind.SMI)


def test_a_gpu_that_does_not_answer_is_not_passed_over(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml.fails = 9
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(memory, "signs_of_gpu", list)
    assert open_reader().kind is ReaderKind.RESIDENT
    monkeypatch.setattr(memory, "signs_of_gpu", lambda: ["/dev/nvidia0"])
    with pytest.raises(MemoryUnreadable, match=r"/dev/nvidia0.*does not answer"):
        open_reader()
    assert open_reader(ReaderKind.RESIDENT).kind is ReaderKind.RESIDENT


def test_a_machine_without_gpus_is_watched_by_resident_memory(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml.gpus = []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(memory, "signs_of_gpu", list)
    assert open_reader().kind is ReaderKind.RESIDENT


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MemoryUnreadable, match="nvidia-ml-py"):
        gpu_sources.NvmlSource()


def test_meminfo_that_cannot_be_read_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "read_small", lambda path: b"MemTotal:  100 kB\n")
    with pytest.raises(MemoryUnreadable, match="meminfo"):
        memory.machine_memory()


def test_the_tree_follows_forks_and_forgets_the_dead() -> None:
    """Threads are not counted, grandchildren are; nothing but the cheap look is used."""
    code = "import subprocess, threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=(20,)).start()\n"
    code += "subprocess.Popen(['sleep', '20']); print('ready', flush=True); time.sleep(20)"
    tree = proctree.ProcessTree(os.getpid())
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
        assert new == proctree.descendants(os.getpid()) - before
    finally:
        killed = proctree.kill_tree(child.pid)
        child.kill()
        child.wait()
    assert killed == expected - {child.pid}
    assert not (tree.rescan() & expected)


def test_a_spared_process_is_not_named_but_its_children_are() -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 20 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        grandchild = int(child.stdout.readline())
        assert proctree.descendants(os.getpid(), {child.pid}) & {child.pid, grandchild} == {grandchild}
        tree = proctree.ProcessTree(os.getpid(), {child.pid})
        assert tree.pids() & {child.pid, grandchild} == {grandchild}
    finally:
        proctree.kill_tree(child.pid)
        child.wait()


def test_without_a_hint_the_tree_is_found_by_full_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proctree, "last_process_id", lambda: None)
    monkeypatch.setattr(proctree, "FULL_SCAN_SHARE", 1.0)
    tree = proctree.ProcessTree(os.getpid())
    child = subprocess.Popen(["sleep", "20"])
    try:
        end = time.monotonic() + 5
        while child.pid not in tree.pids():
            assert time.monotonic() < end
    finally:
        child.kill()
        child.wait()


def test_psutil_stands_in_for_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of macOS, as far as Linux can run it."""
    for module in (proctree, memory):
        monkeypatch.setattr(module, "LINUX", False)
    child = subprocess.Popen(["sleep", "20"])
    try:
        assert child.pid in proctree.descendants(os.getpid())
        reader = ResidentReader()
        assert 0 < reader.read([child.pid]).tree_mib < 20
        assert reader.read([os.getpid()]).available_mib > 0
    finally:
        child.kill()
        child.wait()
    assert isinstance(GpuReader, type) and proctree.last_process_id() is None
