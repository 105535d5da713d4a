"""Overrides as they are written on the command line, and errors that come all at once and can be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.compose import ROOT, checked, composed, plain, relaxed
from pipeline.config.reader import merged
from pipeline.core.settings import SettingsError
from tests.pipeline.project import project, raw_settings

__all__ = ["project"]

STAGES: dict[str, Any] = {"A": {"data": ["data/two.tsv"]}, "G": {"data": ["data/one.tsv"], "lr": 1e-4}}


def problems_of(raw: dict[str, Any], root: Path) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        checked(raw, root)
    return caught.value.problems


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


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
    stages = raw["stages"]
    assert (stages["G"]["lr"], stages["G"]["threads"], stages["A"]["lr"]) == (2e-4, 2, 3e-4)
    assert "threads" not in stages["A"]
    assert raw["train"]["seed"] == 7


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
    limits = {"leek_max": 1, "leak_max": 2.0}
    raw["stages"]["G"]["probes"] = {"files": ["data/mute.tsv"], "thresholds": limits}
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
    missing = [start for start in expected if not any(problem.startswith(start) for problem in problems)]
    assert not missing, problems


def test_settings_without_a_problem_are_returned(project: Path) -> None:
    settings = checked(merged(raw_settings(STAGES), {"seed": 7}), project)
    assert [stage.name for stage in settings.stages] == ["A", "G"] and settings.seed == 7


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
