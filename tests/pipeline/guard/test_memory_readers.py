"""Memory readers: figures against an independent source, and every way in which a driver can answer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from pipeline.core.guard_limits import ReaderKind
from pipeline.guard import memory_readers as memory
from pipeline.guard import process_tree
from pipeline.guard.gpu import MIB
from pipeline.guard.memory_readers import (
    GpuReader,
    MemoryReadError,
    MemoryReading,
    ResidentReader,
    open_reader,
)
from tests.pipeline.guard.fake_drivers import FakeNvml, nvml, smi

__all__ = ["nvml", "smi"]


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
        process_tree.kill_tree(sleeper.pid)
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
    with pytest.raises(MemoryReadError, match="NVML"):
        reader.read({11})


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
    with pytest.raises(MemoryReadError, match="nvidia-smi"):
        open_reader(ReaderKind.SMI)


def test_a_gpu_that_does_not_answer_is_not_passed_over(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml.fails = 9
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(memory, "gpu_device_files", list)
    assert open_reader().kind is ReaderKind.RESIDENT
    monkeypatch.setattr(memory, "gpu_device_files", lambda: ["/dev/nvidia0"])
    with pytest.raises(MemoryReadError, match=r"/dev/nvidia0.*does not answer"):
        open_reader()
    assert open_reader(ReaderKind.RESIDENT).kind is ReaderKind.RESIDENT


def test_a_machine_without_gpus_is_watched_by_resident_memory(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml.gpus = []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(memory, "gpu_device_files", list)
    assert open_reader().kind is ReaderKind.RESIDENT


def test_meminfo_that_cannot_be_read_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "read_small", lambda path: b"MemTotal:  100 kB\n")
    with pytest.raises(MemoryReadError, match="meminfo"):
        memory.machine_memory()


def test_psutil_stands_in_for_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of macOS, as far as Linux can run it."""
    for module in (process_tree, memory):
        monkeypatch.setattr(module, "LINUX", False)
    child = subprocess.Popen(["sleep", "20"])
    try:
        assert child.pid in process_tree.descendants(os.getpid())
        reader = ResidentReader()
        assert 0 < reader.read([child.pid]).tree_mib < 20
        assert reader.read([os.getpid()]).available_mib > 0
    finally:
        child.kill()
        child.wait()
    assert isinstance(GpuReader, type) and process_tree.last_process_id() is None
