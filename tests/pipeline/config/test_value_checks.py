"""Values that have the right type and still cannot work: each is named with its place and a remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.config.value_checks import (
    ladder_problems,
    probe_problems,
    threshold_problems,
    tracking_problems,
    trainer_problems,
    usable_rungs,
)
from pipeline.core.settings import (
    Cause,
    LadderSettings,
    ProbeSettings,
    Rung,
    TrackingSettings,
    TrainerKind,
    TrainerSettings,
)
from pipeline.core.thresholds import Thresholds
from pipeline.core.types import Outcome
from stages.contract.recipe import DataSource, Recipe

RECIPE = Recipe(data=[DataSource("a.tsv")])


def external(command: str) -> TrainerSettings:
    return TrainerSettings(TrainerKind.EXTERNAL, command)


def test_every_problem_of_a_ladder_is_named_with_its_place() -> None:
    ladder = LadderSettings(
        0,
        [
            Rung(Outcome.PASSED, {"lr": 1.0}, "w"),
            Rung(Outcome.UNDERFIT, {}, " "),
            Rung(Outcome.COLLAPSED, {"lr": "*half", "step": "*2"}, "w", repeat=True),
            Rung(Outcome.COLLAPSED, {"data": "*2"}, "w", cause=Cause.NON_FINITE),
            Rung(Outcome.BROKEN, {"steps": 0.5, "lr": 1, "gradient_checkpointing": 1}, "w"),
        ],
    )
    problems = ladder_problems(ladder, RECIPE)
    starts = [
        "max_attempts: 0",
        "rungs[0].after",
        "rungs[1].change: empty",
        "rungs[1].why",
        "rungs[2].repeat",
        "rungs[2].change.lr: '*half'",
        "rungs[2].change.step",
        "rungs[3].change.data",
        "rungs[4].change.steps: 0.5",
        "rungs[4].change.gradient_checkpointing: 1",
    ]
    assert len(problems) == len(starts)
    assert all(problem.startswith(start) for problem, start in zip(problems, starts, strict=True))
    assert "did you mean 'steps'?" in problems[6]


@pytest.mark.parametrize(
    ("first", "second", "hidden"),
    [
        ((Outcome.COLLAPSED, Cause.ANY), (Outcome.COLLAPSED, Cause.ANY), True),
        ((Outcome.BROKEN, Cause.ANY), (Outcome.BROKEN, Cause.NON_FINITE), True),
        ((Outcome.BROKEN, Cause.OTHER), (Outcome.BROKEN, Cause.NON_FINITE), False),
        ((Outcome.COLLAPSED, Cause.ANY), (Outcome.UNDERFIT, Cause.ANY), False),
    ],
)
def test_a_rung_that_repeats_must_hide_no_other(
    first: tuple[Outcome, Cause], second: tuple[Outcome, Cause], hidden: bool
) -> None:
    rungs = [Rung(after, {"lr": "*0.5"}, "w", repeat=True, cause=cause) for after, cause in (first, second)]
    problems = ladder_problems(LadderSettings(rungs=rungs), RECIPE)
    assert [problem.split(":")[0] for problem in problems] == ["rungs[0].repeat"] * hidden


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("x {ouput}", "did you mean 'output'"),
        ("x", "has no {output}"),
        ("x '{output}", "quotation"),
        (" ", "command: empty"),
    ],
)
def test_a_command_that_cannot_work_is_named(command: str, says: str) -> None:
    problems = trainer_problems(external(command))
    assert any(says in problem for problem in problems)
    assert all(problem.startswith("command: ") for problem in problems)
    assert trainer_problems(TrainerSettings(command=command)) == [], "an internal trainer has no command"


def test_an_external_trainer_uses_only_rungs_that_it_can_see() -> None:
    changes: list[dict[str, Any]] = [
        {"lr": "*0.5"},
        {"steps": "*2"},
        {"data": ["b.tsv"]},
        {"lr": 1, "eps": 1},
    ]
    ladder = LadderSettings(rungs=[Rung(Outcome.COLLAPSED, change, "w") for change in changes])
    assert usable_rungs(ladder, TrainerSettings()) == ladder
    seen = usable_rungs(ladder, external("x {output} --lr {lr}")).rungs
    assert [rung.change for rung in seen] == [changes[0], changes[2], changes[3]]


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        (Thresholds(leak_max=0.5), "collapse_leak"),
        (Thresholds(ability_ratio_min=0.4), "collapse_ability"),
        (Thresholds(repetition_max=0.2), "collapse_repetition"),
        (Thresholds(no_end_of_turn_max=0.4), "collapse_no_end_of_turn"),
    ],
)
def test_a_collapse_limit_on_the_wrong_side_is_a_problem(limits: Thresholds, key: str) -> None:
    assert [problem.split(":")[0] for problem in threshold_problems(limits)] == [key]


def test_all_problems_of_limits_are_reported_together() -> None:
    limits = Thresholds(
        leak_max=1.5, ability_ratio_min=float("nan"), ability_group_slack=-1, collapse_repetition=-0.1
    )
    named = {problem.split(":")[0] for problem in threshold_problems(limits)}
    assert {"leak_max", "ability_ratio_min", "ability_group_slack", "collapse_repetition"} <= named
    probes = ProbeSettings([], limits, max_tokens=0)
    named_probes = {problem.split(":")[0] for problem in probe_problems(probes)}
    assert named_probes == {"max_tokens", *(f"thresholds.{name}" for name in named)}


def test_none_switches_a_limit_off_without_a_problem() -> None:
    assert threshold_problems(Thresholds()) == []
    off = Thresholds(leak_max=None, repetition_max=None, ability_ratio_min=None, identity_train_min=None)
    assert threshold_problems(off) == []


def test_impossible_settings_of_mlflow_are_named() -> None:
    problems = tracking_problems(TrackingSettings(uri="mlruns", trace_points=1, close_wait_secs=-1))
    assert sorted(problem.split(":")[0] for problem in problems) == ["close_wait_secs", "trace_points", "uri"]


@pytest.mark.parametrize(
    "uri", ["", "sqlite:///a.db", "http://host:5000", "https://host", "postgresql://x/y"]
)
def test_good_addresses_of_mlflow_are_no_problem(uri: str) -> None:
    assert tracking_problems(replace(TrackingSettings(), uri=uri)) == []
