"""The memory cap of a stage's own process: an allocation beyond it fails with an error that names its size,
before the guard has to kill the process.

On a GPU it is the CUDA allocator's cap. On a CPU it is RLIMIT_DATA (Linux 4.7 and later, setrlimit(2)), which
limits private writable memory; RLIMIT_AS would count mapped files and reserved addresses too.
"""

from __future__ import annotations

import re
import sys

import torch

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"(?:[Tt]ried to allocate|Unable to allocate) ([\d.]+) (bytes|KiB|MiB|GiB)")


def cap_memory(limit_gb: float, device: torch.device) -> None:
    """Caps this process's memory on the device, if the system supports that.

    Args:
        limit_gb: GB of 1024 MiB; 0: no cap.
        device: a GPU, or the CPU.
    """
    if not limit_gb:
        return
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_gb * 2**30 / total), device)
    elif sys.platform == "linux":
        import resource  # not on every platform

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = int(limit_gb * 2**30)
        resource.setrlimit(
            resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
        )


def failed_allocation(error: BaseException) -> int | None:
    """The bytes of the allocation whose failure `error` reports; 0 if not named; None for other errors."""
    text = str(error)
    match = _SIZE.search(text)
    if (
        isinstance(error, (torch.OutOfMemoryError, MemoryError))
        or "DefaultCPUAllocator" in text
        or "std::bad_alloc" in text
    ):
        return round(float(match[1]) * _UNITS[match[2]]) if match else 0
    return None
