"""Offloading is refused with its reason, by the request and by the stage that gets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.contract.events import ExitCode
from stages.contract.offload import OFFLOAD_REASONS, UNIFIED_REASON, offload_problems
from stages.contract.recipe import DataSource
from stages.contract.requests import TrainRequest
from stages.contract.serial import dump
from stages.train.stage import main
from tests.conftest import TinyModel
from tests.recipes import PLAIN

KEYS = ("offload_weights", "offload_optimizer", "offload_gradients", "offload_activations")


def request(tiny: TinyModel, folder: Path, **changes: bool) -> TrainRequest:
    places = {key: str(folder / key) for key in ("output_weight", "events", "result")}
    data = [DataSource(str(tiny.rows))]
    model = {"model_dir": str(tiny.folder), "input_weight": str(tiny.weight), "device": "cpu"}
    return TrainRequest(data=data, steps=1, lr=1e-4, **(PLAIN | model | places | changes))


def test_every_key_is_known_and_off() -> None:
    assert (
        set(KEYS)
        == set(OFFLOAD_REASONS)
        == {key for key in TrainRequest.__dataclass_fields__ if key.startswith("offload")}
    )


@pytest.mark.parametrize("key", KEYS)
def test_each_is_refused_with_the_reason_that_holds(tiny: TinyModel, tmp_path: Path, key: str) -> None:
    asked = request(tiny, tmp_path, **{key: True})
    (unknown,), (shared,), (apart,) = (
        asked.check(),
        offload_problems(asked, True),
        offload_problems(asked, False),
    )
    assert all(text.startswith(f"{key}: true: refused: ") for text in (unknown, shared, apart))
    assert UNIFIED_REASON in shared and "backward" not in shared
    assert OFFLOAD_REASONS[key] in apart and "backward" in apart and "GB10" not in apart
    assert OFFLOAD_REASONS[key] in unknown and "GB10" in unknown
    assert request(tiny, tmp_path).check() == []


def test_the_stage_refuses_before_anything_is_loaded(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "request.json"
    file.write_text(
        dump(request(tiny, tmp_path, offload_optimizer=True, offload_gradients=True)), encoding="utf-8"
    )
    assert main([str(file)]) == ExitCode.BAD_INPUT
    err = capsys.readouterr().err
    assert "offload_optimizer" in err and "offload_gradients" in err
    assert [path.name for path in tmp_path.iterdir()] == ["request.json"]
