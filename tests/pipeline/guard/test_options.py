"""The guard's options: every impossible one is named, and what is written is read back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.guard_limits import GuardLimits, ReaderKind
from pipeline.guard.options import OptionsError, child_options, guard_command, parse
from pipeline.guard.report import GuardReport
from tests.pipeline.guard.guarded import GUARD, ROOT


@pytest.mark.fault("many impossible guard options together", how="ten faults in one command line")
def test_all_problems_at_once(tmp_path: Path) -> None:
    there = tmp_path / "report.json"
    there.write_text("{}")
    options = [
        "--gpu-poll-secs=0",
        "--gpu-over-secs=-1",
        "--min-available-gb=nan",
        "--time-limit=abc",
        "--grace-secs=inf",
    ]
    command = [
        sys.executable,
        "-m",
        "pipeline.guard",
        *options,
        "--reader",
        "x",
        "--trace",
        "/no/where/t.csv",
    ]
    done = subprocess.run(
        [*command, "--report", str(there)], cwd=ROOT, capture_output=True, text=True, check=False
    )
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


def test_a_command_with_an_impossible_limit_or_without_a_program_is_refused() -> None:
    with pytest.raises(ValueError, match="gpu_limit_gb"):
        guard_command(GuardLimits(0), ["true"])
    with pytest.raises(ValueError, match="command: empty"):
        guard_command(GuardLimits(1), [])


def test_guard_command_is_understood(tmp_path: Path) -> None:
    limits = GuardLimits(
        0.25, 1.5, 0.02, min_available_gb=0.125, time_limit=60, grace_secs=7, reader=ReaderKind.RESIDENT
    )
    report = tmp_path / "report.json"
    options = child_options(tmp_path / "trace.csv", report)
    command = guard_command(limits, ["sh", "-c", "exit 6", "--", "--x"], *options)
    assert subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode == 6
    loaded = GuardReport.load(report)
    assert loaded.command == ["sh", "-c", "exit 6", "--", "--x"]
    figures = (
        loaded.limit_gb,
        loaded.over_secs,
        loaded.poll_secs,
        loaded.min_available_gb,
        loaded.time_limit,
    )
    assert figures == (0.25, 1.5, 0.02, 0.125, 60)


LIMITS = (
    GuardLimits(108),
    GuardLimits(0.25, 1.5, 0.02, 0.0, 60, 7, allow_blind=True, reader=ReaderKind.RESIDENT),
)


@pytest.mark.parametrize("limits", LIMITS)
def test_what_is_written_is_read_back(limits: GuardLimits, tmp_path: Path) -> None:
    trace, report = tmp_path / "trace.csv", tmp_path / "report.json"
    by_hand = parse(guard_command(limits, ["sh", "--", "x"])[3:])
    assert (by_hand.limits, by_hand.command) == (limits, ("sh", "--", "x"))
    assert (by_hand.trace, by_hand.report, by_hand.parent_pid) == (None, None, None)
    child = parse(guard_command(limits, ["sh"], *child_options(trace, report))[3:])
    assert (child.limits, child.command) == (limits, ("sh",))
    assert (child.trace, child.report, child.parent_pid) == (trace, report, os.getpid())


def test_a_command_line_without_a_command_or_limit_is_a_problem() -> None:
    with pytest.raises(OptionsError) as caught:
        parse([])
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["--gpu-limit-gb", "COMMAND"]


def test_starts_fast_and_imports_nothing_heavy() -> None:
    code = "import sys, pipeline.guard; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {
        "torch",
        "numpy",
        "mlflow",
        "matplotlib",
        "pandas",
        "hydra",
        "omegaconf",
        "rich",
        "pynvml",
    } & set(loaded)
    seconds = []
    for _ in range(5):
        before = os.times()
        subprocess.run([*GUARD, "--", "true"], cwd=ROOT, stderr=subprocess.DEVNULL, check=True)
        after = os.times()
        # Processor time: the wall clock would measure who else is on this machine.
        seconds.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    assert min(seconds) < 0.3


IMPOSSIBLE = {
    "--gpu-limit-gb": ("0", "-1", "nan", "inf", "much"),
    "--gpu-poll-secs": ("0", "-0.05", "nan"),
    "--gpu-over-secs": ("-1", "inf"),
    "--min-available-gb": ("-1", "nan"),
    "--time-limit": ("-1", "1h"),
    "--grace-secs": ("-1", "nan"),
}


@pytest.mark.fault(
    "an impossible guard option",
    how="each number as 0, negative, nan, inf or text, where that is not allowed",
    trials=16,
)
def test_an_impossible_number_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for flag, values in IMPOSSIBLE.items():
        for value in values:
            words = [*GUARD, f"{flag}={value}", "--", "touch", str(mark)]
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 2, f"{flag}={value}"
            assert f"  - {flag}: " in done.stderr and done.stderr.startswith("guard: 1 problem(s)"), (
                done.stderr
            )
            assert not mark.exists()


def test_zero_is_allowed_where_it_means_at_once_or_none(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    zeros = [
        f"{flag}=0" for flag in ("--gpu-over-secs", "--min-available-gb", "--time-limit", "--grace-secs")
    ]
    done = subprocess.run(
        [*GUARD, *zeros, "--", "touch", str(mark)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and mark.exists()
    assert "killed at once" in done.stderr and "floor of free memory none; time limit none" in done.stderr


def test_an_option_that_is_none_is_refused_and_not_guessed(tmp_path: Path) -> None:
    done = subprocess.run(
        [*GUARD, "--gpu-limit", "4", "--", "true"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "--gpu-limit" in done.stderr


def test_both_process_ids_come_first_whatever_the_command(tmp_path: Path) -> None:
    """A script of a shell in the place of `dotnet fsi`: it says at once who it is."""
    program = tmp_path / "dotnet"
    program.write_text('#!/bin/sh\necho "I am $$" >&2\n')
    program.chmod(0o755)
    done = subprocess.run(
        [*GUARD, "--", str(program), "fsi", "a.fsx"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    first, second, third = done.stderr.splitlines()
    pid = int(third.removeprefix("I am "))
    assert first.startswith("guard: process ") and f"guards process {pid} " in first
    assert "watches" in second and "fsi a.fsx" in second


def test_the_guard_needs_neither_the_control_planes_libraries_nor_torch() -> None:
    """A GPU machine has psutil and nvidia-ml-py and whatever trains there; `python -m pipeline.guard` works
    on it.
    """
    absent = [
        "hydra",
        "omegaconf",
        "mlflow",
        "pandas",
        "matplotlib",
        "rich",
        "torch",
        "tokenizers",
        "safetensors",
        "numpy",
    ]
    code = f"import runpy, sys\nsys.modules.update(dict.fromkeys({absent!r}))\n"
    code += "runpy.run_module('pipeline.guard', run_name='__main__')"
    words = [sys.executable, "-c", code, *GUARD[3:], "--", "true"]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == 0
