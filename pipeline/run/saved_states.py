"""States that interrupted attempts saved inside a stage: found for the attempt that goes on, removed once its
weight is there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline.core.types import Attempt
from pipeline.ledger.ledger import Ledger
from pipeline.run.stage_request import STATES_NAME
from stages.contract.requests import checkpoint_step, newest_checkpoint


def latest(ledger: Ledger, attempt: Attempt, root: Path) -> str:
    """The state of the latest step that interrupted attempts of the same content key saved; empty if none
    did.
    """
    found = [newest_checkpoint(folder) for folder in _folders(ledger, attempt, root)]
    path = max((path for path in found if path), key=checkpoint_step, default=None)
    if path is None:
        return ""
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def drop(ledger: Ledger, attempt: Attempt, root: Path) -> None:
    """Removes those states. One that cannot be removed only takes space."""
    for folder in _folders(ledger, attempt, root):
        shutil.rmtree(folder, ignore_errors=True)


def _folders(ledger: Ledger, attempt: Attempt, root: Path) -> list[Path]:
    return [root / old.folder / STATES_NAME for old in ledger.find_interrupted(attempt.content_key)]
