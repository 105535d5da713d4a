"""One attempt: its folder, where its weight goes, and what its record holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.types import Change, Outcome
from pipeline.evaluate.answers import AnswerCache
from pipeline.guard.machine import Machine
from pipeline.ledger.ledger import Ledger
from pipeline.processes.progress import Progress
from pipeline.run.attempt import AttemptResult, AttemptStart, RunContext, carry_out, outcome_of, prepare
from pipeline.run.plan import base_weight
from stages.contract.events import ExitCode
from stages.contract.signals import StopSignals
from tests.pipeline.project import COMMANDS, project, settings_of

__all__ = ["project"]


def attempt(root: Path, **own: Any) -> AttemptResult:
    """Carries out one attempt of stage G of the project, without a base to compare with."""
    settings = settings_of(root, {"G": {"data": ["data/one.tsv"], "steps": 12, "lr": 1e-3, **own}})
    (root / "artifacts").mkdir(exist_ok=True)
    cache = AnswerCache(root, settings.artifacts, settings.guard, COMMANDS, Machine())
    with Ledger(root, settings.tracking, root / "artifacts") as ledger, Progress() as progress:
        ledger.open_run("run", "test", "command", "")
        context = RunContext(
            root, settings, "run", COMMANDS, Machine(), cache, ledger, progress, StopSignals()
        )
        start = AttemptStart(
            settings.stages[0].recipe,
            base_weight(settings, root),
            changes=(Change("lr", 1e-4, 1e-3),),
            why="because",
        )
        before = sorted(root.rglob("*"))
        ready = prepare(context, 0, 1, start)
        assert sorted(root.rglob("*")) == before, "preparing writes nothing"
        done = carry_out(context, 0, ready, start, None)
        found = ledger.find_finished(ready.content_key)
        assert found is not None and found[1] == done.end
        return done


def test_a_weight_is_moved_whole_and_known_by_its_hash(project: Path) -> None:
    done = attempt(project)
    assert done.weight is not None
    assert done.end.output_weight == f"artifacts/weights/test/G-{done.end.output_sha256[:8]}.dat"
    assert not (project / done.attempt.folder / "weight.dat").exists()
    assert (project / "model" / "base.dat").exists()


def test_a_failed_weight_says_why_it_lies_in_the_trash(project: Path) -> None:
    done = attempt(project, lr=0.5)
    assert done.weight is None
    folder = (project / done.end.output_weight).parent
    assert folder.name == "run-G-attempt1"
    reason = (folder / "REASON.md").read_text(encoding="utf-8")
    assert done.end.verdict is not None and done.end.verdict.evidence[0] in reason
    assert done.attempt.command in reason
    assert done.end.output_sha256 in reason


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        ("crash", 134, "SIGABRT|Abort|abort|exit code 134"),
        ("non_finite", ExitCode.NON_FINITE, "step 2: loss nan"),
    ],
)
def test_a_stage_that_fails_leaves_its_reason_and_no_weight(
    project: Path, data: str, code: int, words: str
) -> None:
    done = attempt(project, data=[f"data/{data}.tsv"])
    assert (done.end.outcome, done.end.exit_code, done.end.verdict) == (Outcome.BROKEN, code, None)
    assert re.search(words, done.end.error)
    assert done.end.output_weight == ""
    assert (project / done.attempt.folder / "trace.json").exists(), (
        "the trace of a failed attempt is what one wants to see"
    )


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (124, Outcome.OVER_LIMIT),
        (5, Outcome.OVER_LIMIT),
        (3, Outcome.BROKEN),
        (137, Outcome.BROKEN),
        (1, Outcome.BROKEN),
    ],
)
def test_exit_codes_have_a_meaning(code: int, outcome: Outcome) -> None:
    assert outcome_of(code) is outcome
