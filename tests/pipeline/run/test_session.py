"""Bad days, each with a clear outcome: folders not writable, a locked journal, edits by hand, a full disk,
left-over processes.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.compose import ROOT
from pipeline.core.types import Outcome
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import State
from pipeline.run import session
from pipeline.run.session import SessionError, run
from stages.contract.events import ExitCode
from stages.contract.requests import WRITE_ROOT
from tests.pipeline import standin
from tests.pipeline.guard.guarded import alive, wait_for
from tests.pipeline.project import COMMANDS, project, settings_of
from tests.pipeline.run import test_runner
from tests.pipeline.run.test_runner import go, stage, weights

__all__ = ["project"]


@pytest.mark.fault(
    "artifacts folder read-only or a file", how="below /proc, below /sys, a file, below a file"
)
@pytest.mark.parametrize(
    "place", ["/proc/artifacts", "/sys/kernel/artifacts", "model/base.dat", "model/base.dat/deeper"]
)
def test_artifacts_that_cannot_be_written_end_the_run_with_the_remedy(project: Path, place: str) -> None:
    settings = replace(
        settings_of(project, {"G": stage()}), artifacts=place
    )  # what checking the settings finds is not in question
    with pytest.raises(SessionError, match="make it a folder that can be written to"):
        run(settings, project, "python -m pipeline", "", COMMANDS)
    assert not (project / "DevLog.md").exists()


@pytest.mark.fault("artifacts folder missing", how="moved away between two runs")
def test_artifacts_that_vanish_between_two_runs_are_made_again(project: Path) -> None:
    first = go(project, {"G": stage()})
    (project / "artifacts").rename(project / "moved-away")
    again = go(project, {"G": stage()})
    assert (again.exit_code, again.attempts[0].reused) == (0, False)
    assert again.end.final_sha256 == first.end.final_sha256


@pytest.mark.fault("the journal is locked", how="another connection holds an exclusive transaction")
def test_a_journal_that_another_program_holds_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(project, {"G": stage()})
    monkeypatch.setattr(Journal.__init__, "__defaults__", (None, 0.2))
    with sqlite3.connect(project / "artifacts" / "journal.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SessionError, match=r"journal\.db"):
            go(project, {"G": stage()})
        other.execute("ROLLBACK")
    assert go(project, {"G": stage()}).attempts[0].reused, "nothing was spoilt"


@pytest.mark.fault(
    "DevLog edited by hand meanwhile", how="lines before, between and after its entries, no last newline"
)
def test_a_log_edited_by_hand_keeps_the_edit_and_has_each_entry_once(project: Path) -> None:
    go(project, {"G": stage()})
    log = project / "DevLog.md"
    text = log.read_text(encoding="utf-8")
    log.write_text(
        "我的筆記\n" + text.replace("\n## ", "\n手寫一行\n\n## ", 1) + "尾巴, 沒有換行", encoding="utf-8"
    )
    go(project, {"G": stage("two")})
    after = log.read_text(encoding="utf-8")
    assert after.startswith("我的筆記\n") and "手寫一行" in after and "尾巴, 沒有換行" in after
    marks = [line for line in after.splitlines() if line.startswith("<!-- ledger:")]
    assert len(marks) == len(set(marks)) > 3


@pytest.mark.fault("no space for a weight", how="a stage that ends with the exit code for it")
def test_a_stage_without_space_ends_the_run_and_the_same_command_goes_on(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage's own part, a disk that fills up, is tested with it; here is what the run makes of its exit
    code.
    """
    program = f"import sys; sys.exit({int(ExitCode.NO_SPACE)})"
    monkeypatch.setattr(
        test_runner, "COMMANDS", replace(test_runner.COMMANDS, train=(sys.executable, "-c", program))
    )
    result = go(project, {"G": stage()})
    assert (result.exit_code, result.end.outcome, len(result.attempts)) == (1, Outcome.BROKEN, 1), (
        "no retry can help"
    )
    assert weights(project) == []
    monkeypatch.undo()
    monkeypatch.setenv("PYTHONPATH", str(Path(standin.__file__).parents[2]))
    assert go(project, {"G": stage()}).exit_code == 0


@pytest.mark.fault(
    "processes of a dead run without guard and supervisor", how="three real processes, one of them ours"
)
def test_strays_of_ended_runs_are_killed_and_nobody_else(project: Path) -> None:
    """Real processes that lost their guard and supervisor: one of a run that is over, one of a folder that no
    run of the journal has.
    """
    done = go(project, {"G": stage()})
    runs = project / "artifacts" / "runs"
    folders = {
        "ours": runs / done.attempts[0].attempt.run_id / "01-G-attempt1",
        "validate": runs / "20260101-000000-validate-abcd",
    }
    folders |= {"elsewhere": project / "other" / "runs" / done.attempts[0].attempt.run_id}
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = {
        name: subprocess.Popen(sleep, env={**os.environ, WRITE_ROOT: str(folder)})
        for name, folder in folders.items()
    }
    try:
        while not all(
            WRITE_ROOT.encode() in Path(f"/proc/{p.pid}/environ").read_bytes() for p in started.values()
        ):
            time.sleep(0.01)
        go(project, {"G": stage()})
        assert started["ours"].wait(5) == -9
        assert [started[name].poll() for name in ("validate", "elsewhere")] == [None, None]
    finally:
        for process in started.values():
            process.kill()
            process.wait()


