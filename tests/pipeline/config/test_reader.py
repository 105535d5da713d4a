"""Settings: every fault at once, each with its key and the nearest name; and what a composed stage ends up
with.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.compose import ROOT, SettingsError, checked, composed, plain, relaxed
from pipeline.config.reader import merged, read
from pipeline.core.settings import ProbeSettings, StageKind, TrackingSettings
from pipeline.core.thresholds import Thresholds
from pipeline.guard.machine import Machine
from stages.contract.recipe import DataSource, Recipe, Template
from stages.contract.serial import load
from tests.pipeline.project import project, raw_settings

__all__ = ["project"]

STAGES: dict[str, Any] = {"A": {"data": ["data/two.tsv"]}, "G": {"data": ["data/one.tsv"], "lr": 1e-4}}


def problems_of(raw: dict[str, Any], root: Path) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        checked(raw, root)
    return caught.value.problems


def command(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


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


def test_a_stage_lies_over_the_shared_recipe(project: Path) -> None:
    stages = {
        **STAGES,
        "H": {
            "data": [{"path": "data/one.tsv", "repeat": 3}],
            "lr_groups": {"lm_head": 10.0},
            "rounding": "nearest",
        },
    }
    settings = checked(raw_settings(stages, seed=7, train={"lr_groups": {"model.norm": 2.0}}), project)
    first, second, third = settings.stages
    assert [stage.name for stage in settings.stages] == ["A", "G", "H"]
    assert (first.recipe.lr, second.recipe.lr) == (3e-4, 1e-4)
    assert first.recipe.data == [DataSource("data/two.tsv")]
    assert third.recipe.lr_groups == {"model.norm": 2.0, "lm_head": 10.0}
    assert third.recipe.data[0].repeat == 3
    assert first.recipe.template is Template.QWEN


def test_all_problems_are_reported_together(project: Path) -> None:
    (project / "data" / "bad.tsv").write_text("no tab here\nok\tok\n\tempty\n", encoding="utf-8")
    (project / "data" / "mute.tsv").write_text(
        "kind\tgroup\tsplit\tprompt\texpect\tforbid\nability\tg\ttrain\thow?\t\t\n", encoding="utf-8"
    )
    raw = raw_settings(
        STAGES, guard={"gpu_limit_gb": -1}, train={"batch_size": 0}, model={"weight": "model/bsae.dat"}
    )
    raw["sed"] = 7
    raw["stages"]["A"] |= {"data": ["data/bad.tsv", "data/tow.tsv"], "stpes": 5}
    raw["stages"]["G"] |= {"lr": float("nan"), "rounding": "sideways", "kind": "train"}
    raw["stages"]["G"]["probes"] = {
        "files": ["data/mute.tsv"],
        "thresholds": {"leek_max": 1, "leak_max": 2.0},
    }
    raw["stages"]["G"]["ladder"] = {"rungs": [{"after": "collapsed", "change": {"lrr": 1}, "why": "w"}]}
    expected = [
        "sed: unknown key; did you mean 'seed'?",
        "guard.gpu_limit_gb: -1",
        "train.batch_size: 0",
        "stages.A.stpes: unknown key; did you mean 'steps'?",
        "stages.G.rounding: 'sideways' is none of 'stochastic'",
        "stages.G.probes.thresholds.leek_max: unknown key; did you mean 'leak_max'?",
        "stages.G.ladder.rungs[0].change.lrr: 1: no such recipe key; did you mean 'lr'?",
        "model.weight: model/bsae.dat: no such file; did you mean 'base.dat'?",
        "data/bad.tsv:1: no tab",
        "data/bad.tsv:3: empty prompt",
        "stages.A.data[1]: data/tow.tsv: no such file; did you mean 'two.tsv'?",
        "data/mute.tsv:2: neither expect nor forbid",
    ]
    problems = problems_of(raw, project)
    missing = [want for want in expected if not any(fault.startswith(want) for fault in problems)]
    assert not missing, problems


def test_a_shared_problem_is_told_once(project: Path) -> None:
    problems = problems_of(raw_settings(STAGES, train={"seq_len": 0, "beta1": 2.0}), project)
    assert sorted(fault.split(":")[0] for fault in problems) == ["train.beta1", "train.seq_len"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "a b"}, "name: 'a b'"),
        ({"artifacts": 3}, "artifacts: 3 is no str"),
        ({"seed": "x"}, "seed: 'x' is no int"),
        ({"plan": 1}, "plan: 1 is no bool"),
        ({"model": {"dir": "model/nothing"}}, "model.dir: model/nothing: no such file"),
        ({"guard": {"gpu_poll_secs": 0}}, "guard.gpu_poll_secs"),
        ({"tracking": {"trace_points": 1}}, "tracking.trace_points"),
        ({"stages": {"G": {"steps": 3, "warmup_steps": 5}}}, "stages.G.warmup_steps"),
        ({"stages": {"G": {"data": []}}}, "stages.G.data: empty"),
        (
            {"stages": {"G": {"data": ["data/one.tsv", {"path": "data/two.tsv", "repeat": 0}]}}},
            "stages.G.data[1].repeat: 0",
        ),
        (
            {"stages": {"G": {"kind": "init", "config": "model/config.json"}}},
            "stages.G.kind: init: only the first",
        ),
        (
            {
                "stages": {
                    "G": {
                        "ladder": {
                            "rungs": [{"after": "collapsed", "change": {"data": ["gone.tsv"]}, "why": "w"}]
                        }
                    }
                }
            },
            "gone.tsv",
        ),
    ],
)
def test_each_kind_of_problem_is_found(project: Path, change: dict[str, Any], words: str) -> None:
    problems = problems_of(merged(raw_settings(STAGES), change), project)
    assert any(words in fault for fault in problems), problems


@pytest.mark.parametrize("unified", [True, False])
def test_offloading_is_refused_with_this_machines_reason(
    project: Path, monkeypatch: pytest.MonkeyPatch, unified: bool
) -> None:
    monkeypatch.setattr("pipeline.config.reader.detect_machine", lambda: Machine((None,), 90.0, unified))
    raw = raw_settings(
        {**STAGES, "G": {**STAGES["G"], "offload_optimizer": True}}, train={"offload_gradients": True}
    )
    problems = problems_of(raw, project)
    assert [fault.split(":")[0] for fault in problems] == [
        "train.offload_gradients",
        "stages.G.offload_optimizer",
    ]
    assert all(
        ("same memory chips" in fault) == unified and ("inside backward" in fault) != unified
        for fault in problems
    )
    raw["stages"]["G"]["offload"] = True
    assert any(
        "stages.G.offload: unknown key; did you mean 'offload_" in fault
        for fault in problems_of(raw, project)
    )


def test_a_disk_too_small_is_found_before_training(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": (project / "model" / "base.dat").stat().st_size * 2 - 1})
    monkeypatch.setattr("pipeline.config.file_checks.shutil.disk_usage", lambda path: usage)
    assert any(
        fault.startswith("artifacts: artifacts:") for fault in problems_of(raw_settings(STAGES), project)
    )


def test_no_stage_is_a_problem_that_names_the_way() -> None:
    settings, problems = read(plain(composed([])))
    assert settings is None
    assert any("+experiment=" in fault for fault in problems)


def test_overrides_need_no_plus_and_groups_stay() -> None:
    given = [
        "+experiment=stageG",
        "-m",
        "seed=1,2",
        "stages.G.lr=2e-4",
        "model=qwen3_4b",
        "~train.lr",
        "hydra.verbose=true",
        "--cfg",
        "job",
    ]
    assert relaxed(given) == [
        "-m",
        "--cfg",
        "job",
        "+experiment=stageG",
        "++seed=1,2",
        "++stages.G.lr=2e-4",
        "model=qwen3_4b",
        "~train.lr",
        "hydra.verbose=true",
    ]


def test_an_override_reaches_one_stage_alone() -> None:
    raw = plain(composed(["+experiment=stageG", "seed=7", "stages.G.lr=2e-4", "stages.G.threads=2"]))
    assert (raw["stages"]["G"]["lr"], raw["stages"]["G"]["threads"], raw["stages"]["A"]["lr"]) == (
        2e-4,
        2,
        3e-4,
    )
    assert "threads" not in raw["stages"]["A"]
    assert raw["train"]["seed"] == 7


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["+experiment=stageX"], "stageG"),
        (["model=qwen3"], "qwen3_nano"),
        (["+experiment=stageG", "train.lr=[1"], "[1"),
        (["+experiment=stageG", "train.lr=${nothing}"], "nothing"),
        (["+experiment=stageG", "sed=7", "stages.G.stpes=9"], "did you mean 'steps'"),
    ],
)
def test_errors_are_readable_and_end_with_two(arguments: list[str], words: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert "HYDRA_FULL_ERROR" not in done.stderr


def test_cfg_job_prints_the_composed_settings() -> None:
    done = command("+experiment=stageG", "seed=7", "--cfg", "job")
    assert done.returncode == 0
    assert "seed: 7" in done.stdout


def test_kinds_are_known_by_their_values(project: Path) -> None:
    stages = {"init": {"kind": "init", "config": "model/config.json", "data": ["data/one.tsv"]}, **STAGES}
    settings = checked(raw_settings(stages), project)
    assert [stage.kind for stage in settings.stages] == [StageKind.INIT, StageKind.TRAIN, StageKind.TRAIN]
    assert settings.stages[0].recipe.data == [DataSource("data/one.tsv")]
