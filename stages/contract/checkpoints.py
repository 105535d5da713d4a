"""The names of saved training states, which both houses must know: the stage writes them, the pipeline finds
them.
"""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"step-(\d{8})\.dat")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the state after `step` lies."""
    return folder / f"step-{step:08d}.dat"


def checkpoint_step(path: Path) -> int:
    """The step of a saved state by its name; -1 if it is none."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def newest_checkpoint(folder: Path) -> Path | None:
    """The state of the latest step in a folder; None if there is no such folder or no state in it."""
    found = (
        [path for path in folder.glob("step-*.dat") if checkpoint_step(path) >= 0] if folder.is_dir() else []
    )
    return max(found, key=checkpoint_step, default=None)
