"""The table of injected faults tells what its tests did: in workers too, failures included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFTEST = 'pytest_plugins = ("tests.faults",)\n'
TESTS = """
import pytest
@pytest.fixture
def broken():
    raise OSError("no")
@pytest.mark.fault("holds", how="twice | often", trials=5)
@pytest.mark.parametrize("case", [1, 2])
def test_one(case): pass
@pytest.mark.fault("told afterwards", how="by its test")
def test_two(record_property): record_property("trials", 7)
@pytest.mark.fault("fails", how="now")
def test_three(): assert False
@pytest.mark.fault("cannot begin", how="now")
def test_four(broken): pass
def test_five(): pass
"""


def outcome(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """What pytest says to these tests, with the project's plugin."""
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "test_it.py").write_text(tests, encoding="utf-8")
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--rootdir={folder}",
        *options,
        str(folder),
    ]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_each_marked_test_is_in_its_row(tmp_path: Path, workers: list[str]) -> None:
    path = tmp_path / "made" / "table.md"
    path.parent.mkdir()
    path.write_text("of an earlier run", encoding="utf-8")
    done = outcome(tmp_path, TESTS, f"--faults={path}", *workers)
    assert done.returncode == 1
    head, line, *rows, empty, total = path.read_text(encoding="utf-8").splitlines()
    assert (head, line, empty) == ("| fault | how injected | trials | outcome |", "|---|---|---:|---|", "")
    assert [row.rsplit(" | ", 1)[0] for row in rows] == [
        "| cannot begin | now | 0",
        "| fails | now | 1",
        "| holds | twice \\| often | 10",
        "| told afterwards | by its test | 7",
    ]
    assert "**FAILED**: " in rows[0] and "test_four" in rows[0] and "**FAILED**: " in rows[1]
    assert "| held (" in rows[2] and "| held (" in rows[3]
    assert total == "4 faults, 18 trials, 2 failed"
    assert head in done.stdout, "it is shown too"


@pytest.mark.parametrize("mark", ['fault("x")', 'fault("x", how="y", trials=0)', 'fault("x", "y", how="z")'])
def test_a_marker_that_says_too_little_is_an_error(tmp_path: Path, mark: str) -> None:
    done = outcome(tmp_path, f"import pytest\n@pytest.mark.{mark}\ndef test_one(): pass\n")
    assert done.returncode == 4 and "test_it.py::test_one" in done.stderr + done.stdout
