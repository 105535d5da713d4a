"""Requests: their values are checked, they survive JSON, and checkpoints are found by their names."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from stages.contract.fields import setting_of
from stages.contract.recipe import DataSource, Recipe
from stages.contract.requests import (
    INIT_SETTINGS,
    ExternalRequest,
    InitRequest,
    ProbeRequest,
    TrainRequest,
    checkpoint_path,
    checkpoint_step,
    newest_checkpoint,
)
from stages.contract.serial import dump, load_text

PATHS = {"events": "events.jsonl", "result": "result.json"}
TRAIN = TrainRequest(
    data=[DataSource("a.tsv")], model_dir="m", input_weight="i.dat", output_weight="o.dat", **PATHS
)
EXTERNAL = ExternalRequest(TRAIN, "program {data} {output}")
PROBE = ProbeRequest("m", "w.dat", ["p.tsv"], "answers.jsonl", **PATHS)
INIT = InitRequest("config.json", [DataSource("a.tsv")], "out", "out/w.dat", **PATHS)


@pytest.mark.parametrize("request_", [TRAIN, EXTERNAL, PROBE, INIT], ids=lambda r: type(r).__name__)
def test_a_good_request_has_no_problems_and_comes_back_from_its_text(request_: Any) -> None:
    assert request_.check() == []
    assert load_text(type(request_), dump(request_), "here") == request_


def test_a_request_is_a_recipe_with_paths() -> None:
    own = {f.name for f in fields(TrainRequest)} - {f.name for f in fields(Recipe)}
    assert own == {"model_dir", "input_weight", "output_weight", "events", "result", "checkpoints", "resume"}
    written = {f.name for f in fields(TrainRequest) if setting_of(f).written}
    assert written == {"output_weight", "events", "result", "checkpoints"}
    assert INIT_SETTINGS == ("data", "seed", "scale_rule")


@pytest.mark.parametrize(
    ("request_", "changes", "says"),
    [
        (TRAIN, {"steps": -1}, "steps: -1: must be 0 or more"),
        (TRAIN, {"checkpoint_every": 3}, "checkpoint_every: 3: needs checkpoints"),
        (TRAIN, {"output_weight": "i.dat"}, "output_weight: i.dat: is the input weight"),
        (EXTERNAL, {"train": replace(TRAIN, lr=-1.0)}, "lr: -1.0: must be a finite number, 0 or more"),
        (EXTERNAL, {"command": "program {data}"}, "command: 'program {data}': has no {output}"),
        (PROBE, {"probes": []}, "probes: empty"),
        (PROBE, {"top_p": 0.0}, "top_p: 0.0: must lie in (0, 1]"),
        (INIT, {"data": []}, "data: empty"),
        (INIT, {"seed": -1}, "seed: -1: must be 0 or more"),
    ],
)
def test_impossible_values_are_named(request_: Any, changes: dict[str, Any], says: str) -> None:
    (problem,) = replace(request_, **changes).check()
    assert problem.startswith(says)


def test_an_external_request_writes_where_its_training_does() -> None:
    assert (EXTERNAL.events, EXTERNAL.result) == (TRAIN.events, TRAIN.result)


def test_the_newest_checkpoint_is_the_one_of_the_latest_step(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "none") is None
    for step in (9, 10, 100):
        checkpoint_path(tmp_path, step).touch()
    for name in ("step-00000200.dat.tmp", "step-300.dat", ".step-00000400.dat", "step-00000500.txt"):
        (tmp_path / name).touch()
        assert checkpoint_step(tmp_path / name) == -1
    newest = newest_checkpoint(tmp_path)
    assert newest == checkpoint_path(tmp_path, 100) and checkpoint_step(newest) == 100
