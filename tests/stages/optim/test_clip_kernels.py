"""The arguments of the clipping kernels' launches. `test_fused_clip.py` runs them on a GPU."""

from __future__ import annotations

from tests.stages.kernel_launches import check_launches


def test_every_launch_binds_every_parameter_once() -> None:
    launchers = ["stages/optim/fused_clip.py"]
    assert check_launches("stages/optim/clip_kernels.py", launchers, {"common": 5}) == 3
