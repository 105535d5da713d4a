"""What the guard reads: memory of a process tree, of the device, and what the machine has left. All in MiB.

Readers, in the order in which they are tried:
1. NVML (`nvidia-ml-py`): what the driver counts for each process on each GPU, and what is used on the GPUs in
   all. Where CPU and GPU share one memory (GB10), the driver answers "Not Supported" for the whole; used is
   then MemTotal - MemAvailable, and what is left of MemAvailable is watched by a floor of its own
   (`UNIFIED_FLOOR_GB`).
2. `nvidia-smi`, where NVML itself cannot be used. It says the same, in tens of milliseconds instead of one.
3. Without a GPU: resident memory (RSS) of the tree, summed. Pages that processes share are counted once for
   each of them, so the sum is an upper bound: forked workers weigh more than they cost. Nothing that is
   resident goes uncounted.
The driver may name no process of ours while it does count memory: in a container it knows other process ids,
and some drivers hide per-process figures. The growth of used memory since the guard's start stands in for the
figure then; it includes what others take in the meantime, and the guard says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.core.settings import ReaderKind
from pipeline.guard.gpu import MIB, GpuSource, MemoryUnreadable, NvmlSource, SmiSource
from pipeline.guard.process_tree import LINUX, read_small

__all__ = [
    "GpuReader",
    "MemoryReader",
    "MemoryReading",
    "MemoryUnreadable",
    "ResidentReader",
    "open_reader",
]

UNIFIED_FLOOR_GB = 4.0
"""The floor of free memory on a machine where CPU and GPU share one memory, unless the user names another."""
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the first pid namespace, fixed by the Linux kernel (include/linux/proc_ns.h)."""


@dataclass(frozen=True)
class MemoryReading:
    """One look at memory, in MiB."""

    tree_mib: float
    """Of the watched processes."""
    total_mib: float
    """Used in all: on the GPUs, or on the machine where it has no memory of its own for them."""
    available_mib: float
    """What the machine can still give without swapping."""


class MemoryReader(Protocol):
    """A way to read memory."""

    kind: ReaderKind
    unified: bool
    """Whether CPU and GPU share one memory."""

    def describe(self) -> str:
        """What is watched, and how, in a few words."""

    def read(self, pids: Collection[int]) -> MemoryReading:
        """One reading for these processes; those that are gone count nothing.

        Raises:
            MemoryUnreadable: if the system does not answer.
        """

    def close(self) -> None:
        """Frees what the reader holds."""


def machine_memory() -> tuple[float, float]:
    """(total, available) of the machine in MiB.

    Raises:
        MemoryUnreadable: if the system does not say.
    """
    if not LINUX:
        import psutil

        figures = psutil.virtual_memory()
        return figures.total / MIB, figures.available / MIB
    try:
        text = read_small("/proc/meminfo")
        return _kib(text, b"MemTotal:") / 1024.0, _kib(text, b"MemAvailable:") / 1024.0
    except (OSError, ValueError) as error:
        raise MemoryUnreadable(f"/proc/meminfo: {error}") from error


def _kib(text: bytes, key: bytes) -> int:
    return int(text[text.index(key) + len(key) :].split(None, 1)[0])


class ResidentReader:
    """Resident memory of the processes, from /proc/<pid>/statm (Linux) or psutil (macOS)."""

    kind = ReaderKind.RESIDENT
    unified = False

    def __init__(self) -> None:
        self._page_mib = os.sysconf("SC_PAGE_SIZE") / MIB
        self.read([os.getpid()])

    def describe(self) -> str:
        """See `MemoryReader`."""
        source = "/proc" if LINUX else "psutil"
        return f"resident memory of the process tree, read from {source} (RSS summed; shared pages count for each process)"

    def read(self, pids: Collection[int]) -> MemoryReading:
        """See `MemoryReader`."""
        tree = sum(self._resident(pid) for pid in pids)
        total, available = machine_memory()
        return MemoryReading(tree, total - available, available)

    def close(self) -> None:
        """See `MemoryReader`."""

    def _resident(self, pid: int) -> float:
        if LINUX:
            try:
                return int(read_small(f"/proc/{pid}/statm").split(None, 2)[1]) * self._page_mib
            except (FileNotFoundError, ProcessLookupError, IndexError):
                return 0.0  # ended since it was listed
            except OSError as error:
                raise MemoryUnreadable(f"/proc/{pid}/statm: {error}") from error
        import psutil

        try:
            return psutil.Process(pid).memory_info().rss / MIB
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            return 0.0
        except psutil.Error as error:
            raise MemoryUnreadable(f"process {pid}: {error}") from error


class GpuReader:
    """GPU memory of the tree, from NVML or `nvidia-smi`, with what stands in where the driver is silent."""

    def __init__(self, kind: ReaderKind, source: GpuSource) -> None:
        self.kind = kind
        self._source = source
        self._hidden = in_container()
        self._used_at_start = 0.0
        self.unified = source.used() is None
        self._used_at_start = self.read([]).total_mib

    def describe(self) -> str:
        """See `MemoryReader`."""
        text = f"GPU memory of the process tree, read from {self.kind.value}"
        if self.unified:
            text += "; CPU and GPU share one memory here, so MemAvailable is watched too"
        if self._hidden:
            text += "; in a container: until the driver names a process of the tree, the growth of used memory stands for it"
        return text

    def read(self, pids: Collection[int]) -> MemoryReading:
        """See `MemoryReader`."""
        total, available = machine_memory()
        used = None if self.unified else self._source.used()
        used = total - available if used is None else used
        ours = [mib for pid, mib in self._source.listed() if pid in pids]
        told = [mib for mib in ours if mib is not None]
        tree = sum(told)
        if len(told) < len(ours) or (self._hidden and not ours):
            tree = max(tree, used - self._used_at_start)
        return MemoryReading(tree, used, available)

    def close(self) -> None:
        """See `MemoryReader`."""
        self._source.close()


def in_container() -> bool:
    """Whether this process's ids are not the driver's: it runs in a pid namespace of its own."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE
    except OSError:
        return False


def signs_of_gpu() -> list[str]:
    """Device files that an NVIDIA driver makes; empty on a machine without one."""
    return sorted(
        str(path)
        for path in Path("/dev").glob("nvidia*")
        if path.name[6:].isdigit() or path.name == "nvidiactl"
    )


def open_reader(kind: ReaderKind = ReaderKind.AUTO) -> MemoryReader:
    """The reader that was asked for, or the first that works.

    Raises:
        MemoryUnreadable: if none works. A machine that shows signs of a GPU which cannot be read counts as
            unreadable: its resident memory would say little about what the command takes.
    """
    makers: dict[ReaderKind, Callable[[], MemoryReader]] = {
        ReaderKind.NVML: lambda: GpuReader(ReaderKind.NVML, NvmlSource()),
        ReaderKind.SMI: lambda: GpuReader(ReaderKind.SMI, SmiSource()),
        ReaderKind.RESIDENT: ResidentReader,
    }
    if kind is not ReaderKind.AUTO:
        return makers[kind]()
    tried: list[str] = []
    for first in (ReaderKind.NVML, ReaderKind.SMI):
        try:
            return makers[first]()
        except MemoryUnreadable as error:
            tried.append(str(error))
    if signs := signs_of_gpu():
        raise MemoryUnreadable(
            f"this machine has a GPU ({', '.join(signs)}) that does not answer: {'; '.join(tried)}. Repair the driver "
            "(does nvidia-smi work?), or choose --reader resident for a command that does not use it"
        )
    return ResidentReader()
