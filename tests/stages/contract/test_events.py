"""Events and results: one line each, and nothing is lost on the way."""

from __future__ import annotations

import json

from stages.contract.events import Answer, Event, EventKind, ExitCode, Finish, Phase, StageResult
from stages.contract.serial import dump, dump_line, load_text

WHEN = "2026-01-01T00:00:00.000000Z"


def test_an_event_is_one_line_of_json_and_comes_back() -> None:
    event = Event(WHEN, EventKind.STEP, step=3, total=9, values={"loss": 0.5}, text="第一\n第二")
    line = event.line()
    assert line.endswith("\n") and line.count("\n") == 1 and "第一" in line
    assert load_text(Event, line, "event") == event
    assert json.loads(line)["kind"] == "step"


def test_the_phases_are_the_users_own_in_their_order() -> None:
    assert [phase.value for phase in Phase] == [
        "start",
        "model_loaded",
        "batch_ready",
        "zero_grad_done",
        "backward_done",
        "optimizer_step_done",
        "exported",
    ]


def test_exit_codes_do_not_change() -> None:
    """Journals and scripts hold them as numbers."""
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "BAD_INPUT": 2,
        "NON_FINITE": 3,
        "DISAGREE": 4,
        "OVER_LIMIT": 5,
        "NO_SPACE": 6,
        "GUARD_KILLED": 124,
        "INTERRUPTED": 130,
    }


def test_answers_and_results_come_back() -> None:
    answer = Answer("p.tsv", 2, "你是誰", "我是 F# 之神。", [5, 6], Finish.END_OF_TURN, 12.5)
    assert load_text(Answer, dump_line(answer), "answer") == answer
    result = StageResult(ExitCode.NO_SPACE, "free some", notes=["n"], details={"any": [1, {"x": None}]})
    assert load_text(StageResult, dump(result), "result") == result
