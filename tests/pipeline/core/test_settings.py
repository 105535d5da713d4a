"""Settings: their defaults are within bounds, what follows from them, and what their module loads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from pipeline.core.settings import (
    GuardLimits,
    LadderSettings,
    ModelSettings,
    ProbeSettings,
    Settings,
    SettingsError,
    StageKind,
    StageSettings,
    TrackingSettings,
    TrainerKind,
    TrainerSettings,
)
from pipeline.core.thresholds import Thresholds
from stages.contract.events import Phase
from stages.contract.fields import bound_problems
from stages.contract.recipe import DataSource, Recipe

STAGE = StageSettings(
    "A",
    StageKind.TRAIN,
    Recipe(data=[DataSource("a.tsv")]),
    ProbeSettings([], Thresholds()),
    LadderSettings(),
)
EXTERNAL = TrainerSettings(TrainerKind.EXTERNAL, "program {output}")


@pytest.mark.parametrize(
    "settings", [GuardLimits(1.0), TrackingSettings(), ProbeSettings([], Thresholds()), LadderSettings()]
)
def test_defaults_are_within_their_bounds(settings: object) -> None:
    assert bound_problems(settings) == []


@pytest.mark.parametrize(
    ("stop_after", "trainer", "measures"),
    [
        ("", TrainerSettings(), False),
        (Phase.EXPORTED, TrainerSettings(), False),
        (Phase.BATCH_READY, TrainerSettings(), True),
        (Phase.BATCH_READY, EXTERNAL, False),
    ],
)
def test_a_stage_measures_if_it_stops_before_its_weight(
    stop_after: str, trainer: TrainerSettings, measures: bool
) -> None:
    stage = replace(STAGE, recipe=replace(STAGE.recipe, stop_after=stop_after), trainer=trainer)
    assert stage.measures is measures


def test_only_a_training_stage_has_an_external_trainer() -> None:
    assert replace(STAGE, trainer=EXTERNAL).external
    assert not replace(STAGE, trainer=EXTERNAL, kind=StageKind.INIT).external
    assert not STAGE.external


def test_a_run_begins_from_nothing_if_its_first_stage_makes_the_model() -> None:
    init = replace(STAGE, name="init", kind=StageKind.INIT)
    model = ModelSettings("m", "model", "base.dat")
    for stages, from_nothing in (([init, STAGE], True), ([STAGE], False)):
        settings = Settings(
            "x", 0, False, True, "artifacts", model, GuardLimits(1), TrackingSettings(), stages
        )
        assert settings.from_nothing is from_nothing


def test_an_error_lists_all_its_problems() -> None:
    error = SettingsError(["a: 1: too small", "b: 2: too large"])
    assert str(error).splitlines() == [
        "2 problem(s) in the settings",
        "  - a: 1: too small",
        "  - b: 2: too large",
    ]


def test_the_module_loads_no_behaviour() -> None:
    """Whoever needs a type loads types only."""
    code = "import sys, pipeline.core.settings; print(*(m for m in sys.modules if m.startswith('pipeline.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ("core", "core.guard_limits", "core.settings", "core.thresholds", "core.types")
    assert set(done.stdout.split()) == {f"pipeline.{name}" for name in names}
