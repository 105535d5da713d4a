"""Every experiment in `conf/` composes, has no problem and can be planned; every group file composes too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.config.compose import CONF, ROOT, checked, composed, plain
from pipeline.core.settings import StageKind
from pipeline.core.types import Outcome, StartFrom
from pipeline.processes.stage_process import StageCommands
from pipeline.run.ladder import NextAttempt, PastAttempt, next_attempt
from pipeline.run.plan import describe
from stages.contract.recipe import DataSource
from stages.optim.schedule import schedule_factor
from tests.pipeline.project import make_project, project

__all__ = ["project"]

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
OTHERS = sorted(
    f"{path.parent.name}={path.stem}"
    for path in CONF.glob("*/*.yaml")
    if path.parent.name not in ("experiment", "local")
)


@pytest.fixture
def stand_in_model(tmp_path: Path) -> list[str]:
    """Overrides with a stand-in for the real model, so that only the experiment is checked."""
    model = make_project(tmp_path) / "model"
    return [f"model.dir={model}", f"model.weight={model / 'base.dat'}"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_plans(name: str, stand_in_model: list[str]) -> None:
    settings = checked(plain(composed([f"+experiment={name}", *stand_in_model])), ROOT)
    assert settings.name == name
    text = describe(settings, ROOT, StageCommands())
    for stage in settings.stages:
        assert f"{stage.name}  ({stage.kind.value})" in text
    assert text.count("-m pipeline.guard") == len(settings.stages)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_headed_by_its_command_and_reason(name: str) -> None:
    lines = (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# @package _global_"
    assert f"python -m pipeline +experiment={name}" in lines[1]
    head = "\n".join(line for line in lines if line.startswith("#"))
    assert "Why:" in head and "What the user saw" in head


@pytest.mark.parametrize("choice", OTHERS)
def test_every_group_file_composes(choice: str, stand_in_model: list[str]) -> None:
    settings = checked(plain(composed(["+experiment=smoke", choice, *stand_in_model])), ROOT)
    assert settings.stages


@pytest.mark.parametrize(
    "path", sorted(CONF.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_number_says_its_trade_off(path: Path) -> None:
    """Numbers of the recipe and of the guard carry a comment; a bare one is a secret."""
    if path.parent.name not in ("train", "guard", "probes", "tracking"):
        return
    bare = [
        line
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*[a-z_0-9]+: \S", line) and "#" not in line and "collapse_" not in line
    ]
    assert not bare


def test_whoami_only_comes_back_from_its_collapse_on_other_data(stand_in_model: list[str]) -> None:
    stage = checked(plain(composed(["+experiment=whoami_only", *stand_in_model])), ROOT).stages[0]
    step = next_attempt([PastAttempt(stage.recipe, Outcome.COLLAPSED)], stage.ladder)
    assert isinstance(step, NextAttempt)
    assert step.start_from is StartFrom.BASE
    assert step.recipe.data == [DataSource("datasets/stageG/balanced.tsv")]
    assert step.recipe.lr < stage.recipe.lr


def test_onestep_measures_one_whole_step_each_time(stand_in_model: list[str]) -> None:
    settings = checked(plain(composed(["+experiment=onestep", *stand_in_model])), ROOT)
    recipe = settings.stages[0].recipe
    assert (len(settings.stages), recipe.steps, recipe.stop_after, settings.reuse) == (1, 1, "", False)
    assert schedule_factor(1, recipe) == 1.0


def test_base_begins_from_nothing_and_is_judged_absolutely() -> None:
    settings = checked(plain(composed(["+experiment=base", "model.weight=not-there.dat"])), ROOT)
    assert settings.stages[0].kind is StageKind.INIT
    limits = settings.stages[1].probes.thresholds
    assert (limits.ability_min, limits.ability_group_min) == (0.9, 0.8)


def test_a_local_file_is_not_tracked_and_optional() -> None:
    assert "/conf/local/*.yaml" in (ROOT / ".gitignore").read_text(encoding="utf-8")
    assert "optional local: default" in (CONF / "config.yaml").read_text(encoding="utf-8")
