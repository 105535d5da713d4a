"""What a training would find on this machine now: a GPU or none, one memory or two, and how much of it is
free.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pipeline.guard.gpu import GpuSource, MemoryUnreadable, NvmlSource, SmiSource
from pipeline.guard.memory_readers import machine_memory, signs_of_gpu

GIB_MIB = 1024.0


@dataclass(frozen=True)
class Machine:
    """One look at the machine. GB are 1024 MiB."""

    gpus: tuple[float | None, ...] = ()
    """GB free on each GPU that a stage may use, in CUDA's order; None where the driver does not say."""
    available_gb: float | None = None
    """What the machine can still give without swapping; None if it does not say."""
    unified: bool = False
    """Whether CPU and GPU share one memory."""

    def trains_on(self, device: str) -> str:
        """`cpu` or `cuda`: where a stage with that `device` setting (`auto`, `cpu`, `cuda`, `cuda:N`)
        computes.
        """
        return "cpu" if device == "cpu" or (device == "auto" and not self.gpus) else "cuda"

    def free_gb(self, device: str) -> float | None:
        """GB free for a stage with that `device` setting; None if nobody says."""
        if self.unified or self.trains_on(device) == "cpu":
            return self.available_gb
        _, _, number = device.partition(":")
        index = int(number) if number.isdigit() else 0
        return self.gpus[index] if index < len(self.gpus) else None


def detect_machine() -> Machine:
    """Asks the driver and the system, once. A GPU that does not answer counts as one of unknown memory."""
    try:
        available: float | None = machine_memory()[1] / GIB_MIB
    except MemoryUnreadable:
        available = None
    for source in (NvmlSource, SmiSource):
        try:
            return _with_gpus(source(), available)
        except MemoryUnreadable:
            continue
    return Machine(_visible((None,) if signs_of_gpu() else ()), available)


def _with_gpus(source: GpuSource, available: float | None) -> Machine:
    try:
        free = [None if mib is None else mib / GIB_MIB for mib in source.free()]
        return Machine(_visible(tuple(free)), available, unified=source.used() is None)
    finally:
        source.close()


def _visible(free: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order; GPUs named otherwise than by number are of
    unknown memory.
    """
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return free
    chosen: list[float | None] = []
    for word in filter(None, asked.split(",")):
        if word.strip().lstrip("-").isdigit():
            if not 0 <= int(word) < len(free):
                break  # CUDA stops at the first that does not exist
            chosen.append(free[int(word)])
        else:
            chosen.append(None)
    return tuple(chosen)
