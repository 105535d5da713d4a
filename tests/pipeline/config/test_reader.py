"""Settings from plain values: what a stage ends up with, and each kind of problem with its key."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.compose import composed, plain
from pipeline.config.reader import full_sources, merged, read, read_validation
from pipeline.core.settings import ProbeSettings, Settings, StageKind, TrackingSettings
from pipeline.core.thresholds import Thresholds
from pipeline.guard.machine import Machine
from stages.contract.recipe import DataSource, Recipe, Template
from stages.contract.serial import load
from tests.pipeline.project import raw_settings

STAGES: dict[str, Any] = {"A": {"data": ["data/two.tsv"]}, "G": {"data": ["data/one.tsv"], "lr": 1e-4}}


def settings_of(stages: dict[str, Any], **top: Any) -> Settings:
    settings, problems = read(raw_settings(stages, **top))
    assert settings is not None and problems == []
    return settings


def test_every_recipe_key_stands_in_the_default_recipe() -> None:
    train = plain(composed([]))["train"]
    assert set(train) == {f.name for f in fields(Recipe)} - {"data", "template"}


def test_yaml_and_dataclass_have_the_same_defaults() -> None:
    """Either can be read to know what a stage does that says nothing."""
    assert load(Recipe, {"data": [], **plain(composed([]))["train"]}, "") == Recipe(data=[])
    raw = plain(composed([]))["probes"]
    assert set(raw["thresholds"]) == {f.name for f in fields(Thresholds)}
    assert load(ProbeSettings, {**raw, "files": []}, "") == ProbeSettings([], Thresholds())
    assert load(TrackingSettings, plain(composed([]))["tracking"], "") == TrackingSettings()


def test_a_stage_lies_over_the_shared_recipe() -> None:
    third_stage = {
        "data": [{"path": "data/one.tsv", "repeat": 3}],
        "lr_groups": {"lm_head": 10.0},
        "rounding": "nearest",
    }
    settings = settings_of({**STAGES, "H": third_stage}, seed=7, train={"lr_groups": {"model.norm": 2.0}})
    first, second, third = settings.stages
    assert [stage.name for stage in settings.stages] == ["A", "G", "H"]
    assert (first.recipe.lr, second.recipe.lr) == (3e-4, 1e-4)
    assert first.recipe.data == [DataSource("data/two.tsv")]
    assert third.recipe.lr_groups == {"model.norm": 2.0, "lm_head": 10.0}
    assert third.recipe.data[0].repeat == 3
    assert first.recipe.template is Template.QWEN


def test_a_stage_lays_its_probes_and_its_ladder_over_the_shared_ones() -> None:
    rung = {"after": "collapsed", "change": {"data": ["b.tsv"]}, "why": "w"}
    own = {"probes": {"max_tokens": 5, "thresholds": {"leak_max": 0.1}}, "ladder": {"rungs": [rung]}}
    first, second = settings_of({"A": STAGES["A"], "G": {**STAGES["G"], **own}}).stages
    assert second.probes.thresholds.leak_max == 0.1 and second.probes.max_tokens == 5
    assert second.probes.files == first.probes.files and first.probes.max_tokens == 64
    assert [rung.change for rung in second.ladder.rungs] == [{"data": [{"path": "b.tsv", "repeat": 1}]}]
    assert second.ladder.max_attempts == first.ladder.max_attempts


def test_a_shared_problem_is_reported_once() -> None:
    _, problems = read(raw_settings(STAGES, train={"seq_len": 0, "beta1": 2.0}))
    assert sorted(problem.split(":")[0] for problem in problems) == ["train.beta1", "train.seq_len"]


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"sed": 7}, "sed: unknown key; did you mean 'seed'?"),
        ({7: "sed"}, "7: unknown key"),
        ({"artifacts": 3}, "artifacts: 3 is no str"),
        ({"seed": "x"}, "seed: 'x' is no int"),
        ({"plan": 1}, "plan: 1 is no bool"),
        ({"model": 3}, "model.ModelSettings: 3 is no mapping"),
        ({"guard": {"gpu_poll_secs": 0}}, "guard.gpu_poll_secs: 0.0: must be a finite number, more than 0"),
        ({"tracking": {"trace_points": 1}}, "tracking.trace_points: 1: must be 2 or more"),
        ({"train": 3}, "train: 3 is no mapping"),
        ({"stages": {"G": 3}}, "stages.G: 3 is no mapping: give it data"),
        ({"stages": {"G": {"kind": "trian"}}}, "stages.G.kind: 'trian' is none of 'train', 'init'"),
        ({"stages": {"G": {"config": 3}}}, "stages.G.config: 3 is no str"),
        ({"stages": {"G": {"stpes": 3}}}, "stages.G.stpes: unknown key; did you mean 'steps'?"),
        ({"stages": {"G": {"steps": 3, "warmup_steps": 5}}}, "stages.G.warmup_steps: 5: more than steps (3)"),
        ({"stages": {"G": {"data": []}}}, "stages.G.data: empty"),
        ({"stages": {"G": {"data": ["a", {"path": "b", "repeat": 0}]}}}, "stages.G.data[1].repeat: 0"),
        ({"stages": {"G": {"ladder": {"rungs": 3}}}}, "stages.G.ladder.rungs: 3 is no list"),
        ({"stages": {"G": {"trainer": {"kind": "external"}}}}, "stages.G.trainer.command: empty"),
        ({"stages": {"G": {"probes": {"max_tokens": 0}}}}, "stages.G.probes.max_tokens: 0"),
    ],
    ids=str,
)
def test_each_kind_of_problem_is_found(change: dict[Any, Any], start: str) -> None:
    _, problems = read(merged(raw_settings(STAGES), change))
    assert [problem for problem in problems if problem.startswith(start)], problems


@pytest.mark.parametrize("key", [f.name for f in fields(Settings)] + ["train", "probes", "ladder", "trainer"])
def test_a_missing_key_is_named(key: str) -> None:
    raw = raw_settings(STAGES)
    del raw[key]
    assert f"{key}: missing: conf/config.yaml sets it" in read(raw)[1]


@pytest.mark.parametrize("unified", [True, False])
def test_offloading_is_refused_with_this_machines_reason(
    monkeypatch: pytest.MonkeyPatch, unified: bool
) -> None:
    monkeypatch.setattr("pipeline.config.reader.detect_machine", lambda: Machine((None,), 90.0, unified))
    stages = {**STAGES, "G": {**STAGES["G"], "offload_optimizer": True}}
    raw = raw_settings(stages, train={"offload_gradients": True})
    _, problems = read(raw)
    keys = ["train.offload_gradients", "stages.G.offload_optimizer"]
    assert [problem.split(":")[0] for problem in problems] == keys
    for problem in problems:
        assert ("same memory chips" in problem) == unified and ("inside backward" in problem) != unified
    raw["stages"]["G"]["offload"] = True
    start = "stages.G.offload: unknown key; did you mean 'offload_"
    assert any(problem.startswith(start) for problem in read(raw)[1])


def test_no_stage_is_a_problem_that_names_the_way() -> None:
    settings, problems = read(plain(composed([])))
    assert settings is None
    assert any("+experiment=" in problem for problem in problems)


def test_kinds_are_known_by_their_values() -> None:
    init = {"kind": "init", "config": "model/config.json", "data": ["data/one.tsv"]}
    settings = settings_of({"init": init, **STAGES})
    assert [stage.kind for stage in settings.stages] == [StageKind.INIT, StageKind.TRAIN, StageKind.TRAIN]
    assert settings.stages[0].recipe.data == [DataSource("data/one.tsv")]


def test_validation_needs_no_experiment_and_reports_its_own_problems() -> None:
    raw = raw_settings({}, train={"threads": 3}, model={"template": "fsharp"})
    settings, problems = read_validation(raw)
    assert problems == []
    assert (settings.recipe.threads, settings.recipe.template) == (3, Template.FSHARP)
    _, problems = read_validation(merged(raw, {"guard": {"gpu_limit_gb": 0}, "probes": {"max_tokens": 0}}))
    assert [problem.split(":")[0] for problem in problems] == ["guard.gpu_limit_gb", "probes.max_tokens"]


def test_data_entries_are_written_in_full() -> None:
    assert full_sources(["a", {"path": "b", "repeat": 2}, 3]) == [
        {"path": "a", "repeat": 1},
        {"path": "b", "repeat": 2},
        3,
    ]
    assert full_sources("a") == []


@given(
    st.recursive(
        st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
    )
)
def test_laying_over_keeps_what_is_not_named(above: Any) -> None:
    if isinstance(above, dict):
        below = {"kept": 1, **{key: {"kept": 2} for key in above}}
        result = merged(below, above)
        assert result["kept"] == 1
        assert all(result[key]["kept"] == 2 for key, value in above.items() if isinstance(value, dict))
        assert all(result[key] == value for key, value in above.items() if not isinstance(value, dict))
        assert merged(merged(below, above), above) == result
