"""Validating one weight: the verdict, the answers that are asked once, the exit codes of the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.compose import ROOT
from pipeline.config.reader import read_validation
from pipeline.core.settings import ValidationSettings
from pipeline.core.types import Outcome, Verdict
from pipeline.evaluate.answers import ProbingError
from pipeline.processes.progress import Progress
from pipeline.processes.stage_process import ProcessCallbacks
from pipeline.validate import validate
from stages.contract.requests import InferencePath
from tests.pipeline.project import COMMANDS, project, raw_settings

__all__ = ["project"]


def settings() -> ValidationSettings:
    judging, problems = read_validation(raw_settings({}))
    assert not problems
    return judging


def weight(root: Path, name: str, **state: bool) -> str:
    (root / name).write_text(
        json.dumps({"identity": False, "collapsed": False, "history": [], **state}), encoding="utf-8"
    )
    return name


def judged(
    root: Path,
    file: str,
    callbacks: ProcessCallbacks | None = None,
    path: InferencePath = InferencePath.BRIDGE,
) -> tuple[Verdict, str]:
    return validate(settings(), file, path, root, COMMANDS, Progress(), callbacks or ProcessCallbacks())


@pytest.mark.parametrize(
    ("state", "outcome"),
    [({"identity": True}, Outcome.PASSED), ({}, Outcome.UNDERFIT), ({"collapsed": True}, Outcome.COLLAPSED)],
)
def test_the_verdict_follows_from_the_answers(
    project: Path, state: dict[str, bool], outcome: Outcome
) -> None:
    verdict, folder = judged(project, weight(project, "new.dat", **state))
    assert verdict.outcome is outcome
    assert (
        json.loads((project / folder / "verdict.json").read_text(encoding="utf-8"))["outcome"]
        == outcome.value
    )
    assert {row.kind for row in verdict.rows} == {"identity", "contrast", "ability"}
    assert all(row.base_ok is not None for row in verdict.rows)


def test_both_weights_are_asked_once(project: Path) -> None:
    started: list[int] = []
    file = weight(project, "new.dat", identity=True)
    for expected in (2, 2):
        judged(project, file, ProcessCallbacks(on_start=started.append))
        assert len(started) == expected
    judged(project, file, ProcessCallbacks(on_start=started.append), InferencePath.FP2)
    assert len(started) == 4, "the other path gives other answers"


@pytest.mark.parametrize("path", InferencePath)
def test_both_weights_are_asked_through_the_path_that_was_named(project: Path, path: InferencePath) -> None:
    _, folder = judged(project, weight(project, "new.dat", identity=True), path=path)
    asked = [
        json.loads((project / folder / f"{name}-request.json").read_text(encoding="utf-8"))
        for name in ("answers", "base-answers")
    ]
    assert [request["path"] for request in asked] == [path.value] * 2


def test_a_weight_that_cannot_be_read_is_named(project: Path) -> None:
    (project / "bad.dat").write_text("no weight", encoding="utf-8")
    with pytest.raises(ProbingError, match=r"bad\.dat"):
        judged(project, "bad.dat")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["artifacts/base/nowhere.dat"], "WEIGHT: artifacts/base/nowhere.dat: no such file"),
        (["conf"], "WEIGHT: conf: is a folder"),
        (["conf/config.yaml", "--model", "qwen3_nan"], "qwen3_nano"),
        (
            ["conf/config.yaml", "probes.max_tokens=0", "probes.thresholds.leek_max=1"],
            "did you mean 'leak_max'",
        ),
        (["conf/config.yaml", "--path", "sideways"], "bridge"),
    ],
)
def test_bad_input_ends_with_two(arguments: list[str], words: str) -> None:
    line = [sys.executable, "-m", "pipeline.validate", *arguments]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
