"""The ladder: what it promises for any ladder and any history, and what the shipped ladders do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from pipeline.config.value_checks import ladder_problems
from pipeline.core.recipe_change import changes_between
from pipeline.core.settings import Cause, LadderSettings, Rung
from pipeline.core.types import Change, Outcome, StartFrom
from pipeline.run.ladder import LadderExhausted, NextAttempt, PastAttempt, next_attempt
from stages.contract.recipe import DataSource, Recipe
from stages.contract.serial import load

LADDERS = Path(__file__).parents[3] / "conf" / "ladder"
FAILURES = [Outcome.UNDERFIT, Outcome.COLLAPSED, Outcome.OVER_LIMIT, Outcome.BROKEN]
RECIPE = Recipe(data=[DataSource("datasets/whoami.tsv")], lr=1e-3, steps=100, batch_size=16)


def shipped(name: str) -> LadderSettings:
    return load(LadderSettings, OmegaConf.to_container(OmegaConf.load(LADDERS / name)), name)


def climb(
    settings: LadderSettings,
    outcomes: list[Outcome],
    recipe: Recipe = RECIPE,
    cause: Cause = Cause.OTHER,
) -> list[Any]:
    """Runs a stage whose attempts end as listed: the attempts after the first, and the reason if the ladder
    ends.
    """
    history, steps = [], []
    tried = PastAttempt(recipe, outcomes[0], cause=cause)
    for following in [*outcomes[1:], None]:
        history.append(tried)
        step = next_attempt(history, settings)
        steps.append(step)
        if isinstance(step, LadderExhausted) or following is None:
            break
        tried = PastAttempt(step.recipe, following, step.rung, step.start_from, cause)
    return steps


rungs = st.builds(
    Rung,
    after=st.sampled_from(FAILURES),
    change=st.dictionaries(
        st.sampled_from(["lr", "steps", "batch_size", "grad_accum"]),
        st.sampled_from(["*0.5", "*2", "*1", "+20", "+-3", "*1e300", 8, 16]),
        min_size=1,
        max_size=3,
    ),
    why=st.just("because"),
    start_from=st.sampled_from([None, StartFrom.INPUT, StartFrom.BASE]),
    repeat=st.booleans(),
    cause=st.sampled_from(list(Cause)),
)


@given(
    st.builds(LadderSettings, max_attempts=st.integers(1, 12), rungs=st.lists(rungs, max_size=8)),
    st.lists(st.tuples(st.sampled_from(FAILURES), st.sampled_from(list(Cause))), min_size=12, max_size=12),
)
def test_every_retry_is_new_bounded_and_rightly_started(
    settings: LadderSettings, ends: list[tuple[Outcome, Cause]]
) -> None:
    recipe = replace(RECIPE, steps=4, batch_size=2)
    history = [PastAttempt(recipe, *ends[0][:1], cause=ends[0][1])]
    used: list[int] = []
    while isinstance(step := next_attempt(history, settings), NextAttempt):
        last, rung = history[-1], settings.rungs[step.rung]
        assert all(step.recipe != tried.recipe for tried in history)
        assert step.changes == changes_between(last.recipe, step.recipe) != ()
        assert rung.after is last.outcome
        behind = settings.rungs[step.rung + 1 :]
        is_last = not any(r.after is rung.after and r.cause in (Cause.ANY, last.cause) for r in behind)
        assert step.rung not in used or (rung.repeat and is_last)
        lost = last.outcome in (Outcome.COLLAPSED, Outcome.BROKEN)
        assert step.start_from is (rung.start_from or (StartFrom.BASE if lost else last.start_from))
        assert isinstance(step.recipe.lr, float) and step.recipe.lr < float("inf")
        assert all(
            isinstance(getattr(step.recipe, key), int) and getattr(step.recipe, key) >= 1
            for key in ("steps", "batch_size", "grad_accum")
        )
        used.append(step.rung)
        outcome, cause = ends[len(history)]
        history.append(PastAttempt(step.recipe, outcome, step.rung, step.start_from, cause))
        assert len(history) <= settings.max_attempts
    assert step.reason


def test_arithmetic_is_exact_to_the_reader_and_keeps_whole_numbers() -> None:
    rung = Rung(
        Outcome.UNDERFIT, {"lr": "*0.3", "steps": "*0.3", "batch_size": "*0.01", "grad_accum": "+20"}, "why"
    )
    step = climb(
        LadderSettings(2, [rung]),
        [Outcome.UNDERFIT],
        replace(RECIPE, steps=11),
    )[0]
    assert step.recipe == replace(RECIPE, lr=0.0003, steps=4, batch_size=1, grad_accum=21)
    rung = Rung(Outcome.UNDERFIT, {"lr": "*3", "steps": "*1.1"}, "why")
    step = climb(LadderSettings(2, [rung]), [Outcome.UNDERFIT], replace(RECIPE, lr=0.1))[0]
    assert step.recipe == replace(
        RECIPE, lr=0.3, steps=110
    )  # not 0.30000000000000004, not ceil(110.00000000000001)


@pytest.mark.parametrize("change", [{"lr": "*1e308"}, {"steps": "*1e308"}])
def test_arithmetic_that_leaves_the_numbers_is_passed_over(change: dict[str, Any]) -> None:
    rungs = [Rung(Outcome.UNDERFIT, change, "too far"), Rung(Outcome.UNDERFIT, {"lr": "*0.5"}, "near")]
    assert climb(LadderSettings(3, rungs), [Outcome.UNDERFIT], replace(RECIPE, lr=100.0))[0].why == "near"


def test_a_rate_written_as_a_whole_number_is_halved_as_a_rate() -> None:
    settings = LadderSettings(3, [Rung(Outcome.UNDERFIT, {"clip_norm": "*0.5", "lr": 1}, "w", repeat=True)])
    recipe = load(Recipe, {"data": [], "lr": 0.1, "clip_norm": 1}, "")
    assert ladder_problems(settings, recipe) == []
    steps = climb(settings, [Outcome.UNDERFIT] * 2, recipe)
    assert [step.recipe.clip_norm for step in steps] == [0.5, 0.25]
    assert all(isinstance(step.recipe.lr, float) for step in steps)


def test_only_the_last_rung_repeats() -> None:
    rungs = [
        Rung(Outcome.COLLAPSED, {"lr": "*0.5"}, "first", repeat=True),
        Rung(Outcome.COLLAPSED, {"lr": "*0.1"}, "second"),
    ]
    steps = climb(LadderSettings(9, rungs), [Outcome.COLLAPSED] * 9)
    assert [getattr(step, "why", None) for step in steps] == ["first", "second", None]


def test_rungs_of_an_outcome_are_used_in_order_each_once_and_the_last_may_repeat() -> None:
    rungs = [
        Rung(Outcome.COLLAPSED, {"lr": "*0.5"}, "first"),
        Rung(Outcome.UNDERFIT, {"steps": "*2"}, "other"),
        Rung(Outcome.COLLAPSED, {"lr": "*0.1"}, "second", repeat=True),
    ]
    steps = climb(LadderSettings(5, rungs), [Outcome.COLLAPSED] * 9)
    assert [step.why for step in steps[:-1]] == ["first", "second", "second", "second"]
    assert steps[-1] == LadderExhausted("5 of at most 5 attempts are used up")
    once = climb(LadderSettings(5, rungs[:2]), [Outcome.COLLAPSED] * 9)
    assert [type(step) for step in once] == [NextAttempt, LadderExhausted]
    assert "used" in once[-1].reason


def test_a_rung_that_leads_back_is_passed_over() -> None:
    rungs = [
        Rung(Outcome.COLLAPSED, {"lr": "*0.5"}, "down"),
        Rung(Outcome.UNDERFIT, {"lr": "*2"}, "straight back up"),
        Rung(Outcome.UNDERFIT, {"lr": "*1.5"}, "half way up"),
    ]
    steps = climb(LadderSettings(9, rungs), [Outcome.COLLAPSED, Outcome.UNDERFIT])
    assert [step.why for step in steps] == ["down", "half way up"]
    blocked = climb(LadderSettings(9, rungs[:2]), [Outcome.COLLAPSED, Outcome.UNDERFIT])
    assert isinstance(blocked[-1], LadderExhausted) and "tried already" in blocked[-1].reason


def test_half_of_a_batch_of_one_is_passed_over_though_the_accumulation_would_change() -> None:
    steps = climb(shipped("default.yaml"), [Outcome.OVER_LIMIT], replace(RECIPE, batch_size=1))
    assert steps[0].changes == (Change("gradient_checkpointing", False, True),)


def test_a_set_value_may_hold_already_when_the_arithmetic_still_moves() -> None:
    rung = Rung(Outcome.COLLAPSED, {"lr": "*0.5", "clip_norm": 0.5}, "again", repeat=True)
    steps = climb(LadderSettings(3, [rung]), [Outcome.COLLAPSED] * 2)
    assert [change.key for change in steps[1].changes] == ["lr"]


def test_after_over_limit_the_start_stays_where_it_was() -> None:
    steps = climb(shipped("default.yaml"), [Outcome.COLLAPSED, Outcome.OVER_LIMIT])
    assert [step.start_from for step in steps] == [StartFrom.BASE, StartFrom.BASE]
    assert climb(shipped("default.yaml"), [Outcome.OVER_LIMIT])[0].start_from is StartFrom.INPUT


def test_broken_is_retried_only_for_a_cause_that_a_rung_names() -> None:
    ladder = shipped("default.yaml")
    step = climb(ladder, [Outcome.BROKEN], cause=Cause.NON_FINITE)[0]
    assert step.recipe.lr == 0.0003 and step.start_from is StartFrom.BASE
    assert climb(ladder, [Outcome.BROKEN]) == [
        LadderExhausted("no rung of the ladder follows broken (other)")
    ]
    anyhow = LadderSettings(3, [Rung(Outcome.BROKEN, {"lr": "*0.5"}, "whatever it was")])
    assert isinstance(climb(anyhow, [Outcome.BROKEN])[0], NextAttempt)


@pytest.mark.parametrize("name", sorted(path.name for path in LADDERS.glob("*.yaml")))
def test_what_spilled_over_is_not_pushed_further(name: str) -> None:
    spilled = climb(shipped(name), [Outcome.UNDERFIT] * 3, cause=Cause.SPILL)
    missing = climb(shipped(name), [Outcome.UNDERFIT], cause=Cause.OTHER)[0]
    assert spilled[0].recipe.lr <= RECIPE.lr > spilled[1].recipe.lr
    assert all(step.recipe.steps <= RECIPE.steps for step in spilled[:2])
    assert missing.recipe.steps > RECIPE.steps and missing.recipe.lr == RECIPE.lr


def test_misuse_is_an_error() -> None:
    settings = LadderSettings(3, [Rung(Outcome.UNDERFIT, {"data": "*2"}, "w")])
    with pytest.raises(ValueError, match="history is empty"):
        next_attempt([], settings)
    with pytest.raises(ValueError, match="passed"):
        next_attempt([PastAttempt(RECIPE, Outcome.PASSED)], settings)
    with pytest.raises(ValueError, match="data: '\\*2' on"):
        next_attempt([PastAttempt(RECIPE, Outcome.UNDERFIT)], settings)


@pytest.mark.parametrize("name", sorted(path.name for path in LADDERS.glob("*.yaml")))
def test_shipped_ladders_fit_the_request_and_end(name: str) -> None:
    settings = shipped(name)
    assert ladder_problems(settings, RECIPE) == []
    for outcome in FAILURES:
        steps = climb(
            settings, [outcome] * 20, cause=Cause.NON_FINITE if outcome is Outcome.BROKEN else Cause.OTHER
        )
        assert isinstance(steps[0], NextAttempt) and isinstance(steps[-1], LadderExhausted)
        assert len(steps) <= settings.max_attempts


@pytest.mark.parametrize("name", sorted(path.name for path in LADDERS.glob("*.yaml")))
def test_shipped_ladders_go_back_to_the_base_after_a_collapse_and_never_reach_the_rate_that_fell(
    name: str,
) -> None:
    steps = climb(shipped(name), [Outcome.COLLAPSED, Outcome.UNDERFIT, Outcome.UNDERFIT])
    assert steps[0].start_from is StartFrom.BASE
    assert all(step.recipe.lr < RECIPE.lr for step in steps if isinstance(step, NextAttempt))


def test_identity_rows_alone_are_replaced_by_balanced_ones_after_the_collapse() -> None:
    step = climb(shipped("whoami_only.yaml"), [Outcome.COLLAPSED])[0]
    assert {change.key for change in step.changes} == {"lr", "data"}
    assert step.recipe.data == [DataSource("datasets/stageG/balanced.tsv")]


def test_settings_are_a_structured_config() -> None:
    schema = OmegaConf.structured(LadderSettings)
    merged = OmegaConf.merge(
        schema, {"rungs": [{"after": "COLLAPSED", "change": {"lr": "*0.5"}, "why": "w", "start_from": None}]}
    )
    assert OmegaConf.to_object(merged) == LadderSettings(rungs=[Rung(Outcome.COLLAPSED, {"lr": "*0.5"}, "w")])
