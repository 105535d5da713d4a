"""What a training would find: the GPUs that CUDA shows, and the memory that is free for it."""

from __future__ import annotations

import pytest

from pipeline.guard import machine as machine_module
from pipeline.guard.gpu import MemoryReadError
from pipeline.guard.machine import detect_machine


class FakeSource:
    """A driver that reports these MiB."""

    free_mib: tuple[float | None, ...] = ()
    used_mib: float | None = 0.0

    def free(self) -> list[float | None]:
        return list(self.free_mib)

    def used(self) -> float | None:
        return self.used_mib

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, (1.0, 2.0)),
        ("1", (2.0,)),
        ("1,0", (2.0, 1.0)),
        ("", ()),
        ("-1", ()),
        ("0,7,1", (1.0,)),
        ("GPU-ab12", (None,)),
    ],
)
def test_the_visible_gpus_are_those_that_cuda_would_show(
    visible: str | None, gpus: tuple[float | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        machine_module, "NvmlSource", type("Source", (FakeSource,), {"free_mib": (1024.0, 2048.0)})
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    seen = detect_machine()
    assert seen.gpus == gpus and not seen.unified
    assert seen.trains_on("auto") == ("cuda" if gpus else "cpu")
    assert seen.free_gb("auto") == (gpus[0] if gpus else seen.available_gb)
    assert seen.free_gb("cuda:1") == (gpus[1] if len(gpus) > 1 else None)


def test_a_silent_driver_is_a_gpu_of_unknown_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise MemoryReadError("no driver")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine_module, "NvmlSource", broken)
    monkeypatch.setattr(
        machine_module, "SmiSource", type("Source", (FakeSource,), {"free_mib": (None,), "used_mib": None})
    )
    assert detect_machine().unified and detect_machine().free_gb("auto") == pytest.approx(
        detect_machine().available_gb, rel=0.2
    )
    monkeypatch.setattr(machine_module, "SmiSource", broken)
    monkeypatch.setattr(machine_module, "gpu_device_files", lambda: ["/dev/nvidia0"])
    assert detect_machine().gpus == (None,)
    monkeypatch.setattr(machine_module, "gpu_device_files", lambda: [])
    assert detect_machine().gpus == ()
