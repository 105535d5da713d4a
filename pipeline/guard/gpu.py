"""GPU memory as NVIDIA's driver reports it: through NVML (`nvidia-ml-py`), or through `nvidia-smi`."""

from __future__ import annotations

import subprocess
from typing import Any, Protocol

MIB = 1024.0 * 1024.0
SMI_TIMEOUT_SECS = 5.0


class MemoryReadError(RuntimeError):
    """Memory cannot be read; the message says what was tried and what to do."""


class GpuSource(Protocol):
    """A way to ask the driver. Every method raises `MemoryReadError` if it does not answer.

    None in place of a figure: the driver does not report it, as for used and free on unified memory.
    """

    def processes(self) -> list[tuple[int, float | None]]:
        """(process id, MiB used), one entry for each process on each GPU."""

    def used(self) -> float | None:
        """MiB used on all GPUs together."""

    def free(self) -> list[float | None]:
        """MiB free on each GPU."""

    def close(self) -> None:
        """Releases the driver."""


class NvmlSource:
    """NVML on every GPU of the machine (NVML API reference, device queries)."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise MemoryReadError(f"NVML: {error}; install nvidia-ml-py") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except (pynvml.NVMLError, OSError) as error:
            raise MemoryReadError(f"NVML: {error}") from error
        if not self._handles:
            raise MemoryReadError("NVML: the driver lists no GPU")

    def processes(self) -> list[tuple[int, float | None]]:
        """See `GpuSource`."""
        try:
            return [
                (process.pid, None if process.usedGpuMemory is None else process.usedGpuMemory / MIB)
                for handle in self._handles
                for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            ]
        except self._nvml.NVMLError as error:
            raise MemoryReadError(f"NVML, memory of processes: {error}") from error

    def used(self) -> float | None:
        """See `GpuSource`."""
        try:
            return sum(self._memory(handle).used for handle in self._handles) / MIB
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise MemoryReadError(f"NVML, memory of the device: {error}") from error

    def free(self) -> list[float | None]:
        """See `GpuSource`."""
        return [self._free(handle) for handle in self._handles]

    def _free(self, handle: Any) -> float | None:
        try:
            return self._memory(handle).free / MIB
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise MemoryReadError(f"NVML, memory of the device: {error}") from error

    def _memory(self, handle: Any) -> Any:
        """Used and free as `nvidia-smi` counts them: without the driver's own reserve of hundreds of MiB.

        Only version 2 of the query leaves that out.
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
    """The CSV output of `nvidia-smi`, run anew for each query."""

    def processes(self) -> list[tuple[int, float | None]]:
        """See `GpuSource`."""
        rows = self._query("--query-compute-apps=pid,used_gpu_memory")
        try:
            return [(int(pid), _mib(mib)) for pid, mib in rows]
        except ValueError as error:
            raise MemoryReadError(f"nvidia-smi, memory of processes: {rows!r}: {error}") from error

    def used(self) -> float | None:
        """See `GpuSource`."""
        rows = self._query("--query-gpu=memory.used")
        try:
            used = [_mib(cell) for (cell,) in rows]
        except ValueError as error:
            raise MemoryReadError(f"nvidia-smi, memory of the device: {rows!r}: {error}") from error
        if not used:
            raise MemoryReadError("nvidia-smi lists no GPU")
        known = [mib for mib in used if mib is not None]
        return sum(known) if len(known) == len(used) else None

    def free(self) -> list[float | None]:
        """See `GpuSource`."""
        rows = self._query("--query-gpu=memory.free")
        try:
            return [_mib(cell) for (cell,) in rows]
        except ValueError as error:
            raise MemoryReadError(f"nvidia-smi, memory of the device: {rows!r}: {error}") from error

    def close(self) -> None:
        """See `GpuSource`."""

    def _query(self, query: str) -> list[list[str]]:
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SMI_TIMEOUT_SECS,
                check=True,
            )
        except FileNotFoundError:
            raise MemoryReadError("nvidia-smi: not found on PATH") from None
        except (OSError, subprocess.SubprocessError) as error:
            raise MemoryReadError(f"nvidia-smi: {error}") from error
        return [
            [cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines() if line.strip()
        ]


def _mib(cell: str) -> float | None:
    """MiB, or None for `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`."""
    return None if cell.startswith("[") or cell == "N/A" else float(cell)
