"""The guard's loop over one command: sample, decide, stop or kill, until nothing of the command's tree is
left.
"""

from __future__ import annotations

import os
import select
import signal
import time

from pipeline.core.settings import MIB_PER_GB, GuardLimits
from pipeline.guard.console import say
from pipeline.guard.limits import GuardFigures, Reason
from pipeline.guard.memory_readers import UNIFIED_FLOOR_GB, MemoryReader, MemoryReading, MemoryUnreadable
from pipeline.guard.process_tree import ProcessTree, kill_tree, send
from pipeline.guard.supervisor import SupervisedCommand
from pipeline.guard.trace import TraceWriter
from stages.contract.clock import utc_text
from stages.contract.signals import STOP_SIGNALS, StopSignals

BLIND_SECS = 2.0
"""Memory that cannot be read for this long, without `allow_blind`, ends the command."""
LEFTOVER_SECS = 2.0
"""What processes of the tree get, after SIGTERM, to follow the command that has ended."""
AFTER_KILL_SECS = 0.005
KILL_AGAIN_SECS = 0.05
KILL_WAIT_SECS = 10.0
"""How long killed processes may take to be gone before the guard names them and leaves."""


class Watchdog:
    """One guarded run, from letting the command go until its tree is gone.

    `reason` says why it ended, `message` explains, `child_status` is what wait(2) gave for the command,
    `killed` whether the tree was sent SIGKILL for `reason`.
    """

    def __init__(
        self,
        limits: GuardLimits,
        kept: SupervisedCommand,
        reader: MemoryReader | None,
        trace: TraceWriter | None,
        parent_pid: int | None,
    ) -> None:
        self.limits = limits
        self.figures = GuardFigures()
        self.reason = Reason.ENDED
        self.message = ""
        self.child_status: int | None = None
        self.killed = False
        self.floor_mib = floor_gb(limits, reader) * MIB_PER_GB
        self._kept = kept
        self._reader = reader
        self._trace = trace
        self._parent_pid = parent_pid
        self._spare = {kept.supervisor_pid}
        self._tree = ProcessTree(os.getpid(), self._spare)
        self._over_since: float | None = None
        self._unread_since: float | None = None
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._stop_asked = False
        self._leftovers_asked = False
        self._supervisor_lost = False

    def run(self, signals: StopSignals) -> None:
        """Starts the command and returns when nothing of it is left.

        Args:
            signals: entered.
        """
        self._kept.go()
        began, cpu = time.monotonic(), time.process_time()
        due = began
        while not self._all_gone():
            now = time.monotonic()
            if now >= due and self._killed_at is None:
                self._sample(now)
                due = _next_poll(due, self.limits.gpu_poll_secs)
            self._look_around(now - began)
            if self._kill_at is not None and now >= self._kill_at:
                self._kill(now)
            wake = due if self._killed_at is None else now + AFTER_KILL_SECS
            self._listen(signals, min(wake, self._kill_at or wake) - time.monotonic())
        self.figures.cpu_seconds = time.process_time() - cpu

    def _look_around(self, seconds: float) -> None:
        """Asks for a polite end when the time is up or nobody waits for the result."""
        if self._parent_pid is not None and os.getppid() != self._parent_pid:
            self._stop(Reason.PARENT_GONE, "the process that started the guard is gone", signal.SIGTERM)
        if self.limits.time_limit and seconds >= self.limits.time_limit:
            text = f"the time limit of {self.limits.time_limit:g} s is over; raise --time-limit or make the work shorter"
            self._stop(Reason.TIME, text, signal.SIGTERM)

    def _sample(self, now: float) -> None:
        """One reading, recorded and judged."""
        if self._reader is None:
            return
        moment = time.time()
        try:
            reading = self._reader.read(self._tree.pids())
        except MemoryUnreadable as error:
            self._read_failed(now, error)
            return
        self._unread_since = None
        self._judge(reading, now)
        self._record(reading, moment)

    def _record(self, reading: MemoryReading, moment: float) -> None:
        figures = self.figures
        figures.samples += 1
        if reading.tree_mib > figures.peak_mib or not figures.peak_time:
            figures.peak_mib, figures.peak_time = round(reading.tree_mib, 1), utc_text(moment)
        least = figures.least_available_mib
        figures.least_available_mib = round(
            reading.available_mib if least is None else min(least, reading.available_mib), 1
        )
        if self._trace:
            try:
                self._trace.add(moment, reading)
            except OSError as error:
                self._trace = None  # guarding goes on without it
                self.note(f"the trace ends at {utc_text(moment)}: {error}")

    def _judge(self, reading: MemoryReading, now: float) -> None:
        """Kills at once when a limit has been passed for `gpu_over_secs`."""
        limits = self.limits
        over = reading.tree_mib > limits.limit_mib
        short = reading.available_mib < self.floor_mib
        if not over and not short:
            self._over_since = None
            return
        if self._over_since is None:
            self._over_since = now
        if now - self._over_since < limits.gpu_over_secs:
            return
        if over:
            self.reason = Reason.MEMORY
            self.figures.breach_mib = round(reading.tree_mib, 1)
            text = (
                f"memory {reading.tree_mib:.0f} MiB is over the limit of {limits.limit_mib:.0f} MiB ({limits.gpu_limit_gb:g} GB)"
                f" for {now - self._over_since:.2f} s; lower batch_size, seq_len or step_chunk_rows, or raise --gpu-limit-gb"
            )
        else:
            self.reason = Reason.AVAILABLE
            self.figures.breach_mib = round(reading.available_mib, 1)
            text = (
                f"free memory of the machine, {reading.available_mib:.0f} MiB, is under the floor of {self.floor_mib:.0f} MiB"
                f" for {now - self._over_since:.2f} s; end other programs, use less, or lower --min-available-gb"
            )
        self.message = text
        self._kill(now)
        self.figures.breach_to_kill_ms = round((time.monotonic() - now) * 1000.0, 3)

    def _read_failed(self, now: float, error: MemoryUnreadable) -> None:
        self.figures.failed_reads += 1
        if self._unread_since is None:
            self._unread_since = now
            self.note(f"memory could not be read at {utc_text(time.time())}: {error}")
        elif now - self._unread_since >= BLIND_SECS and not self.limits.allow_blind:
            text = f"memory cannot be read any more ({error}); repair the driver, or run with --allow-blind"
            self._stop(Reason.BLIND, text, signal.SIGTERM)

    def _stop(self, reason: Reason, text: str, number: int) -> None:
        """Politely: a signal to the command, which may finish its step; SIGKILL to the tree after the grace.
        Once only.
        """
        if self._stop_asked or self.child_status is not None:
            return
        self._stop_asked = True
        self.reason, self.message = reason, text
        self._kill_at = time.monotonic() + self.limits.grace_secs
        send(self._kept.child_pid, number)
        say(f"stopping 停止中: {text}; SIGKILL after {self.limits.grace_secs:g} s")

    def _kill(self, now: float) -> None:
        """SIGKILL to the whole tree, and again to whatever is found later."""
        ended = self.child_status is not None
        known = self._tree.known if self._killed_at is None else ()
        dead = kill_tree(os.getpid(), self._spare, known, group=0 if ended else self._kept.child_pid)
        if self._killed_at is None:
            self._killed_at = now
            if ended and self.reason is Reason.ENDED:
                self.figures.leftovers = len(dead)
                self.note(f"{len(dead)} process(es) outlived the command and were killed: {sorted(dead)}")
            else:
                self.killed = True
        self._kill_at = now + KILL_AGAIN_SECS

    def _listen(self, signals: StopSignals, seconds: float) -> None:
        """Waits for a signal or word of the supervisor, at most so long."""
        sources: list[StopSignals | int] = [signals]
        if not self._supervisor_lost:
            sources.append(self._kept.status)
        ready, _, _ = select.select(sources, [], [], max(0.0, seconds))
        if signals in ready:
            for number in signals.arrived():
                self._asked(number)
        if self._kept.status in ready:
            for words in self._kept.lines():
                self._told(words)

    def _asked(self, number: int) -> None:
        if number not in STOP_SIGNALS:
            return
        name = signal.Signals(number).name
        if self.reason is Reason.ENDED and not self._stop_asked:
            # A lost terminal (SIGHUP) is no way to end a stage well: the command gets SIGTERM, which it
            # knows.
            forwarded = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
            self._stop(Reason.INTERRUPTED, f"{name} received; once more kills at once", forwarded)
        elif self._killed_at is None:
            self.message += f"; {name} received again"
            self._kill(time.monotonic())

    def _told(self, words: list[str]) -> None:
        if words[0] == "exit":
            self.child_status = int(words[1])
        elif words[0] == "failed":
            code = int(words[1])
            self.reason = Reason.NOT_STARTED
            self.message = f"the command could not be started: {os.strerror(code)}"
        elif words[0] == "lost":
            self._supervisor_lost = True
            self._spare = set()
            if self.child_status is None:
                self.child_status = int(signal.SIGKILL)  # the kernel sent it, see PR_SET_PDEATHSIG
            if self.reason is Reason.ENDED:
                self.reason = Reason.SUPERVISOR_LOST
                self.message = f"the guard's second process {self._kept.supervisor_pid} was ended by someone; the tree goes with it"
                self.killed = True
            self._kill(time.monotonic())

    def _all_gone(self) -> bool:
        """Whether the command and all its descendants ended; sees to those that outlive the command."""
        now = time.monotonic()
        if self._killed_at is not None and now - self._killed_at > KILL_WAIT_SECS:
            left = sorted(self._tree.rescan())
            self.note(f"killed, but not gone after {KILL_WAIT_SECS:g} s: {left}; the system still holds them")
            return True
        if self.child_status is None:
            return False
        members = self._tree.rescan()
        if members and self._killed_at is None and not self._leftovers_asked:
            self._leftovers_asked = True
            self._kill_at = now + LEFTOVER_SECS
            for pid in members:
                send(pid, signal.SIGTERM)
        return not members

    def note(self, text: str) -> None:
        """Keeps a line for the report, and says it."""
        self.figures.notes.append(text)
        say(text)


def floor_gb(limits: GuardLimits, reader: MemoryReader | None) -> float:
    """The floor of free memory in force; 0: none."""
    if limits.min_available_gb is not None:
        return limits.min_available_gb
    return UNIFIED_FLOOR_GB if reader and reader.unified else 0.0


def _next_poll(due: float, poll: float) -> float:
    """The next moment of the even rhythm, or a whole poll from now if a slow reader missed that: no catching
    up.
    """
    now = time.monotonic()
    return due + poll if due + poll > now else now + poll
