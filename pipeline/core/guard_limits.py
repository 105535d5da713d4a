"""The limits of a guarded command, apart from the other settings, so that the guard starts without those."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stages.contract.fields import setting

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

    gpu_limit_gb: float = setting(unit="GB", above=0.0)
    """GPU memory of the process tree where there is a GPU, else its resident memory."""
    gpu_over_secs: float = setting(0.0, unit="s", at_least=0.0)
    """How long it may stay over the limit; 0: killed at the first sample that is over."""
    gpu_poll_secs: float = setting(0.05, unit="s", above=0.0)
    """Time between samples."""
    min_available_gb: float | None = setting(None, unit="GB", at_least=0.0)
    """Least free memory of the machine (Linux: MemAvailable); 0: no such limit. None: `UNIFIED_FLOOR_GB` of
    `pipeline.guard.memory_readers` where CPU and GPU share one memory, since a machine without free memory
    freezes; no limit elsewhere.
    """
    time_limit: float = setting(0.0, unit="s", at_least=0.0)
    """0: none."""
    grace_secs: float = setting(150.0, unit="s", at_least=0.0)
    """Time between the first signal and SIGKILL; a stage finishes its step, which took up to 133 s."""
    allow_blind: bool = False
    """Run although memory cannot be read."""
    reader: ReaderKind = ReaderKind.AUTO

    @property
    def limit_mib(self) -> float:
        """`gpu_limit_gb` in MiB."""
        return self.gpu_limit_gb * MIB_PER_GB
