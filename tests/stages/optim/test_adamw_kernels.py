"""The arguments of the update kernels' launches. `test_fused_adamw.py` runs them on a GPU."""

from __future__ import annotations

from tests.stages.kernel_launches import check_launches


def test_every_launch_binds_every_parameter_once() -> None:
    sizes = {"self._betas()": 5, "self._many": 2}
    constants = {"CLIP", "STOCHASTIC"}
    launchers = ["stages/optim/fused_adamw.py"]
    assert check_launches("stages/optim/adamw_kernels.py", launchers, sizes, constants) == 2
