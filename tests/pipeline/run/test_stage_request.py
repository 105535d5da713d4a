"""The request of an attempt: the recipe with places in its own folder, and a cap below the guard's."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.guard_limits import GuardLimits
from pipeline.core.settings import StageSettings
from pipeline.core.types import WeightRef
from pipeline.processes.stage_process import StageCommands
from pipeline.run.stage_request import attempt_folder, memory_cap_gb, stage_job, stage_request
from stages.contract.recipe import Recipe
from stages.contract.requests import ExternalRequest, InitRequest, TrainRequest
from tests.pipeline.project import project, settings_of

__all__ = ["project"]

WEIGHT = WeightRef("model", "model/base.dat", "0" * 64)
COMMANDS = StageCommands(train=("train",), init=("init",), external=("external",))


def requested(root: Path, **own: Any) -> tuple[StageSettings, Any, tuple[str, ...]]:
    settings = settings_of(root, {"G": {"data": ["data/one.tsv"], **own}})
    stage = settings.stages[0]
    job = stage_job(stage, attempt_folder(settings, "run", 0, "G", 2), COMMANDS)
    return stage, stage_request(stage, stage.recipe, WEIGHT, job, settings.guard, "old.dat"), job.command


def test_a_training_gets_its_recipe_and_places_in_its_folder(project: Path) -> None:
    stage, request, command = requested(project, lr=2e-4)
    assert isinstance(request, TrainRequest) and command == ("train",)
    same = {f.name: getattr(request, f.name) for f in fields(Recipe) if f.name != "memory_limit_gb"}
    assert same == {name: getattr(stage.recipe, name) for name in same} and same["lr"] == 2e-4
    folder = "artifacts/runs/run/01-G-attempt2"
    assert (request.output_weight, request.checkpoints) == (f"{folder}/weight.dat", f"{folder}/checkpoints")
    assert (request.input_weight, request.model_dir, request.resume) == (WEIGHT.path, "model", "old.dat")


def test_another_trainer_gets_the_same_request_with_its_command(project: Path) -> None:
    _, request, command = requested(project, trainer={"kind": "external", "command": "x {output}"})
    assert isinstance(request, ExternalRequest) and command == ("external",)
    assert request.command == "x {output}" and request.train.output_weight.endswith("/weight.dat")


def test_a_model_from_nothing_is_made_in_a_folder_of_its_own(project: Path) -> None:
    _, request, command = requested(project, kind="init", config="model/config.json", seed=3)
    assert isinstance(request, InitRequest) and command == ("init",)
    assert request.seed == 3 and request.output_weight == f"{request.output_dir}/weight.dat"


@pytest.mark.parametrize("limit", [0.5, 6.0, 108.0])
def test_the_cap_lies_below_the_guards_limit_unless_the_recipe_has_its_own(
    project: Path, limit: float
) -> None:
    assert limit / 2 <= memory_cap_gb(GuardLimits(gpu_limit_gb=limit)) < limit
    assert requested(project)[1].memory_limit_gb == memory_cap_gb(GuardLimits(gpu_limit_gb=6))
    assert requested(project, memory_limit_gb=1.5)[1].memory_limit_gb == 1.5
