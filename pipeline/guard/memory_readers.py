"""Readers of memory, in MiB: of a process tree, of the whole device, and what the machine has left.

They are tried in this order:
1. NVML (`nvidia-ml-py`): the driver's figure for each process on each GPU, and the total used on the GPUs.
   Where CPU and GPU share one memory (GB10), the driver answers "Not Supported" for the total. Used memory is
   then MemTotal - MemAvailable, and MemAvailable has a limit of its own (`UNIFIED_FLOOR_GB`).
2. `nvidia-smi`, where NVML cannot be used. It gives the same figures in tens of milliseconds instead of one.
3. Without a GPU: resident memory (RSS), summed over the tree. Pages that processes share are counted once for
   each of them, so the sum is an upper bound, high for forked workers.
The driver may count memory without naming any process of the tree: in a container it knows other process ids,
and some drivers hide the figures of processes. Then the growth of used memory since the guard's start is used
instead. That includes the growth of other programs, and the guard says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.core.guard_limits import ReaderKind
from pipeline.guard.gpu import MIB, GpuSource, MemoryReadError, NvmlSource, SmiSource
from pipeline.guard.process_tree import LINUX, read_small

UNIFIED_FLOOR_GB = 4.0
"""The least free memory where CPU and GPU share one memory, unless `min_available_gb` says otherwise."""
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the first pid namespace, fixed by the Linux kernel (include/linux/proc_ns.h)."""


@dataclass(frozen=True)
class MemoryReading:
    """Memory at one moment, in MiB."""

    tree_mib: float
    """Of the watched processes."""
    total_mib: float
    """Used by all processes: on the GPUs, or on the machine if it has none or shares its memory with them."""
    available_mib: float
    """Free memory of the machine without swapping (Linux: MemAvailable)."""


class MemoryReader(Protocol):
    """A way to read memory."""

    kind: ReaderKind
    unified: bool
    """Whether CPU and GPU share one memory."""

    def describe(self) -> str:
        """What is read, and from where, in a few words."""

    def read(self, pids: Collection[int]) -> MemoryReading:
        """One reading for these processes; those that have ended count nothing.

        Raises:
            MemoryReadError: if the system does not answer.
        """

    def close(self) -> None:
        """Releases the driver."""


def machine_memory() -> tuple[float, float]:
    """(total, available) of the machine in MiB.

    Raises:
        MemoryReadError: if the system does not answer.
    """
    if not LINUX:
        import psutil

        figures = psutil.virtual_memory()
        return figures.total / MIB, figures.available / MIB
    try:
        text = read_small("/proc/meminfo")
        return _kib(text, b"MemTotal:") / 1024.0, _kib(text, b"MemAvailable:") / 1024.0
    except (OSError, ValueError) as error:
        raise MemoryReadError(f"/proc/meminfo: {error}") from error


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
        return (
            f"resident memory of the process tree, read from {source}"
            " (RSS summed; shared pages count for each process)"
        )

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
                raise MemoryReadError(f"/proc/{pid}/statm: {error}") from error
        import psutil

        try:
            return psutil.Process(pid).memory_info().rss / MIB
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            return 0.0
        except psutil.Error as error:
            raise MemoryReadError(f"process {pid}: {error}") from error


class GpuReader:
    """GPU memory of the tree, from NVML or `nvidia-smi`; see the top of the module for missing figures."""

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
            text += (
                "; in a container: until the driver names a process of the tree, the growth of used memory"
                " stands for it"
            )
        return text

    def read(self, pids: Collection[int]) -> MemoryReading:
        """See `MemoryReader`."""
        total, available = machine_memory()
        used = None if self.unified else self._source.used()
        used = total - available if used is None else used
        ours = [mib for pid, mib in self._source.processes() if pid in pids]
        known = [mib for mib in ours if mib is not None]
        tree = sum(known)
        if len(known) < len(ours) or (self._hidden and not ours):
            tree = max(tree, used - self._used_at_start)
        return MemoryReading(tree, used, available)

    def close(self) -> None:
        """See `MemoryReader`."""
        self._source.close()


def in_container() -> bool:
    """Whether the driver knows this process by another id, because it runs in a pid namespace of its own."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino != INITIAL_PID_NAMESPACE
    except OSError:
        return False


def gpu_device_files() -> list[str]:
    """Device files of an NVIDIA driver; empty on a machine without one."""
    return sorted(
        str(path)
        for path in Path("/dev").glob("nvidia*")
        if path.name[6:].isdigit() or path.name == "nvidiactl"
    )


def open_reader(kind: ReaderKind = ReaderKind.AUTO) -> MemoryReader:
    """The reader of that kind; for `AUTO` the first that works.

    Raises:
        MemoryReadError: if none works, or if there is a GPU that cannot be read: resident memory would say
            little about what the command takes there.
    """
    readers: dict[ReaderKind, Callable[[], MemoryReader]] = {
        ReaderKind.NVML: lambda: GpuReader(ReaderKind.NVML, NvmlSource()),
        ReaderKind.SMI: lambda: GpuReader(ReaderKind.SMI, SmiSource()),
        ReaderKind.RESIDENT: ResidentReader,
    }
    if kind is not ReaderKind.AUTO:
        return readers[kind]()
    tried: list[str] = []
    for gpu_reader in (ReaderKind.NVML, ReaderKind.SMI):
        try:
            return readers[gpu_reader]()
        except MemoryReadError as error:
            tried.append(str(error))
    if files := gpu_device_files():
        raise MemoryReadError(
            f"this machine has a GPU ({', '.join(files)}) that does not answer: {'; '.join(tried)}. Repair"
            " the driver (does nvidia-smi work?), or choose --reader resident for a command that does not"
            " use it"
        )
    return ResidentReader()
