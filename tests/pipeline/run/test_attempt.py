"""One attempt: its folder, how a process is followed and ended, where its weight goes, and what its record
holds.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.settings import GuardLimits, ReaderKind
from pipeline.core.types import Change, Outcome
from pipeline.evaluate.answers import AnswerCache
from pipeline.guard.machine import Machine
from pipeline.ledger.ledger import Ledger
from pipeline.processes.progress import Progress
from pipeline.processes.stage_process import Job, ProcessCallbacks, command_line, last_memory, run_guarded
from pipeline.run.attempt import AttemptResult, AttemptStart, RunContext, carry_out, outcome_of, prepare
from pipeline.run.plan import base_weight
from stages.contract import Event, EventKind, ExitCode
from stages.contract.signals import StopSignals
from tests.pipeline.project import COMMANDS, project, settings_of

__all__ = ["project"]

LIMITS = GuardLimits(
    gpu_limit_gb=2, gpu_poll_secs=0.02, min_available_gb=0, grace_secs=5, reader=ReaderKind.RESIDENT
)


def attempt(root: Path, **own: Any) -> AttemptResult:
    """Carries out one attempt of stage G of the project, without a base to compare with."""
    settings = settings_of(root, {"G": {"data": ["data/one.tsv"], "steps": 12, "lr": 1e-3, **own}})
    (root / "artifacts").mkdir(exist_ok=True)
    cache = AnswerCache(root, settings.artifacts, settings.guard, COMMANDS, Machine())
    with Ledger(root, settings.tracking, root / "artifacts") as ledger, Progress() as progress:
        ledger.open_run("run", "test", "command", "")
        context = RunContext(
            root, settings, "run", COMMANDS, Machine(), cache, ledger, progress, StopSignals()
        )
        start = AttemptStart(
            settings.stages[0].recipe,
            base_weight(settings, root),
            changes=(Change("lr", 1e-4, 1e-3),),
            why="because",
        )
        before = sorted(root.rglob("*"))
        ready = prepare(context, 0, 1, start)
        assert sorted(root.rglob("*")) == before, "preparing writes nothing"
        done = carry_out(context, 0, ready, start, None)
        found = ledger.find_finished(ready.content_key)
        assert found is not None and found[1] == done.end
        return done


def test_a_weight_is_moved_whole_and_known_by_its_hash(project: Path) -> None:
    done = attempt(project)
    assert done.weight is not None
    assert done.end.output_weight == f"artifacts/weights/test/G-{done.end.output_sha256[:8]}.dat"
    assert not (project / done.attempt.folder / "weight.dat").exists()
    assert (project / "model" / "base.dat").exists()


def test_a_failed_weight_says_why_it_lies_in_the_trash(project: Path) -> None:
    done = attempt(project, lr=0.5)
    assert done.weight is None
    folder = (project / done.end.output_weight).parent
    assert folder.name == "run-G-attempt1"
    reason = (folder / "REASON.md").read_text(encoding="utf-8")
    assert done.end.verdict is not None and done.end.verdict.evidence[0] in reason
    assert done.attempt.command in reason
    assert done.end.output_sha256 in reason


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        ("crash", 134, "SIGABRT|Abort|abort|exit code 134"),
        ("non_finite", ExitCode.NON_FINITE, "step 2: loss nan"),
    ],
)
def test_a_stage_that_fails_leaves_its_reason_and_no_weight(
    project: Path, data: str, code: int, words: str
) -> None:
    done = attempt(project, data=[f"data/{data}.tsv"])
    assert (done.end.outcome, done.end.exit_code, done.end.verdict) == (Outcome.BROKEN, code, None)
    assert re.search(words, done.end.error)
    assert done.end.output_weight == ""
    assert (project / done.attempt.folder / "trace.json").exists(), (
        "the trace of a failed attempt is what one wants to see"
    )


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (124, Outcome.OVER_LIMIT),
        (5, Outcome.OVER_LIMIT),
        (3, Outcome.BROKEN),
        (137, Outcome.BROKEN),
        (1, Outcome.BROKEN),
    ],
)
def test_exit_codes_have_a_meaning(code: int, outcome: Outcome) -> None:
    assert outcome_of(code) is outcome


def script(folder: Path, text: str) -> Job:
    (folder / "job").mkdir()
    (folder / "script.py").write_text(text, encoding="utf-8")
    return Job((sys.executable, str(folder / "script.py")), "job")


def test_events_arrive_while_the_process_runs(project: Path) -> None:
    line = Event("2026-01-01T00:00:00.000000Z", EventKind.STEP, step=1, total=2).line()
    text = "import time; f = open('job/events.jsonl', 'a')\n"
    text += f"f.write({line!r} + '{{half'); f.flush(); time.sleep(1.0)\nf.write('\\n')"
    seen: list[float] = []
    began = time.monotonic()
    ended = run_guarded(
        script(project, text),
        LIMITS,
        project,
        ProcessCallbacks(on_event=lambda event: seen.append(time.monotonic() - began)),
    )
    assert len(seen) == 1 and seen[0] < 0.9, (
        "the first line came before the process ended; the broken one is no event"
    )
    assert ended.exit_code == 0
    assert ended.seconds > 1.0


def test_a_first_request_to_stop_is_polite_a_second_is_not(project: Path) -> None:
    text = "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: open('polite', 'w').close())\n"
    text += "time.sleep(30)\ntime.sleep(30)"
    stop = StopSignals()

    def ask() -> None:
        deadline = time.monotonic() + 10
        while not (project / "job" / "trace.csv").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.5)
        stop.count = 1
        while not (project / "polite").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        stop.count = 2

    threading.Thread(target=ask, daemon=True).start()
    ended = run_guarded(script(project, text), LIMITS, project, ProcessCallbacks(stop=stop))
    assert (project / "polite").exists()
    assert ended.exit_code == ExitCode.INTERRUPTED
    assert ended.seconds < 10


def test_an_error_while_watching_ends_the_process(project: Path) -> None:
    def fails() -> None:
        raise OSError("no space")

    job = script(project, "import time; time.sleep(60)")
    began = time.monotonic()
    with pytest.raises(OSError, match="no space"):
        run_guarded(job, LIMITS, project, ProcessCallbacks(meanwhile=fails))
    assert time.monotonic() - began < 10


def test_a_process_without_a_result_is_told_by_its_last_words(project: Path) -> None:
    ended = run_guarded(
        script(project, "raise RuntimeError('the disk is on fire')"), LIMITS, project, ProcessCallbacks()
    )
    assert ended.exit_code == 1
    assert "the disk is on fire" in ended.error and "stderr.log" in ended.error


def test_the_line_by_hand_has_no_parent_and_no_files_of_the_first_run(project: Path) -> None:
    line = command_line(Job((str(project / "bin" / "python"), "-m", "stages.train"), "job"), LIMITS, project)
    assert "--parent-pid" not in line and "--report" not in line and "--trace" not in line
    assert line.endswith("-- bin/python -m stages.train job/request.json")


def test_the_last_memory_is_of_a_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    assert last_memory(file) is None
    file.write_text("time_utc,pid_mib,total_mib,available_mib\n", encoding="utf-8")
    assert last_memory(file) is None
    with file.open("a", encoding="utf-8") as stream:
        stream.write("2026-01-01T00:00:00Z,12.5,100,200\n2026-01-01T00:00:00Z,9")
    assert last_memory(file) == 12.5
