"""Who a process is beyond its number: numbers are given out again, identities are not."""

from __future__ import annotations

from pathlib import Path


def process_identity(pid: int) -> str:
    """What tells this process from any other that ever had its number; empty if there is no such living process.

    On Linux: boot id, process id namespace and start time in clock ticks, none of which a change of the clock
    moves. Elsewhere: the creation time. A zombie does not live.
    """
    proc = Path("/proc") / str(pid)
    try:
        # Fields after the name, which is in parentheses and may hold anything: state is the first, start time
        # the 20th.
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
    """Whether the process that had this number and identity still lives. A new process with an old number is
    another one.
    """
    return bool(identity) and process_identity(pid) == identity
