"""The identity of a process: its number is used again after its end, its identity never is."""

from __future__ import annotations

from pathlib import Path


def process_identity(pid: int) -> str:
    """A text that no other process with the same number ever has; empty if no such process is alive.

    On Linux: boot id, process id namespace and start time in clock ticks, which do not depend on the wall
    clock. Elsewhere: the creation time. A zombie is not alive.
    """
    proc = Path("/proc") / str(pid)
    try:
        # The name is in parentheses and may contain anything. Of the fields after it, the state is the first
        # and the start time the 20th.
        fields = (proc / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return "" if fields[0] in "ZX" else f"{boot}/{Path('/proc/self/ns/pid').readlink()}/{fields[19]}"
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
    import psutil

    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.3f}"
    except psutil.Error:
        return ""


def is_alive(pid: int, identity: str) -> bool:
    """Whether the process with this number and this identity is still alive."""
    return bool(identity) and process_identity(pid) == identity
