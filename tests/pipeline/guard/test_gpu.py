"""What the driver is asked, and how its answers and refusals are understood."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.guard.gpu import MemoryReadError, NvmlSource, SmiSource
from tests.pipeline.guard.fake_drivers import FakeNvml, nvml, smi

__all__ = ["nvml", "smi"]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MemoryReadError, match="nvidia-ml-py"):
        NvmlSource()


def test_processes_are_listed_for_each_gpu(nvml: FakeNvml, smi: Path) -> None:
    (smi / "apps").write_text("11, 300\n11, [N/A]\n")
    assert SmiSource().processes() == [(11, 300.0), (11, None)]
    nvml.fails = 0
    nvml.gpus = [{11: 300}, {11: None}]
    assert NvmlSource().processes() == [(11, 300.0), (11, None)]


def test_free_memory_of_each_gpu_is_the_drivers_own_figure(nvml: FakeNvml) -> None:
    nvml.gpus, nvml.used, nvml.free = [{}, {}], [0, None], [5, 7]
    source = NvmlSource()
    assert source.free() == [5.0, None]
    nvml.fails = 15
    with pytest.raises(MemoryReadError):
        source.free()
