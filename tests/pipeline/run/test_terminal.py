"""A run in a real terminal (a pty): Ctrl-C typed once and twice, and a terminal that is gone, as when tmux
dies.
"""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.config.compose import ROOT
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import Destination, State
from stages.contract.events import ExitCode
from tests.pipeline.guard.guarded import wait_for
from tests.pipeline.project import project
from tests.pipeline.run.test_runner import go, stage

__all__ = ["project"]

CTRL_C = b"\x03"
PROGRAM = (
    "import sys; from pathlib import Path; from tests.pipeline.run.test_runner import go, stage\n"
    "sys.exit(go(Path(sys.argv[1]), {'G': stage('slow', steps=int(sys.argv[2]))}).exit_code)"
)


@dataclass
class Terminal:
    """A terminal with a run in its foreground. `shown` is what it has been sent."""

    master: int
    process: subprocess.Popen[bytes]
    shown: bytearray = field(default_factory=bytearray)

    def read(self) -> None:
        """Takes all that the run shows, until the terminal is gone."""
        while True:
            try:
                data = os.read(self.master, 4096)
            except OSError:
                return
            if not data:
                return
            self.shown += data

    def close(self) -> None:
        """Takes the terminal away; the kernel sends SIGHUP to the run."""
        master, self.master = self.master, -1
        if master >= 0:
            os.close(master)


@pytest.fixture
def terminal(project: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    """A run whose stage has begun to train, and whose view is alive in the terminal. With the parameter
    `nohup`, under that, and short.
    """
    nohup = getattr(request, "param", "") == "nohup"
    master, slave = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    words = [sys.executable, "-c", PROGRAM, str(project), "60" if nohup else "600"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        words, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, env=environment, preexec_fn=own_terminal
    )
    os.close(slave)
    made = Terminal(master, process)
    reader = threading.Thread(target=made.read, daemon=True)
    reader.start()
    try:
        wait_for(
            lambda: list((project / "artifacts").glob("runs/*/01-G-attempt1/events.jsonl")), "a training", 40
        )
        time.sleep(0.3)
        yield made
    finally:
        process.kill()
        process.wait()
        reader.join(5)
        made.close()


def check_interrupted(project: Path) -> None:
    """Recorded as interrupted, nothing left running, and the same command goes on."""
    with Journal(project / "artifacts" / "journal.db") as book:
        runs = book.runs()
        assert [run.state for run in runs] == [State.INTERRUPTED]
        assert [row.state for row in book.attempts(runs[0].run_id)] == [State.INTERRUPTED]
        assert book.pending(Destination.DEVLOG) == [], "DevLog has it"
    text = str(project).encode()
    left = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.parent.name != str(os.getpid()) and text in _read(path)
    ]
    assert not left
    assert go(project, {"G": stage()}).exit_code == 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.fault("Ctrl-C in the terminal", how="the key typed once, or twice, into the pty of a training")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_is_heard_once(project: Path, terminal: Terminal, times: int) -> None:
    """The terminal sends SIGINT to its whole foreground group: the stage must get it once, from the guard."""
    for _ in range(times):
        os.write(terminal.master, CTRL_C)
        time.sleep(0.1)
    assert terminal.process.wait(15) == ExitCode.INTERRUPTED
    check_interrupted(project)


@pytest.mark.fault(
    "the terminal is gone (tmux killed, connection lost)", how="the pty closed during a training"
)
def test_a_terminal_that_is_gone_ends_the_run_in_order(project: Path, terminal: Terminal) -> None:
    assert "attempt 1" in terminal.shown.decode(errors="replace"), "the live view was there"
    fcntl.fcntl(terminal.master, fcntl.F_SETFL, os.O_NONBLOCK)
    terminal.close()
    assert terminal.process.wait(15) == ExitCode.INTERRUPTED
    check_interrupted(project)


@pytest.mark.fault(
    "the terminal of a run under nohup is gone", how="SIGHUP ignored, the pty closed during a training"
)
@pytest.mark.parametrize("terminal", ["nohup"], indirect=True)
def test_a_run_under_nohup_outlives_its_terminal(project: Path, terminal: Terminal) -> None:
    fcntl.fcntl(terminal.master, fcntl.F_SETFL, os.O_NONBLOCK)
    terminal.close()
    assert terminal.process.wait(30) == 0
    assert list((project / "artifacts" / "weights").rglob("*.dat"))
