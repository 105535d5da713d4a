"""The memory cap of a stage: an allocation beyond it is reported with its size and phase."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stages.contract.events import ExitCode, StageResult
from stages.contract.serial import dump, load_file
from stages.process.memory_cap import failed_allocation
from tests.conftest import TinyModel
from tests.stages.train.test_stage import _request

ROOT = Path(__file__).parents[3]


@pytest.mark.fault(
    "an allocation beyond the memory cap of the process", how="RLIMIT_DATA of 0.7 GB, a batch of 20,000"
)
def test_too_much_memory_is_over_limit_with_size_and_phase(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, batch_size=20_000, memory_limit_gb=0.7, threads=1)
    (tmp_path / "request.json").write_text(dump(request), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "stages.train", str(tmp_path / "request.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == ExitCode.OVER_LIMIT, done.stderr
    result = load_file(StageResult, Path(request.result))
    assert result.exit_code == ExitCode.OVER_LIMIT
    assert result.details["allocation_bytes"] > 1 << 20
    assert result.details["phase"] in ("batch_ready", "zero_grad_done")
    assert f"{result.details['allocation_bytes'] / 2**20:.1f} MiB" in result.error
    assert str(result.details["phase"]) in result.error
    assert not Path(request.output_weight).exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB",
            20 << 30,
        ),
        ("CUDA out of memory. Tried to allocate 512.00 MiB.", 512 << 20),
        (
            "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 1234567 bytes.",
            1234567,
        ),
        ("std::bad_alloc", 0),
    ],
)
def test_sizes_are_read_from_the_errors_of_libraries(text: str, size: int) -> None:
    assert failed_allocation(RuntimeError(text)) == (None if text.startswith("CUDA") else size)
    assert failed_allocation(torch.OutOfMemoryError(text)) == size


def test_other_errors_are_other_errors() -> None:
    assert failed_allocation(MemoryError()) == 0
    assert failed_allocation(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
    assert failed_allocation(ValueError("x")) is None


@pytest.mark.fault(
    "an allocation beyond the memory cap of the process", how="the CUDA allocator's cap of 0.5 GB"
)
@pytest.mark.gpu
def test_the_allocators_cap_is_over_limit_with_size_and_phase(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, batch_size=200_000, memory_limit_gb=0.5, device="cuda")
    (tmp_path / "request.json").write_text(dump(request), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "stages.train", str(tmp_path / "request.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == ExitCode.OVER_LIMIT, done.stderr
    result = load_file(StageResult, Path(request.result))
    assert result.details["allocation_bytes"] > 1 << 20
    assert result.details["phase"]
