"""The guard against real processes: over the limit, under it, and every exit code."""

from __future__ import annotations

import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from pipeline.guard.report import GuardReport, Reason
from pipeline.guard.trace import load_samples
from tests.pipeline.guard.guarded import LIMIT_GB, SIGN_IN, TOO_MUCH, Guarded, alive, folder, pids_in, python

__all__ = ["folder"]

OVER_LIMIT = {
    "child": TOO_MUCH,
    "grandchild": f"subprocess.run([sys.executable, '-c', \"{TOO_MUCH}; import time; time.sleep(60)\"])",
    "two that are over only together": """
        data = bytearray(b'1') * (90 << 20)
        os.fork()
        data[::4096] = b'2' * len(data[::4096])
        """,
    "deaf to signals": f"[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 15)]; {TOO_MUCH}",
    "new session": f"os.setsid() if os.fork() == 0 else os.wait()\n{TOO_MUCH}",
    "daemon": f"""
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            Path(sys.argv[1], f'{{os.getpid()}}.pid').touch()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            {TOO_MUCH}
        """,
}


@pytest.mark.fault(
    "memory over the limit",
    how="a child, a grandchild, two together, one deaf to signals, a new session, a daemon take 400 MiB"
    " of 154",
)
@pytest.mark.parametrize("case", OVER_LIMIT)
def test_over_the_limit_is_killed_whole(tmp_path: Path, folder: Path, case: str) -> None:
    code = SIGN_IN + textwrap.dedent(OVER_LIMIT[case]) + "\ntime.sleep(60)"
    guarded = Guarded(tmp_path, python(code, folder))
    began = time.monotonic()
    exit_code, report, said = guarded.end()
    assert time.monotonic() - began < 15
    assert exit_code == report.exit_code == 124
    assert report.reason is Reason.MEMORY and report.killed
    assert report.figures.breach_mib is not None and report.figures.breach_mib > LIMIT_GB * 1024
    assert report.figures.peak_mib >= report.figures.breach_mib
    assert report.figures.breach_to_kill_ms is not None and report.figures.breach_to_kill_ms < 100
    assert "over the limit of 154 MiB" in said and report.message in said
    assert not [pid for pid in pids_in(folder, 1) if alive(pid)]
    samples = load_samples(guarded.trace_path)
    assert len(samples) == report.figures.samples
    assert max(sample.pid_mib for sample in samples) == report.figures.peak_mib


def test_under_the_limit_is_left_alone(tmp_path: Path) -> None:
    code = "print('to stdout'); print('to stderr', file=sys.stderr); time.sleep(0.2)"
    guarded = Guarded(tmp_path, python(code))
    out, said = guarded.process.communicate(timeout=20)
    report = GuardReport.load(guarded.report_path)
    assert guarded.process.returncode == 0 and out == "to stdout\n" and "to stderr\n" in said
    assert (report.reason, report.message, report.killed, report.blind) == (Reason.ENDED, "", False, False)
    assert report.figures.samples >= 10 and 1 < report.figures.peak_mib < LIMIT_GB * 1024
    assert report.reader == "resident" and report.limit_gb == LIMIT_GB
    first, second = said.splitlines()[:2]
    assert f"process {report.guard_pid} guards process {report.child_pid}" in first
    assert report.guard_pid == guarded.process.pid
    assert "resident memory of the process tree" in second and "/proc" in second


def test_the_command_runs_as_the_process_that_was_named(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, python("print(os.getpid())"))
    out, _ = guarded.process.communicate(timeout=20)
    assert int(out) == GuardReport.load(guarded.report_path).child_pid


def test_a_short_excess_is_forgiven_within_over_secs(tmp_path: Path) -> None:
    code = f"time.sleep(0.1); {TOO_MUCH}; time.sleep(0.1); del data; time.sleep(0.1)"
    exit_code, report, _ = Guarded(tmp_path, python(code), "--gpu-over-secs", "8").end()
    assert exit_code == 0 and report.reason is Reason.ENDED
    assert report.figures.peak_mib > 400


