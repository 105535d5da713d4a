"""One guarded process: how it is started, followed, asked to stop and ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.core.guard_limits import GuardLimits, ReaderKind
from pipeline.processes.stage_process import (
    Job,
    ProcessCallbacks,
    command_line,
    guarded_process,
    last_memory,
    run_guarded,
)
from stages.contract.events import Event, EventKind, ExitCode
from stages.contract.signals import StopSignals

LIMITS = GuardLimits(
    gpu_limit_gb=2, gpu_poll_secs=0.02, min_available_gb=0, grace_secs=5, reader=ReaderKind.RESIDENT
)


def script(folder: Path, text: str) -> Job:
    (folder / "job").mkdir()
    (folder / "script.py").write_text(text, encoding="utf-8")
    return Job((sys.executable, str(folder / "script.py")), "job")


def test_events_arrive_while_the_process_runs(tmp_path: Path) -> None:
    line = Event("2026-01-01T00:00:00.000000Z", EventKind.STEP, step=1, total=2).line()
    text = f"import time; f = open('job/events.jsonl', 'a')\nf.write({line!r} + '{{half'); f.flush()\n"
    text += "time.sleep(1.0); f.write('\\n')"
    seen: list[float] = []
    began = time.monotonic()
    ended = run_guarded(
        script(tmp_path, text),
        LIMITS,
        tmp_path,
        ProcessCallbacks(on_event=lambda event: seen.append(time.monotonic() - began)),
    )
    assert len(seen) == 1 and seen[0] < 0.9, (
        "the first line came before the process ended; the broken one is no event"
    )
    assert ended.exit_code == 0
    assert ended.seconds > 1.0


def test_a_first_request_to_stop_is_polite_a_second_is_not(tmp_path: Path) -> None:
    text = "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: open('polite', 'w').close())\n"
    text += "time.sleep(30)\ntime.sleep(30)"
    stop = StopSignals()

    def ask() -> None:
        deadline = time.monotonic() + 10
        while not (tmp_path / "job" / "trace.csv").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.5)
        stop.count = 1
        while not (tmp_path / "polite").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        stop.count = 2

    threading.Thread(target=ask, daemon=True).start()
    ended = run_guarded(script(tmp_path, text), LIMITS, tmp_path, ProcessCallbacks(stop=stop))
    assert (tmp_path / "polite").exists()
    assert ended.exit_code == ExitCode.INTERRUPTED
    assert ended.seconds < 10


def test_an_error_of_the_caller_ends_the_process(tmp_path: Path) -> None:
    job = script(tmp_path, "import time; time.sleep(60)")
    began = time.monotonic()
    with (
        pytest.raises(OSError, match="no space"),
        guarded_process(job, LIMITS, tmp_path, ProcessCallbacks()) as process,
    ):
        raise OSError("no space")
    assert process.wait().exit_code != 0
    assert time.monotonic() - began < 10


def test_the_caller_works_while_the_process_runs(tmp_path: Path) -> None:
    job = script(tmp_path, "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)")
    started: list[int] = []
    callbacks = ProcessCallbacks(on_start=started.append)
    with guarded_process(job, LIMITS, tmp_path, callbacks) as process:
        (tmp_path / "go").touch()
        ended = process.wait()
    assert (ended.exit_code, started) == (0, [process.pid])
    assert ended.report is not None and ended.report.guard_pid == process.pid


def test_a_process_without_a_result_is_explained_by_its_last_line(tmp_path: Path) -> None:
    ended = run_guarded(
        script(tmp_path, "raise RuntimeError('the disk is on fire')"), LIMITS, tmp_path, ProcessCallbacks()
    )
    assert ended.exit_code == 1
    assert "the disk is on fire" in ended.error and "stderr.log" in ended.error


def test_the_line_by_hand_has_no_parent_and_no_files_of_the_first_run(tmp_path: Path) -> None:
    job = Job((str(tmp_path / "bin" / "python"), "-m", "stages.train"), "job")
    assert command_line(job, LIMITS, Path(sys.executable).parents[1]).split() == [
        *("bin/python", "-m", "pipeline.guard", "--gpu-limit-gb", "2", "--gpu-over-secs", "0"),
        *("--gpu-poll-secs", "0.02", "--min-available-gb", "0", "--time-limit", "0", "--grace-secs", "5"),
        *("--reader", "resident", "--", str(tmp_path / "bin" / "python"), "-m", "stages.train"),
        "job/request.json",
    ]
    assert command_line(job, LIMITS, tmp_path).endswith("-- bin/python -m stages.train job/request.json")


def test_the_last_memory_is_of_a_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    assert last_memory(file) is None
    file.write_text("time_utc,pid_mib,total_mib,available_mib\n", encoding="utf-8")
    assert last_memory(file) is None
    with file.open("a", encoding="utf-8") as stream:
        stream.write("2026-01-01T00:00:00Z,12.5,100,200\n2026-01-01T00:00:00Z,9")
    assert last_memory(file) == 12.5


@pytest.mark.fault("a request to stop where SIGINT is ignored", how="SIGINT ignored, as a shell does for `&`")
def test_a_run_in_the_background_of_a_script_can_be_stopped(tmp_path: Path) -> None:
    """Ignored signals are inherited; the run takes SIGINT back, so its guard and stage hear it again."""
    handler = "signal.signal(signal.SIGINT, lambda *_: sys.exit(130))"
    job = script(tmp_path, f"import signal, sys, time\n{handler}\nopen('ready', 'w')\ntime.sleep(30)")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with (
            StopSignals() as stop,
            guarded_process(job, LIMITS, tmp_path, ProcessCallbacks(stop=stop)) as process,
        ):
            while not (tmp_path / "ready").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            ended = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.exit_code == ExitCode.INTERRUPTED and ended.seconds < 15
    assert ended.report is not None and not ended.report.killed
