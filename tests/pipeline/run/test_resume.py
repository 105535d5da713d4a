"""A stage killed in its middle goes on from its saved state when the same command is started again, to the
same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.compose import ROOT
from pipeline.core.settings import Settings
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import State
from pipeline.processes.stage_process import StageCommands
from pipeline.run.runner import RunResult
from pipeline.run.session import run
from stages.contract.events import ExitCode
from tests.conftest import TinyModel
from tests.pipeline.project import project, settings_of
from tests.pipeline.run.test_trainer import OUTSIDER

__all__ = ["project"]

SLOW_STAGE = """
import sys, time
from stages.train import stage as train, trainer as loop
inner = loop.Trainer._report
loop.Trainer._report = lambda self, values: (inner(self, values), time.sleep(0.1))[0]
sys.exit(train.main(sys.argv[1:]))
"""
COMMANDS = StageCommands(
    train=(sys.executable, "-c", SLOW_STAGE), probe=(sys.executable, str(OUTSIDER), "answer")
)


@pytest.fixture
def place(project: Path, tiny: TinyModel) -> Path:
    """The project with a real model."""
    shutil.rmtree(project / "model")
    shutil.copytree(tiny.folder, project / "model")
    (project / "model" / "tiny.dat").rename(project / "model" / "base.dat")
    return project


def settings(root: Path, **recipe: Any) -> Settings:
    stage = {
        "data": ["data/one.tsv"],
        "steps": 20,
        "lr": 1e-3,
        "threads": 1,
        "batch_size": 2,
        "checkpoint_every": 3,
        **recipe,
    }
    return settings_of(
        root, {"G": stage}, guard={"gpu_limit_gb": 3.0, "reader": "resident", "grace_secs": 20}
    )


def go(root: Path, **recipe: Any) -> RunResult:
    return run(settings(root, **recipe), root, "python -m pipeline", "", COMMANDS)


def control(root: Path) -> subprocess.Popen[bytes]:
    program = "import sys; from pathlib import Path; from tests.pipeline.run.test_resume import go\n"
    program += "sys.exit(go(Path(sys.argv[1])).exit_code)"
    return subprocess.Popen([sys.executable, "-c", program, str(root)], cwd=ROOT, stderr=subprocess.DEVNULL)


def steps_of(root: Path, run_folder: Path) -> list[int]:
    lines = (run_folder / "01-G-attempt1" / "events.jsonl").read_text("utf-8").splitlines()
    return [event["step"] for event in map(json.loads, lines) if event["kind"] == "step"]


def training_since(root: Path, process: subprocess.Popen[bytes], steps: int, known: set[Path]) -> Path:
    """The folder of the run that has done so many steps of its own."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for path in (root / "artifacts" / "runs").glob("*/01-G-attempt1/events.jsonl"):
            if path.parents[1] not in known and path.read_bytes().count(b'"kind":"step"') >= steps:
                return path.parents[1]
        time.sleep(0.01)
    raise AssertionError(f"no run came to step {steps}")


def stage_pid(folder: Path) -> int:
    """The training process below the guard, by the request that it was given."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"pipeline.guard" not in words and any(
            folder.name.encode() in word and word.endswith(b"request.json") for word in words
        ):
            return int(path.parent.name)
    raise AssertionError("no such process")


@pytest.mark.fault(
    "stage, then control process killed; started again",
    how="SIGKILL at step 5 of each; same bytes as a run through",
    trials=2,
)
@pytest.mark.slow
def test_stage_and_control_killed_then_started_again(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SIGKILL of the stage, SIGKILL of the control process, then to the end; against a run in another project
    without any of it.
    """
    first = control(place)
    one = training_since(place, first, 5, set())
    os.kill(stage_pid(one), signal.SIGKILL)
    assert first.wait(60) == ExitCode.INTERRUPTED
    second = control(place)
    two = training_since(place, second, 5, {one})
    second.kill()
    second.wait()
    result = go(place)
    assert result.exit_code == 0
    three = place / "artifacts" / "runs" / result.attempts[0].attempt.run_id
    begins = [steps_of(place, folder)[0] for folder in (one, two, three)]
    assert begins[0] == 1 < begins[1] < begins[2], "each goes on where the one before it was saved"
    with Journal(place / "artifacts" / "journal.db") as book:
        rows = [row for item in book.runs() for row in book.attempts(item.run_id)]
    assert [row.state for row in rows] == [State.INTERRUPTED, State.INTERRUPTED, State.CLOSED]
    assert len({row.attempt.content_key for row in rows}) == 1
    assert "killed from outside" in rows[0].reason
    assert not list((place / "artifacts").rglob("step-*.dat")), "states are gone once the weight is there"
    other = tmp_path_factory.mktemp("through")
    for name in ("model", "data"):
        shutil.copytree(place / name, other / name)
    assert go(other, checkpoint_every=0).end.final_sha256 == result.end.final_sha256
