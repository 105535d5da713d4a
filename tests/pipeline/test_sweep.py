"""Sweeps (`-m`) by the real command with the real stages: two at once share one MLflow database from its very
first use on.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos import LONGEST_SECS, OVERRIDES, make_project
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import State

SHORT = ("stages.smoke.steps=2", "probes.max_tokens=4")


def sweep(root: Path, name: str, seeds: str, database: Path) -> subprocess.Popen[str]:
    """A sweep over seeds into an artifacts folder of its own."""
    words = [
        sys.executable,
        "-m",
        "pipeline",
        *OVERRIDES,
        *SHORT,
        "-m",
        f"seed={seeds}",
        f"artifacts=artifacts/{name}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    pipe = subprocess.PIPE
    words.append(f"tracking.uri=sqlite:///{database}")
    return subprocess.Popen(
        words, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    )


@pytest.mark.slow
@pytest.mark.fault(
    "two sweeps at once make one MLflow database",
    how="two real `-m` commands started together on an empty tracking folder",
    trials=2,
)
def test_two_sweeps_share_a_database_that_neither_has_made_before(tmp_path: Path) -> None:
    root, database = make_project(tmp_path / "project"), tmp_path / "tracking" / "mlflow.db"
    seeds = {"one": "1,2", "two": "3,4"}
    both = [sweep(root, name, values, database) for name, values in seeds.items()]
    for process in both:
        out, err = process.communicate(timeout=LONGEST_SECS)
        assert process.returncode == 0, out + err
        assert "MLflow" not in err and "Traceback" not in err, err
    expected = set()
    for name in seeds:
        with Journal(root / "artifacts" / name / "journal.db", root) as book:
            runs = book.runs()
            assert [run.state for run in runs] == [State.CLOSED] * 2
            expected |= {run.run_id for run in runs} | {
                row.id for run in runs for row in book.attempts(run.run_id)
            }
    with sqlite3.connect(database) as connection:
        keys = [row[0] for row in connection.execute("SELECT value FROM tags WHERE key = 'ledger.key'")]
        states = {row[0] for row in connection.execute("SELECT status FROM runs")}
        experiments = connection.execute("SELECT count(*) FROM experiments WHERE name = 'smoke'").fetchone()[
            0
        ]
    assert sorted(keys) == sorted(expected) and len(expected) == 8
    assert (states, experiments) == ({"FINISHED"}, 1)