SAVES_AND_DIES = """
import json, os, pathlib, signal, sys
request = json.loads(pathlib.Path(sys.argv[1]).read_text())
print(request["resume"], flush=True)
folder = pathlib.Path(request["checkpoints"])
folder.mkdir()
step = 3 if not request["resume"] else 9
(folder / f"step-{step:08d}.dat").write_text("a state")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.fault("the stage is killed from outside", how="SIGKILL after each of two saved states", trials=2)
def test_killed_from_outside_is_interrupted_and_goes_on_from_the_latest_state(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice killed by SIGKILL after saving a state; then the same command gives the latest one to the stage,
    and removes both.
    """
    with monkeypatch.context() as patched:
        patched.setattr(
            test_runner, "COMMANDS", replace(COMMANDS, train=(sys.executable, "-c", SAVES_AND_DIES))
        )
        killed = [go(project, {"G": stage()}) for _ in range(2)]
    assert [(result.exit_code, result.attempts) for result in killed] == [(ExitCode.INTERRUPTED, ())] * 2
    runs = project / "artifacts" / "runs"
    states = sorted(str(path.relative_to(project)) for path in runs.rglob("step-*.dat"))
    assert len(states) == 2
    told = [path.read_text(encoding="utf-8").strip() for path in runs.glob("*/01-G-attempt1/stdout.log")]
    first, second = (next(path for path in states if path.endswith(end)) for end in ("3.dat", "9.dat"))
    assert sorted(told) == ["", first]
    result = go(project, {"G": stage()})
    assert result.exit_code == 0
    request = (project / result.attempts[0].attempt.folder / "request.json").read_text(encoding="utf-8")
    assert f'"resume": "{second}"' in request
    assert '"resume": ""' in (project / result.attempts[0].attempt.folder / "again-request.json").read_text(
        encoding="utf-8"
    )
    assert not list(runs.rglob("step-*.dat"))
    assert "killed from outside" in (project / "DevLog.md").read_text(encoding="utf-8")


@pytest.mark.fault("guard or supervisor of a stage is killed", how="SIGKILL to one of them during a run")
@pytest.mark.parametrize("victim", [pytest.param("guard", marks=pytest.mark.slow), "supervisor"])
def test_a_guard_or_supervisor_killed_is_an_interruption(project: Path, victim: str) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.pipeline.run.test_runner import go, stage\n"
        "sys.exit(go(Path(sys.argv[1]), {'G': stage('slow', steps=400)}).exit_code)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(project)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    while (
        not list((project / "artifacts" / "runs").glob("*/01-G-attempt1/events.jsonl"))
        and process.poll() is None
    ):
        time.sleep(0.02)
    chain = [process.pid]
    while len(chain) < 3:
        found = [
            int(pid)
            for path in Path(f"/proc/{chain[-1]}/task").glob("*/children")
            for pid in path.read_text().split()
        ]
        chain += [pid for pid in found if b"pipeline.guard" in Path(f"/proc/{pid}/cmdline").read_bytes()][:1]
    os.kill(chain[1 if victim == "guard" else 2], signal.SIGKILL)
    assert process.wait(30) == ExitCode.INTERRUPTED
    with Journal(project / "artifacts" / "journal.db") as book:
        assert [row.state for item in book.runs() for row in book.attempts(item.run_id)] == [
            State.INTERRUPTED
        ]


DEAF = (
    "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]; "
    "print('deaf', flush=True); time.sleep(120)"
)


def guards_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The guards that are children of a control process."""
    found = [
        int(pid)
        for path in Path(f"/proc/{process.pid}/task").glob("*/children")
        for pid in path.read_text().split()
    ]
    return [pid for pid in found if b"pipeline.guard" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def deaf_run(project: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A control process whose stage hears no signal, and the guard of that stage."""
    program = (
        "import sys; from dataclasses import replace; from pathlib import Path\n"
        "from tests.pipeline.run import test_runner\n"
        f"test_runner.COMMANDS = replace(test_runner.COMMANDS, train=(sys.executable, '-c', {DEAF!r}))\n"
        "test_runner.go(Path(sys.argv[1]), {'G': test_runner.stage()})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(project)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    logs = (project / "artifacts" / "runs").glob
    wait_for(
        lambda: any(path.read_bytes() for path in logs("*/01-G-attempt1/stdout.log")), "a deaf stage", 40
    )
    (guard,) = guards_of(process)
    return process, guard


@pytest.mark.fault(
    "a guard with a deaf stage left over from a dead run",
    how="SIGKILL to the control process, then the same command",
)
def test_what_a_dead_run_left_is_named_and_ended_at_once(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The guard would wait its grace for the stage to hear: 30 s of held memory. The new run has it kill at
    once.
    """
    process, guard = deaf_run(project)
    process.kill()
    process.wait()
    began = time.monotonic()
    assert go(project, {"G": stage()}).exit_code == 0
    assert time.monotonic() - began < 15
    assert f"process {guard}, ended now" in capsys.readouterr().err
    assert not alive(guard)


@pytest.mark.fault(
    "a left-over guard that does not end",
    how="SIGSTOP to the guard, SIGKILL to the control process, then the same command",
)
def test_a_leftover_that_does_not_end_is_named_with_the_way_to_end_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, guard = deaf_run(project)
    os.kill(guard, signal.SIGSTOP)
    process.kill()
    process.wait()
    monkeypatch.setattr(session, "LEFTOVER_SECS", 1.0)
    with pytest.raises(SessionError, match=f"kill -9 {guard}, then start again"):
        go(project, {"G": stage()})
    os.kill(guard, signal.SIGKILL)
    assert go(project, {"G": stage()}).exit_code == 0, (
        "as it was told: the guard's supervisor ended the stage"
    )
