"""The types of the control plane: their names in the ledger, and what comes back from its texts."""

from __future__ import annotations

import pytest

from pipeline.core.types import (
    Attempt,
    AttemptEnd,
    Change,
    Check,
    Outcome,
    ProbeRow,
    RunEnd,
    StartFrom,
    Verdict,
)
from stages.contract.serial import dump_line, load_text

ATTEMPT = Attempt(
    "20260301-101500-stageG-ab12",
    "stageG",
    "A",
    2,
    "k1",
    "artifacts/runs/x/01-A-attempt2",
    "python -m pipeline.guard …",
    {"lr": 1e-4, "data": [{"path": "a.tsv", "repeat": 1}]},
    StartFrom.BASE,
    "base.dat",
    "f" * 64,
    {"a.tsv": "e" * 64},
    (Change("lr", 2e-4, 1e-4),),
    "half the rate",
)
VERDICT = Verdict(
    Outcome.COLLAPSED,
    {"leak": 0.5},
    ("leak 0.500, limit ≤ 0.300 (1 of 2)",),
    (ProbeRow("contrast", "self", "heldout", "我是誰", "F#", False, "你", True, ("leak",)),),
    (Check("leak", 0.5, 0.3, False, Outcome.COLLAPSED, False),),
)


def test_an_attempt_has_a_name_in_the_ledger() -> None:
    assert ATTEMPT.id == "20260301-101500-stageG-ab12/A/2"


@pytest.mark.parametrize(
    "value",
    [
        ATTEMPT,
        VERDICT,
        AttemptEnd(Outcome.COLLAPSED, 0, VERDICT, figures={"loss": 0.1}),
        AttemptEnd(Outcome.BROKEN, 1, None, "crash"),
        RunEnd(Outcome.PASSED, "w.dat", "f" * 64, ("A attempt 1: passed",), "make run"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_ledger_writes_comes_back(value: object) -> None:
    assert load_text(type(value), dump_line(value), "here") == value


def test_the_words_of_journals_do_not_change() -> None:
    words = ["passed", "underfit", "collapsed", "over_limit", "broken", "measured"]
    assert [outcome.value for outcome in Outcome] == words
    assert [start.value for start in StartFrom] == ["base", "input"]
