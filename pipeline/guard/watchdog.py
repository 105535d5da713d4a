"""The guard's loop over one command: sample, decide, stop or kill, until its whole process tree has ended."""

from __future__ import annotations

import os
import select
import signal
import time

from pipeline.core.guard_limits import MIB_PER_GB, GuardLimits
from pipeline.guard.console import print_line
from pipeline.guard.memory_readers import UNIFIED_FLOOR_GB, MemoryReader, MemoryReadError, MemoryReading
from pipeline.guard.process_tree import ProcessTree, kill_tree, send
from pipeline.guard.report import GuardFigures, Reason
from pipeline.guard.supervisor import SupervisedCommand
from pipeline.guard.trace import TraceWriter
from stages.contract.clock import utc_text
from stages.contract.signals import STOP_SIGNALS, StopSignals

BLIND_SECS = 2.0
"""Memory that cannot be read for this long, without `allow_blind`, ends the command."""
LEFTOVER_SECS = 2.0
"""How long descendants may take to end after the command itself has ended and they were sent SIGTERM."""
AFTER_KILL_SECS = 0.005
KILL_AGAIN_SECS = 0.05
KILL_WAIT_SECS = 10.0
"""How long killed processes may take to end before the guard names them and gives up."""


class Watchdog:
    """One guarded run, from releasing the command until its process tree has ended.

    Attributes:
        reason: why it ended.
        message: explains `reason`.
        child_status: of the command itself, as wait(2) reports it.
        killed: whether the tree was sent SIGKILL because of `reason`.
    """

    def __init__(
        self,
        limits: GuardLimits,
        supervised: SupervisedCommand,
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
        self.min_available_mib = min_available_gb(limits, reader) * MIB_PER_GB
        self._supervised = supervised
        self._reader = reader
        self._trace = trace
        self._parent_pid = parent_pid
        self._exclude = {supervised.supervisor_pid}
        self._tree = ProcessTree(os.getpid(), self._exclude)
        self._over_since: float | None = None
        self._unread_since: float | None = None
        self._kill_at: float | None = None
        self._killed_at: float | None = None
        self._stop_asked = False
        self._leftovers_asked = False
        self._supervisor_lost = False

    def run(self, signals: StopSignals) -> None:
        """Releases the command and returns when its whole tree has ended.

        Args:
            signals: entered.
        """
        self._supervised.release()
        began, cpu = time.monotonic(), time.process_time()
        due = began
        while not self._all_ended():
            now = time.monotonic()
            if now >= due and self._killed_at is None:
                self._sample(now)
                due = _next_poll(due, self.limits.gpu_poll_secs)
            self._check_parent_and_time(now - began)
            if self._kill_at is not None and now >= self._kill_at:
                self._kill(now)
            wake = due if self._killed_at is None else now + AFTER_KILL_SECS
            self._wait_for_input(signals, min(wake, self._kill_at or wake) - time.monotonic())
        self.figures.cpu_seconds = time.process_time() - cpu

    def _check_parent_and_time(self, seconds: float) -> None:
        """Asks the command to stop when its time is up or the guard's parent has ended."""
        if self._parent_pid is not None and os.getppid() != self._parent_pid:
            self._stop(Reason.PARENT_GONE, "the process that started the guard is gone", signal.SIGTERM)
        if self.limits.time_limit and seconds >= self.limits.time_limit:
            limit = f"the time limit of {self.limits.time_limit:g} s is over"
            text = f"{limit}; raise --time-limit or make the work shorter"
            self._stop(Reason.TIME, text, signal.SIGTERM)

    def _sample(self, now: float) -> None:
        """Takes one reading, checks it against the limits and records it."""
        if self._reader is None:
            return
        moment = time.time()
        try:
            reading = self._reader.read(self._tree.pids())
        except MemoryReadError as error:
            self._read_failed(now, error)
            return
        self._unread_since = None
        self._check_limits(reading, now)
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

    def _check_limits(self, reading: MemoryReading, now: float) -> None:
        """Kills at once when a limit has been passed for `gpu_over_secs`."""
        limits = self.limits
        over = reading.tree_mib > limits.limit_mib
        short = reading.available_mib < self.min_available_mib
        if not over and not short:
            self._over_since = None
            return
        if self._over_since is None:
            self._over_since = now
        if now - self._over_since < limits.gpu_over_secs:
            return
        seconds = f"{now - self._over_since:.2f} s"
        if over:
            self.reason = Reason.MEMORY
            self.figures.breach_mib = round(reading.tree_mib, 1)
            text = (
                f"memory {reading.tree_mib:.0f} MiB is over the limit of {limits.limit_mib:.0f} MiB"
                f" ({limits.gpu_limit_gb:g} GB) for {seconds}; lower batch_size, seq_len or step_chunk_rows,"
                " or raise --gpu-limit-gb"
            )
        else:
            self.reason = Reason.AVAILABLE
            self.figures.breach_mib = round(reading.available_mib, 1)
            text = (
                f"free memory of the machine, {reading.available_mib:.0f} MiB, is under the floor of"
                f" {self.min_available_mib:.0f} MiB for {seconds}; end other programs, use less, or lower"
                " --min-available-gb"
            )
        self.message = text
        self._kill(now)
        self.figures.breach_to_kill_ms = round((time.monotonic() - now) * 1000.0, 3)

    def _read_failed(self, now: float, error: MemoryReadError) -> None:
        self.figures.failed_reads += 1
        if self._unread_since is None:
            self._unread_since = now
            self.note(f"memory could not be read at {utc_text(time.time())}: {error}")
        elif now - self._unread_since >= BLIND_SECS and not self.limits.allow_blind:
            text = f"memory cannot be read any more ({error}); repair the driver, or run with --allow-blind"
            self._stop(Reason.BLIND, text, signal.SIGTERM)

    def _stop(self, reason: Reason, text: str, number: int) -> None:
        """Sends the command signal `number`; it may finish its step, but its tree is killed after the grace.

        Does nothing when it was done before.
        """
        if self._stop_asked or self.child_status is not None:
            return
        self._stop_asked = True
        self.reason, self.message = reason, text
        self._kill_at = time.monotonic() + self.limits.grace_secs
        send(self._supervised.child_pid, number)
        print_line(f"stopping 停止中: {text}; SIGKILL after {self.limits.grace_secs:g} s")

    def _kill(self, now: float) -> None:
        """SIGKILL to the whole tree, and again to whatever is found later."""
        ended = self.child_status is not None
        known = self._tree.known if self._killed_at is None else ()
        dead = kill_tree(os.getpid(), self._exclude, known, group=0 if ended else self._supervised.child_pid)
        if self._killed_at is None:
            self._killed_at = now
            if ended and self.reason is Reason.ENDED:
                self.figures.leftovers = len(dead)
                self.note(f"{len(dead)} process(es) outlived the command and were killed: {sorted(dead)}")
            else:
                self.killed = True
        self._kill_at = now + KILL_AGAIN_SECS

    def _wait_for_input(self, signals: StopSignals, seconds: float) -> None:
        """Waits for a signal or a message of the supervisor for at most `seconds`, and handles it."""
        sources: list[StopSignals | int] = [signals]
        if not self._supervisor_lost:
            sources.append(self._supervised.status)
        ready, _, _ = select.select(sources, [], [], max(0.0, seconds))
        if signals in ready:
            for number in signals.arrived():
                self._handle_signal(number)
        if self._supervised.status in ready:
            for words in self._supervised.messages():
                self._handle_message(words)

    def _handle_signal(self, number: int) -> None:
        if number not in STOP_SIGNALS:
            return
        name = signal.Signals(number).name
        if self.reason is Reason.ENDED and not self._stop_asked:
            # SIGHUP, a lost terminal, is forwarded as SIGTERM, which more programs handle well.
            forwarded = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
            self._stop(Reason.INTERRUPTED, f"{name} received; once more kills at once", forwarded)
        elif self._killed_at is None:
            self.message += f"; {name} received again"
            self._kill(time.monotonic())

    def _handle_message(self, words: list[str]) -> None:
        if words[0] == "exit":
            self.child_status = int(words[1])
        elif words[0] == "failed":
            code = int(words[1])
            self.reason = Reason.NOT_STARTED
            self.message = f"the command could not be started: {os.strerror(code)}"
        elif words[0] == "lost":
            self._supervisor_lost = True
            self._exclude = set()
            if self.child_status is None:
                self.child_status = int(signal.SIGKILL)  # the kernel sent it, see PR_SET_PDEATHSIG
            if self.reason is Reason.ENDED:
                self.reason = Reason.SUPERVISOR_LOST
                pid = self._supervised.supervisor_pid
                self.message = f"the guard's second process {pid} was ended by someone; the tree goes with it"
                self.killed = True
            self._kill(time.monotonic())

    def _all_ended(self) -> bool:
        """Whether the command and all its descendants ended. Descendants that outlive it are asked to end."""
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
        """Adds a line to the report and prints it."""
        self.figures.notes.append(text)
        print_line(text)


def min_available_gb(limits: GuardLimits, reader: MemoryReader | None) -> float:
    """The least free memory to enforce, the default of this machine included; 0: none."""
    if limits.min_available_gb is not None:
        return limits.min_available_gb
    return UNIFIED_FLOOR_GB if reader and reader.unified else 0.0


def _next_poll(due: float, poll: float) -> float:
    """When the next sample is due. Samples that a slow reader missed are skipped, not made up for."""
    now = time.monotonic()
    return due + poll if due + poll > now else now + poll
