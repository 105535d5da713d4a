"""What NVIDIA's driver says of GPU memory: through NVML (`nvidia-ml-py`), or through `nvidia-smi` where NVML
cannot be used.
"""

from __future__ import annotations

import subprocess
from typing import Any, Protocol

MIB = 1024.0 * 1024.0
SMI_TIMEOUT_SECS = 5.0


class MemoryUnreadable(RuntimeError):
    """Memory cannot be read; the message says what was tried and what to do."""


class GpuSource(Protocol):
    """A way to ask the driver. Every method raises `MemoryUnreadable` if it does not answer."""

    def listed(self) -> list[tuple[int, float | None]]:
        """(process id, MiB or None where the driver does not say), one for each process and GPU."""

    def used(self) -> float | None:
        """MiB used on all GPUs together; None where the driver does not say, as on unified memory."""

    def free(self) -> list[float | None]:
        """MiB free on each GPU; None where the driver does not say, as on unified memory."""

    def close(self) -> None:
        """Frees what the source holds."""


class NvmlSource:
    """NVML on every GPU of the machine (NVML API reference, device queries)."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise MemoryUnreadable(f"NVML: {error}; install nvidia-ml-py") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except (pynvml.NVMLError, OSError) as error:
            raise MemoryUnreadable(f"NVML: {error}") from error
        if not self._handles:
            raise MemoryUnreadable("NVML: the driver lists no GPU")

    def listed(self) -> list[tuple[int, float | None]]:
        """See `GpuSource`."""
        try:
            return [
                (process.pid, None if process.usedGpuMemory is None else process.usedGpuMemory / MIB)
                for handle in self._handles
                for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            ]
        except self._nvml.NVMLError as error:
            raise MemoryUnreadable(f"NVML, memory of processes: {error}") from error

    def used(self) -> float | None:
        """See `GpuSource`."""
        try:
            return sum(self._memory(handle).used for handle in self._handles) / MIB
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise MemoryUnreadable(f"NVML, memory of the device: {error}") from error

    def free(self) -> list[float | None]:
        """See `GpuSource`."""
        return [self._free(handle) for handle in self._handles]

    def _free(self, handle: Any) -> float | None:
        try:
            return self._memory(handle).free / MIB
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise MemoryUnreadable(f"NVML, memory of the device: {error}") from error

    def _memory(self, handle: Any) -> Any:
        """Used and free as `nvidia-smi` counts them: without the driver's own reserve, hundreds of MiB, which
        only version 2 leaves out.
        """
        nvml = self._nvml
        try:
            return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except nvml.NVMLError as error:
            if error.value not in (
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            ):
                raise
            return nvml.nvmlDeviceGetMemoryInfo(handle)  # an older driver

    def close(self) -> None:
        """See `GpuSource`."""
        self._nvml.nvmlShutdown()


class SmiSource:
    """The CSV output of `nvidia-smi`, asked anew each time."""

    def listed(self) -> list[tuple[int, float | None]]:
        """See `GpuSource`."""
        rows = self._ask("--query-compute-apps=pid,used_gpu_memory")
        try:
            return [(int(pid), _figure(mib)) for pid, mib in rows]
        except ValueError as error:
            raise MemoryUnreadable(f"nvidia-smi, memory of processes: {rows!r}: {error}") from error

    def used(self) -> float | None:
        """See `GpuSource`."""
        rows = self._ask("--query-gpu=memory.used")
        try:
            figures = [_figure(used) for (used,) in rows]
        except ValueError as error:
            raise MemoryUnreadable(f"nvidia-smi, memory of the device: {rows!r}: {error}") from error
        if not figures:
            raise MemoryUnreadable("nvidia-smi lists no GPU")
        told = [figure for figure in figures if figure is not None]
        return sum(told) if len(told) == len(figures) else None

    def free(self) -> list[float | None]:
        """See `GpuSource`."""
        rows = self._ask("--query-gpu=memory.free")
        try:
            return [_figure(free) for (free,) in rows]
        except ValueError as error:
            raise MemoryUnreadable(f"nvidia-smi, memory of the device: {rows!r}: {error}") from error

    def close(self) -> None:
        """See `GpuSource`."""

    def _ask(self, query: str) -> list[list[str]]:
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SMI_TIMEOUT_SECS,
                check=True,
            )
        except FileNotFoundError:
            raise MemoryUnreadable("nvidia-smi: not found on PATH") from None
        except (OSError, subprocess.SubprocessError) as error:
            raise MemoryUnreadable(f"nvidia-smi: {error}") from error
        return [
            [cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()
        ]


def _figure(cell: str) -> float | None:
    """MiB, or None for `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`."""
    return None if cell.startswith("[") or cell == "N/A" else float(cell)