@pytest.mark.fault(
    "memory over the limit for longer than is forgiven", how="400 MiB of 154 held beyond --gpu-over-secs"
)
def test_a_lasting_excess_is_killed_after_over_secs(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, python(f"{TOO_MUCH}; time.sleep(60)"), "--gpu-over-secs", "0.5")
    exit_code, report, _ = guarded.end()
    over = [sample for sample in load_samples(guarded.trace_path) if sample.pid_mib > LIMIT_GB * 1024]
    assert exit_code == 124 and report.reason is Reason.MEMORY
    assert len(over) >= 20


@pytest.mark.fault("the machine has too little free memory", how="a floor above what it has")
def test_a_floor_above_what_the_machine_has_kills(tmp_path: Path) -> None:
    exit_code, report, said = Guarded(tmp_path, python("time.sleep(60)"), "--min-available-gb", "1e6").end()
    assert exit_code == 124 and report.reason is Reason.AVAILABLE
    assert report.figures.breach_mib == report.figures.least_available_mib
    assert "under the floor" in said and "--min-available-gb" in said


@pytest.mark.parametrize(
    ("code", "expected"), [("sys.exit(0)", 0), ("sys.exit(5)", 5), ("sys.exit(255)", 255)]
)
def test_own_exit_code(tmp_path: Path, code: str, expected: int) -> None:
    exit_code, report, _ = Guarded(tmp_path, python(code)).end()
    assert (exit_code, report.exit_code, report.child_exit_code, report.reason) == (
        expected,
        expected,
        expected,
        Reason.ENDED,
    )


@pytest.mark.fault("the guarded command dies by a signal", how="SIGKILL, SIGSEGV, SIGUSR1 to itself")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_own_signal(tmp_path: Path, number: int) -> None:
    exit_code, report, _ = Guarded(
        tmp_path, python(f"os.kill(os.getpid(), {int(number)})\ntime.sleep(60)")
    ).end()
    assert exit_code == report.child_exit_code == 128 + number and not report.killed


def test_signals_are_as_a_program_expects_them(tmp_path: Path) -> None:
    """Python ignores SIGPIPE and the supervisor ignores SIGTERM; neither may be inherited."""

    def masks(status: str) -> list[str]:
        return [line for line in status.splitlines() if line.startswith(("SigIgn", "SigBlk"))]

    guarded = Guarded(tmp_path, ["cat", "/proc/self/status"])
    out, _ = guarded.process.communicate(timeout=20)
    # Whoever started the tests may ignore signals of its own: what a plain child inherits is the measure.
    plain = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    assert masks(out) == masks(plain) and len(masks(out)) == 2


@pytest.mark.fault("the command does not exist", how="a name that is on no PATH")
def test_unknown_command(tmp_path: Path) -> None:
    exit_code, report, said = Guarded(tmp_path, ["no-such-program-anywhere"]).end()
    assert exit_code == report.exit_code == 127
    assert report.reason is Reason.NOT_STARTED and report.child_exit_code is None
    assert "could not be started: No such file or directory" in said


@pytest.mark.fault("the command is not executable", how="a text file")
def test_command_that_is_not_executable(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("text")
    exit_code, report, said = Guarded(tmp_path, [str(plain)]).end()
    assert exit_code == 126 and report.reason is Reason.NOT_STARTED
    assert "Permission denied" in said


@pytest.mark.fault(
    "memory over the limit after the request to end", how="400 MiB taken by the handler of SIGTERM"
)
def test_memory_is_watched_during_the_grace(tmp_path: Path) -> None:
    code = f"def more(*_):\n    global data\n    {TOO_MUCH}\n    time.sleep(60)\n"
    code += "signal.signal(signal.SIGTERM, more)\ntime.sleep(60)"
    exit_code, report, _ = Guarded(tmp_path, python(code), "--time-limit", "0.3", "--grace-secs", "60").end()
    assert exit_code == 124 and report.reason is Reason.MEMORY and report.killed
