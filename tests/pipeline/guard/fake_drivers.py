"""NVIDIA drivers made up for the tests: a `pynvml` module and an `nvidia-smi` program."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.guard import memory_readers
from pipeline.guard.gpu import MIB


class FakeNvml(types.ModuleType):
    """A `pynvml` whose driver answers with the figures that a test sets."""

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
        self.free: list[int] = [0]
        """MiB of each GPU."""
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
        used, free = self.used[handle], self.free[min(handle, len(self.free) - 1)]
        if self.fails or used is None:
            raise self.NVMLError(self.fails or self.NVML_ERROR_NOT_SUPPORTED)
        return types.SimpleNamespace(used=int(used * MIB), free=int(free * MIB))


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(memory_readers, "in_container", lambda: False)
    return fake


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
