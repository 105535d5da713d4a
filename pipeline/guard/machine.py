"""The machine as a training would find it now: GPUs, free memory, and whether both share one memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pipeline.core.guard_limits import MIB_PER_GB
from pipeline.guard.gpu import GpuSource, MemoryReadError, NvmlSource, SmiSource
from pipeline.guard.memory_readers import gpu_device_files, machine_memory


@dataclass(frozen=True)
class Machine:
    """The machine at one moment. GB are 1024 MiB."""

    gpus: tuple[float | None, ...] = ()
    """GB free on each GPU that a stage may use, in CUDA's order; None where the driver does not report it."""
    available_gb: float | None = None
    """Free memory of the machine without swapping (Linux: MemAvailable); None if it cannot be read."""
    unified: bool = False
    """Whether CPU and GPU share one memory."""

    def trains_on(self, device: str) -> str:
        """`cpu` or `cuda`, for a stage whose `device` setting is `auto`, `cpu`, `cuda` or `cuda:N`."""
        return "cpu" if device == "cpu" or (device == "auto" and not self.gpus) else "cuda"

    def free_gb(self, device: str) -> float | None:
        """GB free for a stage with that `device` setting; None if it is not known."""
        if self.unified or self.trains_on(device) == "cpu":
            return self.available_gb
        _, _, number = device.partition(":")
        index = int(number) if number.isdigit() else 0
        return self.gpus[index] if index < len(self.gpus) else None


def detect_machine() -> Machine:
    """Asks the driver and the system once. A GPU that does not answer counts as one of unknown memory."""
    try:
        available: float | None = machine_memory()[1] / MIB_PER_GB
    except MemoryReadError:
        available = None
    for source in (NvmlSource, SmiSource):
        try:
            return _with_gpus(source(), available)
        except MemoryReadError:
            continue
    return Machine(_visible((None,) if gpu_device_files() else ()), available)


def _with_gpus(source: GpuSource, available: float | None) -> Machine:
    try:
        free = [None if mib is None else mib / MIB_PER_GB for mib in source.free()]
        return Machine(_visible(tuple(free)), available, unified=source.used() is None)
    finally:
        source.close()


def _visible(free: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES shows, in its order; of unknown memory if named by UUID."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return free
    chosen: list[float | None] = []
    for word in filter(None, visible.split(",")):
        if word.strip().lstrip("-").isdigit():
            if not 0 <= int(word) < len(free):
                break  # CUDA stops at the first that does not exist
            chosen.append(free[int(word)])
        else:
            chosen.append(None)
    return tuple(chosen)
