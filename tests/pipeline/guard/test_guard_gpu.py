"""The guard and its readers against a real GPU. They need pytest, torch, psutil and nvidia-ml-py, and nothing
else.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.core.guard_limits import ReaderKind
from pipeline.guard.gpu import GpuSource, NvmlSource, SmiSource
from pipeline.guard.memory_readers import GpuReader, in_container, open_reader
from pipeline.guard.report import Reason
from tests.pipeline.guard.guarded import Guarded, alive, folder, pids_in, python, wait_for

__all__ = ["folder"]

pytestmark = pytest.mark.gpu

MIB = 1 << 20
BLOCK_MIB = 2048
NEAR_MIB = 64
"""What a driver may book besides a block: its own tables, in pages of 2 MiB."""
HOLDS = f"""
import sys, torch
held = [torch.zeros(1, device="cuda")]
torch.cuda.synchronize()
for _ in range(2):
    print("ready", flush=True)
    sys.stdin.readline()
    held.append(torch.ones({BLOCK_MIB * MIB}, dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
"""
"""A process with a CUDA context that takes one block more for each line it is given."""


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """The process, its context made, no block taken yet."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=pipe, stdout=pipe, text=True)
    try:
        _answer(process)
        yield process
    finally:
        process.kill()
        process.wait()


def _answer(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def _one_more(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    _answer(process)


def _of_processes(source: GpuSource, pid: int) -> float | None:
    """MiB that the driver counts for the process; for all it names where its process ids are not ours; None
    if it names none.
    """
    known = [
        mib for number, mib in source.processes() if mib is not None and (number == pid or in_container())
    ]
    return sum(known) if known else None


@pytest.mark.parametrize("kind", [ReaderKind.NVML, ReaderKind.SMI])
def test_a_block_of_known_size_is_read_as_that_size(kind: ReaderKind, holder: subprocess.Popen[str]) -> None:
    """Of the process tree, of the driver's list of processes, and of the GPUs in all."""
    source = NvmlSource() if kind is ReaderKind.NVML else SmiSource()
    reader = GpuReader(kind, source)
    first, first_listed = reader.read([holder.pid]), _of_processes(source, holder.pid)
    _one_more(holder)
    second, second_listed = reader.read([holder.pid]), _of_processes(source, holder.pid)
    print(f"{reader.describe()}\n{first}\n{second}\nunified: {reader.unified}")
    print(f"listed: {first_listed} → {second_listed} MiB")
    assert second.tree_mib - first.tree_mib == pytest.approx(BLOCK_MIB, abs=NEAR_MIB)
    if not reader.unified:
        assert second.total_mib - first.total_mib == pytest.approx(BLOCK_MIB, abs=NEAR_MIB)
    if not in_container():
        assert first_listed is not None, "the driver names no process"
    if first_listed is not None:
        assert second_listed is not None
        assert second_listed - first_listed == pytest.approx(BLOCK_MIB, abs=NEAR_MIB)
    assert reader.read([]).tree_mib == 0 or in_container()
    reader.close()


def test_both_readers_agree(holder: subprocess.Popen[str]) -> None:
    nvml, smi = GpuReader(ReaderKind.NVML, NvmlSource()), GpuReader(ReaderKind.SMI, SmiSource())
    _one_more(holder)
    one, other = nvml.read([holder.pid]), smi.read([holder.pid])
    assert one.tree_mib == pytest.approx(other.tree_mib, abs=NEAR_MIB)
    assert one.total_mib == pytest.approx(other.total_mib, abs=NEAR_MIB)


def test_nvml_is_what_is_taken_by_itself() -> None:
    reader = open_reader()
    assert reader.kind is ReaderKind.NVML
    began = time.perf_counter()
    for _ in range(20):
        reader.read([])
    assert (time.perf_counter() - began) / 20 < 0.05, "a poll must fit into the rhythm of 50 ms"
    reader.close()


ON_THE_GPU = """
import ctypes
cuda = ctypes.CDLL('libcuda.so.1')
context, block = ctypes.c_void_p(), ctypes.c_uint64()
def check(code):
    if code:
        sys.exit(f'CUDA error {code}')
if os.fork() == 0:
    os.setsid()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    Path(sys.argv[1], f'{os.getpid()}.pid').touch()
    for _ in range(12):
        check(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(512 << 20)))
        time.sleep(0.2)
time.sleep(60)
"""
IN_TORCH = """
import os, sys, time
from pathlib import Path
import torch
Path(sys.argv[1], f"{os.getpid()}.pid").touch()
held = []
for _ in range(12):
    held.append(torch.ones(512 << 20, dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
    time.sleep(0.2)
time.sleep(60)
"""


@pytest.mark.fault(
    "a CUDA process over the limit",
    how="blocks of 512 MiB until the guard acts at 3 GB, by NVML and by nvidia-smi",
)
@pytest.mark.parametrize("reader", ["auto", "nvidia-smi"])
@pytest.mark.parametrize("program", ["grandchild in a new session", "torch"])
def test_a_cuda_process_over_the_limit_is_killed(
    tmp_path: Path, folder: Path, program: str, reader: str
) -> None:
    """With the driver's own figures; the memory is free again afterwards."""
    own = open_reader()
    before = own.read([]).total_mib
    command = (
        [sys.executable, "-c", IN_TORCH, str(folder)] if program == "torch" else python(ON_THE_GPU, folder)
    )
    options = ["--reader", reader, "--gpu-limit-gb", "3", "--gpu-poll-secs", "0.05"]
    exit_code, report, said = Guarded(tmp_path, command, *options).end(90)
    figures = report.figures
    share = 100 * figures.cpu_seconds / report.seconds
    print(said, f"own cost: {share:.2f} % of a core over {figures.samples} samples")
    assert exit_code == 124 and report.reason is Reason.MEMORY and not report.blind
    assert report.reader == ("nvml" if reader == "auto" else reader)
    # A question to nvidia-smi takes as long as the program does to start; one to NVML about a millisecond.
    assert 3 * 1024 < figures.peak_mib < (4.5 if reader == "auto" else 6.5) * 1024
    assert figures.breach_to_kill_ms is not None and figures.breach_to_kill_ms < (
        100 if reader == "auto" else 5000
    )
    assert not [pid for pid in pids_in(folder, 1) if alive(pid)]
    wait_for(lambda: own.read([]).total_mib < before + 256, "the memory free again")
    own.close()
