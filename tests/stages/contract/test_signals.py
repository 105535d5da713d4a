"""Counting requests to stop, in this process and in one that is ended by the second."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from stages.contract.signals import STOP_SIGNALS, StopSignals


def test_signals_are_counted_and_arrive_in_order_while_entered() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as stop:
        assert select.select([stop], [], [], 0)[0] == [] and stop.arrived() == []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert select.select([stop], [], [], 1)[0] == [stop]
        assert stop.arrived() == [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
        assert stop.count == 3 and stop.arrived() == []
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(ValueError, match="not entered"):
        stop.fileno()


def test_sigint_is_taken_though_it_was_ignored_unless_it_may_be() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for ignorable, count in (((signal.SIGHUP,), 1), (STOP_SIGNALS, 0)):
            with StopSignals(may_be_ignored=ignorable) as stop:
                os.kill(os.getpid(), signal.SIGINT)
                assert stop.count == count
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.count == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("second_ends", "code"), [(True, -signal.SIGTERM), (False, 0)])
def test_the_second_signal_ends_the_process_if_so_asked(second_ends: bool, code: int) -> None:
    program = (
        "import os, signal, sys; from stages.contract.signals import STOP_SIGNALS, StopSignals\n"
        f"with StopSignals(second_ends={second_ends}) as stop:\n"
        "    for _ in range(2): os.kill(os.getpid(), signal.SIGTERM)\n"
        "    sys.exit(stop.count - 2)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == code
