"""The guard against real processes: over the limit, daemonized, deaf to signals, orphaned; and every exit code."""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.guard import GuardLimits, GuardReport, Reason, guard_command
from pipeline.memory import ReaderKind
from pipeline.trace import load_samples
from stages.contract.serial import RequestError

ROOT = Path(__file__).resolve().parents[2]
LIMIT_GB = 0.15
TOO_MUCH = "data = bytearray(b'1') * (400 << 20)"
GUARD = [sys.executable, "-m", "pipeline.guard", "--reader", "resident", "--gpu-limit-gb", str(LIMIT_GB)]


def python(code: str, *arguments: object) -> list[str]:
    """A command that runs `code`, with the imports that most of these need."""
    head = "import os, signal, subprocess, sys, time\nfrom pathlib import Path\n"
    return [sys.executable, "-I", "-S", "-c", head + textwrap.dedent(code), *map(str, arguments)]


class Guarded:
    """A guard that a test started, with the files it writes."""

    def __init__(self, folder: Path, command: list[str], *options: str, **popen: object) -> None:
        self.report_path, self.trace_path = folder / "report.json", folder / "trace.csv"
        files = ["--report", str(self.report_path), "--trace", str(self.trace_path)]
        self.process = subprocess.Popen(
            [*GUARD, "--gpu-poll-secs", "0.01", *files, *options, "--", *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **popen,  # type: ignore[call-overload]
        )

    def end(self, seconds: float = 20.0) -> tuple[int, GuardReport, str]:
        """(exit code, report, stderr) once it has ended."""
        try:
            _, said = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, GuardReport.load(self.report_path), said


def wait_for(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids_in(folder: Path, count: int) -> list[int]:
    """The ids that `count` processes wrote as names `<id>.pid`, once they are all there."""
    wait_for(lambda: len(list(folder.glob("*.pid"))) >= count, f"{count} processes in {folder}")
    return [int(path.stem) for path in folder.glob("*.pid")]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for `<id>.pid` files; whatever named itself there and still lives after the test is killed."""
    place = tmp_path / "pids"
    place.mkdir()
    yield place
    for path in place.glob("*.pid"):
        if alive(int(path.stem)):
            os.kill(int(path.stem), signal.SIGKILL)


SIGN_IN = "Path(sys.argv[1], f'{os.getpid()}.pid').touch()\n"

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


@pytest.mark.parametrize("case", OVER_LIMIT)
def test_over_the_limit_is_killed_whole(tmp_path: Path, folder: Path, case: str) -> None:
    code = SIGN_IN + textwrap.dedent(OVER_LIMIT[case]) + "\ntime.sleep(60)"
    guarded = Guarded(tmp_path, python(code, folder))
    began = time.monotonic()
    exit_code, report, said = guarded.end()
    assert time.monotonic() - began < 15
    assert exit_code == report.exit_code == 124
    assert report.reason is Reason.MEMORY and report.killed
    assert report.breach_mib is not None and report.breach_mib > LIMIT_GB * 1024
    assert report.peak_mib >= report.breach_mib
    assert report.breach_to_kill_ms is not None and report.breach_to_kill_ms < 100
    assert "over the limit of 154 MiB" in said and report.message in said
    assert not [pid for pid in pids_in(folder, 1) if alive(pid)]
    samples = load_samples(guarded.trace_path)
    assert len(samples) == report.samples
    assert max(sample.pid_mib for sample in samples) == report.peak_mib


def test_under_the_limit_is_left_alone(tmp_path: Path) -> None:
    code = "print('to stdout'); print('to stderr', file=sys.stderr); time.sleep(0.2)"
    guarded = Guarded(tmp_path, python(code))
    out, said = guarded.process.communicate(timeout=20)
    report = GuardReport.load(guarded.report_path)
    assert guarded.process.returncode == 0 and out == "to stdout\n" and "to stderr\n" in said
    assert (report.reason, report.message, report.killed, report.blind) == (Reason.ENDED, "", False, False)
    assert report.samples >= 10 and 1 < report.peak_mib < LIMIT_GB * 1024
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
    assert report.peak_mib > 400


def test_a_lasting_excess_is_killed_after_over_secs(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, python(f"{TOO_MUCH}; time.sleep(60)"), "--gpu-over-secs", "0.5")
    exit_code, report, _ = guarded.end()
    over = [sample for sample in load_samples(guarded.trace_path) if sample.pid_mib > LIMIT_GB * 1024]
    assert exit_code == 124 and report.reason is Reason.MEMORY
    assert len(over) >= 20


def test_a_floor_above_what_the_machine_has_kills(tmp_path: Path) -> None:
    exit_code, report, said = Guarded(tmp_path, python("time.sleep(60)"), "--min-available-gb", "1e6").end()
    assert exit_code == 124 and report.reason is Reason.AVAILABLE
    assert report.breach_mib == report.least_available_mib
    assert "under the floor" in said and "--min-available-gb" in said


@pytest.mark.parametrize(("code", "expected"), [("sys.exit(0)", 0), ("sys.exit(5)", 5), ("sys.exit(255)", 255)])
def test_own_exit_code(tmp_path: Path, code: str, expected: int) -> None:
    exit_code, report, _ = Guarded(tmp_path, python(code)).end()
    assert (exit_code, report.exit_code, report.child_exit_code, report.reason) == (expected, expected, expected, Reason.ENDED)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_own_signal(tmp_path: Path, number: int) -> None:
    exit_code, report, _ = Guarded(tmp_path, python(f"os.kill(os.getpid(), {int(number)})\ntime.sleep(60)")).end()
    assert exit_code == report.child_exit_code == 128 + number and not report.killed


def test_signals_are_as_a_program_expects_them(tmp_path: Path) -> None:
    """Python ignores SIGPIPE and the keeper ignores SIGTERM; neither may be inherited."""

    def masks(status: str) -> list[str]:
        return [line for line in status.splitlines() if line.startswith(("SigIgn", "SigBlk"))]

    guarded = Guarded(tmp_path, ["cat", "/proc/self/status"])
    out, _ = guarded.process.communicate(timeout=20)
    # Whoever started the tests may ignore signals of its own: what a plain child inherits is the measure.
    plain = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    assert masks(out) == masks(plain) and len(masks(out)) == 2


def test_unknown_command(tmp_path: Path) -> None:
    exit_code, report, said = Guarded(tmp_path, ["no-such-program-anywhere"]).end()
    assert exit_code == report.exit_code == 127
    assert report.reason is Reason.NOT_STARTED and report.child_exit_code is None
    assert "could not be started: No such file or directory" in said


def test_command_that_is_not_executable(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("text")
    exit_code, report, said = Guarded(tmp_path, [str(plain)]).end()
    assert exit_code == 126 and report.reason is Reason.NOT_STARTED
    assert "Permission denied" in said


def test_blind_refuses_to_start(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    guarded = Guarded(tmp_path, ["/usr/bin/touch", str(mark)], "--reader", "nvidia-smi", env={**os.environ, "PATH": ""})
    exit_code, report, said = guarded.end()
    assert exit_code == report.exit_code == 2
    assert report.reason is Reason.BLIND and report.blind and report.child_exit_code is None
    assert "nvidia-smi: not found" in said and "--allow-blind" in said
    assert not mark.exists()


def test_blind_when_allowed_runs_and_says_so(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    options = ["--reader", "nvidia-smi", "--allow-blind"]
    exit_code, report, said = Guarded(tmp_path, ["/usr/bin/touch", str(mark)], *options, env={**os.environ, "PATH": ""}).end()
    assert exit_code == 0 and mark.exists()
    assert report.blind and report.reader == "none" and report.samples == 0
    assert "BLIND" in report.notes[0] and "BLIND" in said


FAKE_SMI = """#!/bin/sh
# Ends with an error once the file `broken` exists. The figure of memory follows the file `mib`.
[ -e "{folder}/broken" ] && exit 9
case "$1" in
*compute-apps*) for p in "{folder}"/*.pid; do [ -e "$p" ] && echo "$(basename "$p" .pid), $(cat "{folder}/mib")"; done ;;
*) echo "[N/A]" ;;
esac
exit 0
"""


def fake_smi(folder: Path, mib: int) -> dict[str, str]:
    """An environment whose `nvidia-smi` names the processes that signed in to `folder`, as on unified memory."""
    (folder / "bin").mkdir()
    (folder / "bin" / "nvidia-smi").write_text(FAKE_SMI.format(folder=folder))
    (folder / "bin" / "nvidia-smi").chmod(0o755)
    (folder / "mib").write_text(str(mib))
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def test_gpu_memory_of_a_grandchild_on_unified_memory(tmp_path: Path, folder: Path) -> None:
    env = fake_smi(folder, 5)
    code = "os.fork()\n" + SIGN_IN + "time.sleep(0.3); Path(sys.argv[1], 'mib').write_text('90'); time.sleep(60)"
    options = ["--reader", "nvidia-smi", "--min-available-gb", "0"]
    exit_code, report, said = Guarded(tmp_path, python(code, folder), *options, env=env).end()
    assert exit_code == 124 and report.reason is Reason.MEMORY, said
    assert report.breach_mib == 180 and report.reader == "nvidia-smi"
    assert "share one memory" in said


def test_memory_that_cannot_be_read_any_more_ends_the_command(tmp_path: Path, folder: Path) -> None:
    env = fake_smi(folder, 5)
    code = SIGN_IN + "time.sleep(0.3); Path(sys.argv[1], 'broken').touch(); time.sleep(60)"
    exit_code, report, said = Guarded(tmp_path, python(code, folder), "--reader", "nvidia-smi", env=env).end()
    assert exit_code == 124 and report.reason is Reason.BLIND and report.blind
    assert report.failed_reads > 1 and "cannot be read any more" in said


POLITE = """
def stop(number, frame):
    time.sleep(0.2)
    print('asked', number, flush=True)
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
"""


@pytest.mark.parametrize(
    ("sent", "seen"), [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM)]
)
def test_one_signal_lets_the_command_finish(tmp_path: Path, folder: Path, sent: int, seen: int) -> None:
    guarded = Guarded(tmp_path, python(POLITE + SIGN_IN + "time.sleep(60)", folder))
    pids_in(folder, 1)
    guarded.process.send_signal(sent)
    out, _ = guarded.process.communicate(timeout=20)
    report = GuardReport.load(guarded.report_path)
    assert out == f"asked {int(seen)}\n" and guarded.process.returncode == 130
    assert report.reason is Reason.INTERRUPTED and not report.killed and report.child_exit_code == 130


def test_a_second_signal_kills_at_once(tmp_path: Path, folder: Path) -> None:
    code = "[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]\n" + SIGN_IN + "time.sleep(60)"
    guarded = Guarded(tmp_path, python(code, folder))
    (pid,) = pids_in(folder, 1)
    guarded.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert alive(pid) and guarded.process.poll() is None
    guarded.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    exit_code, report, _ = guarded.end()
    assert time.monotonic() - began < 2 and not alive(pid)
    assert exit_code == 130 and report.killed and report.child_exit_code == 137


def test_who_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path, folder: Path) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SIGN_IN + "os.fork(); time.sleep(60)"
    guarded = Guarded(tmp_path, python(code, folder), "--time-limit", "0.3", "--grace-secs", "0.3")
    exit_code, report, _ = guarded.end()
    assert exit_code == 124 and report.reason is Reason.TIME and report.killed
    assert 0.6 <= report.seconds < 5


def test_time_limit_is_polite_first(tmp_path: Path) -> None:
    exit_code, report, _ = Guarded(tmp_path, python(POLITE + "time.sleep(60)"), "--time-limit", "0.4").end()
    assert exit_code == 124 and report.reason is Reason.TIME
    assert not report.killed and report.child_exit_code == 130


def test_memory_is_watched_during_the_grace(tmp_path: Path) -> None:
    code = f"def more(*_):\n    global data\n    {TOO_MUCH}\n    time.sleep(60)\nsignal.signal(signal.SIGTERM, more)\ntime.sleep(60)"
    exit_code, report, _ = Guarded(tmp_path, python(code), "--time-limit", "0.3", "--grace-secs", "60").end()
    assert exit_code == 124 and report.reason is Reason.MEMORY and report.killed


DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, DEAF)
    Path(sys.argv[1], f'{os.getpid()}.pid').touch()
    os.close(1); os.close(2)
    time.sleep(60)
while not list(Path(sys.argv[1]).glob('*.pid')):
    time.sleep(0.01)
"""


@pytest.mark.parametrize(("deaf", "leftovers"), [("signal.SIG_DFL", 0), ("signal.SIG_IGN", 1)])
def test_nothing_outlives_a_command_that_ended(tmp_path: Path, folder: Path, deaf: str, leftovers: int) -> None:
    guarded = Guarded(tmp_path, python(DAEMON.replace("DEAF", deaf) + "sys.exit(3)", folder))
    exit_code, report, _ = guarded.end()
    assert exit_code == 3 and report.reason is Reason.ENDED and report.leftovers == leftovers
    assert not [pid for pid in pids_in(folder, 1) if alive(pid)]


FAMILY = (
    SIGN_IN
    + """
[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]
for kind in 'plain', 'session', 'daemon':
    if os.fork() == 0:
        if kind != 'plain':
            os.setsid()
        if kind == 'daemon' and os.fork():
            os._exit(0)
        Path(sys.argv[1], f'{os.getpid()}.pid').touch()
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""
)


def keeper_of(guard: int) -> int:
    (pid,) = [int(pid) for pid in Path(f"/proc/{guard}/task/{guard}/children").read_text().split()]
    return pid


def test_nothing_survives_a_guard_that_was_killed(tmp_path: Path, folder: Path) -> None:
    guarded = Guarded(tmp_path, python(FAMILY, folder), start_new_session=True)
    family = pids_in(folder, 4)
    keeper = keeper_of(guarded.process.pid)
    guarded.process.kill()
    guarded.process.wait(timeout=5)
    wait_for(lambda: not any(map(alive, [*family, keeper])), "all dead", seconds=2)
    with pytest.raises(RequestError, match="no such file"):
        GuardReport.load(guarded.report_path)


def test_nothing_survives_a_guard_killed_at_any_moment(tmp_path: Path, folder: Path) -> None:
    """Twenty moments from before the fork of the keeper until about when the family is complete."""

    def survivors() -> list[int]:
        named = (path for path in Path("/proc").glob("[0-9]*") if os.fsencode(folder) in read_or_nothing(path / "cmdline"))
        return [int(path.name) for path in named if alive(int(path.name))]

    began = time.monotonic()
    family = Guarded(tmp_path, python(FAMILY, folder), start_new_session=True)
    wait_for(lambda: len(list(folder.glob("*.pid"))) >= 4, "a whole family", seconds=20)
    whole = time.monotonic() - began  # of this machine, as busy as it is now
    family.process.kill()
    family.process.wait(timeout=5)
    for trial in range(20):
        guarded = Guarded(tmp_path, python(FAMILY, folder), start_new_session=True)
        time.sleep(whole * trial / 19)
        guarded.process.kill()
        guarded.process.wait(timeout=5)
        wait_for(lambda: not survivors(), f"all dead, killed after {whole * trial / 19:.3f} s", seconds=5)


def read_or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_nothing_survives_a_guard_whose_group_was_killed(tmp_path: Path, folder: Path) -> None:
    guarded = Guarded(tmp_path, python(FAMILY, folder), start_new_session=True)
    family = pids_in(folder, 4)
    os.killpg(guarded.process.pid, signal.SIGKILL)
    guarded.process.wait(timeout=5)
    wait_for(lambda: not any(map(alive, family)), "all dead", seconds=2)


def test_nothing_survives_a_keeper_that_was_killed(tmp_path: Path, folder: Path) -> None:
    guarded = Guarded(tmp_path, python(FAMILY, folder))
    family = pids_in(folder, 4)
    os.kill(keeper_of(guarded.process.pid), signal.SIGKILL)
    exit_code, report, said = guarded.end()
    assert exit_code == 137 and report.reason is Reason.KEEPER_LOST and report.killed
    assert "was ended by someone" in said
    assert not any(map(alive, family))


def test_the_command_dies_with_guard_and_keeper(tmp_path: Path, folder: Path) -> None:
    guarded = Guarded(tmp_path, python(SIGN_IN + "time.sleep(60)", folder))
    (child,) = pids_in(folder, 1)
    keeper = keeper_of(guarded.process.pid)
    os.kill(keeper, signal.SIGSTOP)  # so that it cannot act on the guard's death
    guarded.process.kill()
    os.kill(keeper, signal.SIGKILL)
    guarded.process.wait(timeout=5)
    wait_for(lambda: not alive(child), "the command dead", seconds=2)


def test_the_guard_ends_with_the_process_that_started_it(tmp_path: Path, folder: Path) -> None:
    """As a runner does it: `guard_command`, then the runner is killed."""
    report, trace = tmp_path / "report.json", tmp_path / "trace.csv"
    limits = GuardLimits(gpu_limit_gb=LIMIT_GB, gpu_poll_secs=0.01, reader=ReaderKind.RESIDENT)
    code = f"""
        import os, subprocess, sys
        from pathlib import Path
        from pipeline.guard import GuardLimits, guard_command
        from pipeline.memory import ReaderKind
        command = guard_command({limits!r}, {python(SIGN_IN + "time.sleep(60)", folder)!r}, Path({str(trace)!r}),
                                Path({str(report)!r}))
        subprocess.run(command, start_new_session=True)
        """.replace("<ReaderKind.RESIDENT: 'resident'>", "ReaderKind.RESIDENT")
    runner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stderr=subprocess.DEVNULL)
    (child,) = pids_in(folder, 1)
    runner.kill()
    runner.wait(timeout=5)
    wait_for(report.exists, "the report")
    wait_for(lambda: not alive(child), "the command dead")
    assert GuardReport.load(report).reason is Reason.PARENT_GONE


def test_a_guard_that_is_orphaned_before_it_starts_starts_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    guarded = Guarded(tmp_path, ["touch", str(mark)], "--parent-pid", "1")
    _, said = guarded.process.communicate(timeout=20)
    assert guarded.process.returncode == 130 and not mark.exists() and "gone already" in said


def test_a_terminal_that_does_not_read_does_not_stop_the_guard(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"x" * 4096)
    os.set_blocking(write_end, True)
    command = [*GUARD, "--report", str(tmp_path / "report.json"), "--", *python(f"{TOO_MUCH}; time.sleep(60)")]
    done = subprocess.run(command, cwd=ROOT, stderr=write_end, timeout=20, check=False)
    os.close(read_end)
    os.close(write_end)
    assert done.returncode == 124 and GuardReport.load(tmp_path / "report.json").reason is Reason.MEMORY


def test_all_faults_at_once(tmp_path: Path) -> None:
    there = tmp_path / "report.json"
    there.write_text("{}")
    options = ["--gpu-poll-secs=0", "--gpu-over-secs=-1", "--min-available-gb=nan", "--time-limit=abc", "--grace-secs=inf"]
    command = [sys.executable, "-m", "pipeline.guard", *options, "--reader", "x", "--trace", "/no/where/t.csv"]
    done = subprocess.run([*command, "--report", str(there)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    for fault in (
        "--gpu-limit-gb: missing",
        "--gpu-poll-secs: 0.0: must be a finite number, more than 0",
        "--gpu-over-secs: -1.0: must be a finite number, 0 or more",
        "--min-available-gb: nan: must",
        "--time-limit: 'abc': is no number",
        "--grace-secs: inf: must",
        "--reader: 'x': must be one of auto, nvml, nvidia-smi, resident",
        "--trace: /no/where/t.csv: its folder does not exist",
        "exists already",
        "COMMAND: missing",
    ):
        assert fault in done.stderr
    assert there.read_text() == "{}"


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_limits_name_each_impossible_number(value: float) -> None:
    limits = GuardLimits(value, gpu_poll_secs=value, gpu_over_secs=value, min_available_gb=value, time_limit=value, grace_secs=value)
    named = {fault.split(":")[0] for fault in limits.check()}
    never = {"gpu_limit_gb", "gpu_poll_secs"}
    assert named == (never if value == 0 else never | {"gpu_over_secs", "min_available_gb", "time_limit", "grace_secs"})
    with pytest.raises(ValueError, match="gpu_limit_gb"):
        guard_command(limits, ["true"], Path("t.csv"), Path("r.json"))


def test_guard_command_is_understood(tmp_path: Path) -> None:
    limits = GuardLimits(0.25, 1.5, 0.02, min_available_gb=0.125, time_limit=60, grace_secs=7, reader=ReaderKind.RESIDENT)
    report = tmp_path / "report.json"
    command = guard_command(limits, ["sh", "-c", "exit 6", "--", "--x"], tmp_path / "trace.csv", report)
    assert subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode == 6
    loaded = GuardReport.load(report)
    assert loaded.command == ["sh", "-c", "exit 6", "--", "--x"]
    told = (loaded.limit_gb, loaded.over_secs, loaded.poll_secs, loaded.min_available_gb, loaded.time_limit)
    assert told == (0.25, 1.5, 0.02, 0.125, 60)


def test_report_refuses_what_is_no_report(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"reason": "bored", "exit_code": "0"}))
    with pytest.raises(RequestError, match="bored"):
        GuardReport.load(path)


def test_starts_fast_and_imports_nothing_heavy() -> None:
    code = "import sys, pipeline.guard; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "mlflow", "matplotlib", "pandas", "hydra", "omegaconf", "rich", "pynvml"} & set(loaded)
    seconds = []
    for _ in range(5):
        before = os.times()
        subprocess.run([*GUARD, "--", "true"], cwd=ROOT, stderr=subprocess.DEVNULL, check=True)
        after = os.times()
        # Processor time: the wall clock would measure who else is on this machine.
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(seconds) < 0.3


BREACH = """
import mmap, struct, time
page = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 16)
limit = int(float(sys.argv[2]) * (1 << 20))
resident = lambda: int(Path('/proc/self/statm').read_text().split()[1]) * mmap.PAGESIZE
held = [bytearray(b'1') * (limit - resident() - (30 << 20))]
time.sleep(0.05)
while resident() < limit:
    held.append(bytearray(b'1') * (1 << 20))
page[:8] = struct.pack('q', time.monotonic_ns())
while True:
    page[8:] = struct.pack('q', time.monotonic_ns())
"""


def survived_ms(tmp_path: Path, trial: int) -> tuple[float, float]:
    """(how long a process lived after it was over the limit by its own clock, sample to SIGKILL by the guard's), in ms."""
    place = tmp_path / f"trial{trial}"
    place.mkdir()
    stamps = place / "stamps"
    stamps.write_bytes(bytes(16))
    code = BREACH if trial % 2 else f"if os.fork() == 0:\n    os.setsid()\n{textwrap.indent(BREACH, '    ')}\ntime.sleep(60)"
    exit_code, report, _ = Guarded(place, python(code, stamps, LIMIT_GB * 1024)).end()
    assert exit_code == 124 and report.breach_to_kill_ms is not None
    with stamps.open("rb") as file, mmap.mmap(file.fileno(), 16, access=mmap.ACCESS_READ) as page:
        over, last = struct.unpack("qq", page[:])
    return max(0.0, (last - over) / 1e6), report.breach_to_kill_ms  # both stamps 0: killed by the poll that saw it first


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def check_latency(tmp_path: Path, trials: int) -> str:
    lived, killed = zip(*(survived_ms(tmp_path, trial) for trial in range(trials)), strict=True)
    text = f"{trials} trials, 10 ms polls; ms at 50 %, 99 %, most: "
    for name, values in (("sample to SIGKILL", list(killed)), ("life after the breach", list(lived))):
        text += f"{name} {percentile(values, 0.5):.1f} {percentile(values, 0.99):.1f} {max(values):.1f}; "
    assert percentile(list(killed), 0.99) <= 100, text
    assert percentile(list(lived), 0.99) <= 100, text
    return text


def test_latency(tmp_path: Path) -> None:
    check_latency(tmp_path, 20)


@pytest.mark.slow
def test_latency_over_200_trials(tmp_path: Path) -> None:
    print(check_latency(tmp_path, 200))


@pytest.mark.slow
def test_own_cost(tmp_path: Path) -> None:
    """Under 1 % of a core at 50 ms polls, with a tree of five, while other processes come and go."""
    others = subprocess.Popen(["sh", "-c", "while :; do sleep 0.1; done"])
    try:
        command = ["sh", "-c", "sleep 20 & sleep 20 & sleep 20 & sleep 20"]
        _, report, _ = Guarded(tmp_path, command, "--gpu-poll-secs", "0.05").end(60)
    finally:
        others.kill()
        others.wait()
    share = report.cpu_seconds / report.seconds
    print(f"own cost at 50 ms polls: {100 * share:.2f} % of a core, {report.samples} samples")
    assert report.samples > 350 and share < 0.01


ON_THE_GPU = """
import ctypes
cuda = ctypes.CDLL('libcuda.so.1')
context, block = ctypes.c_void_p(), ctypes.c_uint64()
def check(code):
    if code:
        sys.exit(f'CUDA error {code}')
if os.fork() == 0:
    os.setsid()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    Path(sys.argv[1], f'{os.getpid()}.pid').touch()
    for _ in range(12):
        check(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(512 << 20)))
        time.sleep(0.2)
time.sleep(60)
"""


@pytest.mark.gpu
def test_gpu_memory_of_a_grandchild(tmp_path: Path, folder: Path) -> None:
    """With the driver's own figures: allocations of 512 MiB each, until the limit of 3 GB stops them."""
    options = ["--reader", "auto", "--gpu-limit-gb", "3", "--gpu-poll-secs", "0.05"]
    exit_code, report, said = Guarded(tmp_path, python(ON_THE_GPU, folder), *options).end(60)
    print(said, f"own cost: {100 * report.cpu_seconds / report.seconds:.2f} % of a core over {report.samples} samples")
    assert exit_code == 124 and report.reason is Reason.MEMORY and report.reader == "nvml" and not report.blind
    assert 3 * 1024 < report.peak_mib < 4.5 * 1024
    assert report.breach_to_kill_ms is not None and report.breach_to_kill_ms < 100
    assert not [pid for pid in pids_in(folder, 1) if alive(pid)]


KILLS_ITS_KEEPER = """
import os, signal, sys
from pipeline import guard, keeper
early = sys.argv[1] == "early"
if early:
    fork = os.fork
    def deadly():
        pid = fork()
        if pid: os.kill(pid, signal.SIGKILL)
        return pid
    os.fork = deadly
start = keeper.start
def started(command):
    kept = start(command)
    os.kill(kept.keeper_pid, signal.SIGKILL)
    while open(f"/proc/{kept.keeper_pid}/stat").read().rpartition(")")[2].split()[0] != "Z": pass
    return kept
keeper.start = start if early else started
sys.exit(guard.main(["--gpu-limit-gb", "4", "--reader", "resident", "--", "touch", sys.argv[2]]))
"""


@pytest.mark.parametrize("moment", ["early", "before the command is let go"])
def test_a_keeper_killed_before_the_command_starts_is_told_as_killed(tmp_path: Path, moment: str) -> None:
    mark = tmp_path / "started"
    done = subprocess.run([sys.executable, "-c", KILLS_ITS_KEEPER, moment, str(mark)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert "Traceback" not in done.stderr
    assert "second process" in done.stderr
    assert not mark.exists()
