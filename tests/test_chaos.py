"""`benchmarks/chaos.py`: what it counts is what it did, its checks find what they are for, and a short
campaign ends without a fault.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import chaos

ROOT = Path(__file__).parents[1]


def test_totals_count_hits_by_whom_and_when() -> None:
    trial = chaos.Trial(
        3, [chaos.Kill("guard", "guard", 1.0, "training"), chaos.Kill("stage", "", 9.0, "ended")], [137, 0]
    )
    trial.states = {"interrupted": 1, "closed": 1}
    found = chaos.totals([trial, chaos.Trial(4, faults=["lost"])])
    assert (found["kill_points"], found["missed"], found["by_target"], found["by_phase"]) == (
        1,
        1,
        {"guard": 1},
        {"training": 1},
    )
    assert (
        found["starts"],
        found["attempts_interrupted"],
        found["trials_without_fault"],
        found["faults"],
    ) == (2, 1, 1, {"lost": 1})


def test_a_victim_is_found_by_its_place_in_the_chain() -> None:
    sleeper = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(30)'])"
    code = "import subprocess, sys; print(1, flush=True); "
    code += f"subprocess.run([sys.executable, '-c', {sleeper!r}, 'pipeline.guard'])"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        supervisor = 0
        while not supervisor:
            supervisor = chaos.victim(process.pid, "supervisor")
        assert chaos.victim(process.pid, "control") == process.pid
        assert chaos.children_of(chaos.victim(process.pid, "guard")) == [supervisor]
        assert chaos.victim(process.pid, "stage") == 0
    finally:
        for pid in (chaos.victim(process.pid, "supervisor"), chaos.victim(process.pid, "guard"), process.pid):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        process.wait()


@pytest.mark.fault(
    "control process, guard, supervisor or stage killed at random moments of a real run",
    how='`make chaos` with 3 trials (the campaign: ARGS="--trials 100")',
)
@pytest.mark.slow
def test_a_short_campaign_finds_nothing_and_its_checks_find_what_is_broken(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Three trials by the command; then the checks on a sound project that is damaged in every way they are
    to notice.
    """
    report = tmp_path / "chaos.json"
    words = [
        sys.executable,
        str(ROOT / "benchmarks" / "chaos.py"),
        "--trials",
        "3",
        "--seed",
        "1000",
        "--workers",
        "2",
        "--json",
        str(report),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    totals = json.loads(report.read_text("utf-8"))["totals"]
    assert totals["trials"] == totals["trials_without_fault"] == 3
    assert totals["kill_points"] >= 3
    record_property("trials", totals["kill_points"])
    root = chaos.copy_project(chaos.make_project(tmp_path / "template"), tmp_path / "project")
    assert chaos.command(root).wait(chaos.LONGEST_SECS) == 0

    def faults() -> list[str]:
        trial = chaos.Trial(0, exit_codes=[0])
        chaos.check(root, trial)
        return trial.faults

    assert faults() == []
    weight = next((root / "artifacts" / "weights").rglob("*.dat"))
    with sqlite3.connect(root / "artifacts" / "mlflow" / "mlflow.db") as database:
        database.execute("UPDATE runs SET status = 'RUNNING'")
    log = root / "DevLog.md"
    log.write_text(log.read_text("utf-8") * 2, encoding="utf-8")
    weight.with_name("half.dat").write_bytes(weight.read_bytes()[:100])
    weight.unlink()
    words = " ".join(faults())
    for part in (
        "is RUNNING",
        "DevLog: twice",
        "a whole weight has",
        "is lost or changed",
        "not in the journal",
    ):
        assert part in words
