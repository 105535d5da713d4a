"""The limits of a guarded command, apart from the other settings, so that the guard starts without those."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

MIB_PER_GB = 1024.0
"""One GB of a limit is 1024 MiB, as the drivers' own tools count; a "128 GB" machine has about 119."""


class ReaderKind(StrEnum):
    """The ways to read memory; `AUTO` takes the first that works."""

    AUTO = "auto"
    NVML = "nvml"
    SMI = "nvidia-smi"
    RESIDENT = "resident"


@dataclass(frozen=True)
class GuardLimits:
    """What a command may use, and how closely it is watched. GB are 1024 MiB."""

    gpu_limit_gb: float
    """More than 0. GPU memory of the process tree where there is a GPU, else its resident memory."""
    gpu_over_secs: float = 0.0
    """How long it may stay over the limit; 0: killed at the first sample that is over."""
    gpu_poll_secs: float = 0.05
    """Seconds between samples, more than 0."""
    min_available_gb: float | None = None
    """Least free memory of the machine (Linux: MemAvailable); 0: no such limit. None: `UNIFIED_FLOOR_GB` of
    `pipeline.guard.memory_readers` where CPU and GPU share one memory, since a machine without free memory
    freezes; no limit elsewhere.
    """
    time_limit: float = 0.0
    """Seconds; 0: none."""
    grace_secs: float = 150.0
    """Seconds between the first signal and SIGKILL; a stage finishes its step, which took up to 133 s."""
    allow_blind: bool = False
    """Run although memory cannot be read."""
    reader: ReaderKind = ReaderKind.AUTO

    def check(self) -> list[str]:
        """All impossible values, each as `key: value: remedy`."""
        problems: list[str] = []
        for key in ("gpu_limit_gb", "gpu_poll_secs"):
            value = getattr(self, key)
            if not math.isfinite(value) or value <= 0:
                problems.append(f"{key}: {value}: must be a finite number, more than 0")
        for key in ("gpu_over_secs", "min_available_gb", "time_limit", "grace_secs"):
            value = getattr(self, key)
            if value is not None and (not math.isfinite(value) or value < 0):
                problems.append(f"{key}: {value}: must be a finite number, 0 or more")
        return problems

    @property
    def limit_mib(self) -> float:
        """`gpu_limit_gb` in MiB."""
        return self.gpu_limit_gb * MIB_PER_GB
