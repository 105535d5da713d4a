"""The end of a run as the user reads it."""

from __future__ import annotations

import io

from pipeline.core.types import Attempt, AttemptEnd, Change, Outcome, RunEnd, StartFrom, Verdict
from pipeline.run import summary
from pipeline.run.attempt import AttemptResult


def done(number: int, outcome: Outcome, **figures: float) -> AttemptResult:
    changes = (
        (Change("lr", 0.01, 0.001), Change("data", [{"path": "d/a.tsv", "repeat": 1}], ["d/b.tsv"]))
        if number > 1
        else ()
    )
    attempt = Attempt(
        "run",
        "x",
        "G",
        number,
        "key",
        "folder",
        "command",
        {},
        StartFrom.BASE,
        "in.dat",
        "sha",
        changes=changes,
    )
    evidence = () if outcome is Outcome.PASSED else ("leak 0.500, limit ≤ 0.020",)
    return AttemptResult(
        attempt,
        AttemptEnd(
            outcome, 0, Verdict(outcome, figures, evidence), output_weight=f"w{number}.dat", seconds=3.4
        ),
        None,
    )


def test_every_attempt_has_its_line() -> None:
    attempts = [
        done(1, Outcome.COLLAPSED, leak=0.5),
        done(2, Outcome.PASSED, leak=0.0, identity_heldout=0.987),
    ]
    first, second = summary.lines(attempts)
    assert first == "G attempt 1: collapsed · leak 0.5 · 3 s · weight w1.dat"
    assert second == (
        "G attempt 2: passed · lr 0.01 → 0.001, data a.tsv → d/b.tsv, from base · "
        "identity_heldout 0.987, leak 0 · 3 s · weight w2.dat"
    )


def test_a_failed_run_shows_the_evidence_and_how_to_go_on() -> None:
    attempts = [done(1, Outcome.COLLAPSED, leak=0.5)]
    stream = io.StringIO()
    summary.write(
        RunEnd(Outcome.COLLAPSED, summary=summary.lines(attempts), resume_command="python -m pipeline x"),
        attempts,
        stream,
    )
    text = stream.getvalue()
    assert "leak 0.500, limit ≤ 0.020" in text
    assert "collapsed" in text and "python -m pipeline x" in text
    assert "make validate" not in text


def test_the_validate_command_carries_what_matters() -> None:
    arguments = [
        "+experiment=stageG",
        "model=qwen3_4b",
        "guard=gpu",
        "model.weight=a b.dat",
        "seed=7",
        "stages.G.lr=1",
    ]
    command = summary.validate_command("w.dat", arguments)
    assert command == "make validate WEIGHT=w.dat MODEL=qwen3_4b ARGS='guard=gpu model.weight=a b.dat'"
    assert summary.validate_command("w.dat", []) == "make validate WEIGHT=w.dat"
