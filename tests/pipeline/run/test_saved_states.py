"""Saved states of interrupted attempts: the latest is found, all are removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pipeline.core.types import Attempt
from pipeline.ledger.ledger import Ledger
from pipeline.run import saved_states
from pipeline.run.stage_request import STATES_NAME
from stages.contract.requests import checkpoint_path
from tests.pipeline.ledger.samples import attempt


class _Interrupted:
    """A ledger that knows these interrupted attempts."""

    def __init__(self, *attempts: Attempt) -> None:
        self.attempts = attempts

    def find_interrupted(self, content_key: str) -> list[Any]:
        return [each for each in self.attempts if each.content_key == content_key]


def test_the_state_of_the_latest_step_is_found_and_all_are_dropped(tmp_path: Path) -> None:
    first, second = attempt(1, key="k"), attempt(2, key="k")
    ledger = cast(Ledger, _Interrupted(first, second))
    assert saved_states.latest(ledger, first, tmp_path) == ""
    for each, step in ((first, 20), (second, 7)):
        folder = tmp_path / each.folder / STATES_NAME
        folder.mkdir(parents=True)
        checkpoint_path(folder, step).write_bytes(b"state")
    found = saved_states.latest(ledger, second, tmp_path)
    assert found == str(checkpoint_path(Path(first.folder) / STATES_NAME, 20))
    assert saved_states.latest(ledger, attempt(3, key="other"), tmp_path) == ""
    saved_states.drop(ledger, second, tmp_path)
    assert saved_states.latest(ledger, second, tmp_path) == "" and not list(tmp_path.rglob("step-*"))
