"""From breach to SIGKILL, and what the guard itself costs."""

from __future__ import annotations

import math
import mmap
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.pipeline.guard.guarded import LIMIT_GB, ROOT, Guarded, python

BREACH = """
import mmap, struct, time
page = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 16)
limit = int(float(sys.argv[2]) * (1 << 20))
resident = lambda: int(Path('/proc/self/statm').read_text().split()[1]) * mmap.PAGESIZE
held = [bytearray(b'1') * (limit - resident() - (30 << 20))]
time.sleep(0.05)
while resident() < limit:
    held.append(bytearray(b'1') * (1 << 20))
page[:8] = struct.pack('q', time.monotonic_ns())
while True:
    page[8:] = struct.pack('q', time.monotonic_ns())
"""


def survived_ms(tmp_path: Path, trial: int) -> tuple[float, float]:
    """(how long a process lived after it was over the limit by its own clock, sample to SIGKILL by the
    guard's), in ms.
    """
    place = tmp_path / f"trial{trial}"
    place.mkdir()
    stamps = place / "stamps"
    stamps.write_bytes(bytes(16))
    code = (
        BREACH
        if trial % 2
        else f"if os.fork() == 0:\n    os.setsid()\n{textwrap.indent(BREACH, '    ')}\ntime.sleep(60)"
    )
    exit_code, report, _ = Guarded(place, python(code, stamps, LIMIT_GB * 1024)).end()
    assert exit_code == 124 and report.figures.breach_to_kill_ms is not None
    with stamps.open("rb") as file, mmap.mmap(file.fileno(), 16, access=mmap.ACCESS_READ) as page:
        over, last = struct.unpack("qq", page[:])
    return max(
        0.0, (last - over) / 1e6
    ), report.figures.breach_to_kill_ms  # both stamps 0: killed by the poll that saw it first


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def check_latency(tmp_path: Path, trials: int) -> str:
    lived, killed = zip(*(survived_ms(tmp_path, trial) for trial in range(trials)), strict=True)
    text = f"{trials} trials, 10 ms polls; ms at 50 %, 99 %, most: "
    for name, values in (("sample to SIGKILL", list(killed)), ("life after the breach", list(lived))):
        text += f"{name} {percentile(values, 0.5):.1f} {percentile(values, 0.99):.1f} {max(values):.1f}; "
    assert percentile(list(killed), 0.99) <= 100, text
    assert percentile(list(lived), 0.99) <= 100, text
    return text


@pytest.mark.fault(
    "memory grows past the limit at full speed",
    how="10 ms polls; SIGKILL within 100 ms at the 99th percentile",
    trials=20,
)
def test_latency(tmp_path: Path) -> None:
    check_latency(tmp_path, 20)


@pytest.mark.fault(
    "memory grows past the limit at full speed",
    how="10 ms polls; SIGKILL within 100 ms at the 99th percentile",
    trials=200,
)
@pytest.mark.slow
def test_latency_over_200_trials(tmp_path: Path) -> None:
    print(check_latency(tmp_path, 200))


YARDSTICK = """
import os, time
from pipeline.guard.process_tree import read_small
me = os.getpid()
began = time.process_time()
for _ in range(400):
    time.sleep(0.05)
    for name in ("/proc/loadavg", "/proc/meminfo", *[f"/proc/{me}/statm"] * 6):
        read_small(name)
print(time.process_time() - began)
"""


@pytest.mark.slow
def test_own_cost(tmp_path: Path) -> None:
    """Under 1 % of a core at 50 ms polls, with a tree of five, while other processes come and go.

    Where the machine is slow or shared at this moment, bare reads of the same files at the same rhythm cost
    more too: then at most 3 times those.
    """
    others = subprocess.Popen(["sh", "-c", "while :; do sleep 0.1; done"])
    bare = subprocess.Popen([sys.executable, "-c", YARDSTICK], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        command = ["sh", "-c", "sleep 20 & sleep 20 & sleep 20 & sleep 20"]
        _, report, _ = Guarded(tmp_path, command, "--gpu-poll-secs", "0.05").end(60)
        bare_seconds = float(bare.communicate(timeout=60)[0])
    finally:
        others.kill()
        others.wait()
    own, share = report.figures.cpu_seconds, report.figures.cpu_seconds / report.seconds
    print(f"own cost at 50 ms polls: {100 * share:.2f} % of a core, {own / bare_seconds:.2f} × bare reads")
    assert report.figures.samples > 350 and (share < 0.01 or own < 3 * bare_seconds)
