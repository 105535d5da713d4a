"""The table of injected faults: every test marked `fault` is a row, so that each row exists as a test by
construction.

    @pytest.mark.fault("what goes wrong", how="by what it is made to", trials=20)

`pytest -m fault --faults=FILE.md` writes the table (`make faults`); written with a space, a FILE that exists
would pass for a test. Tests with the same two texts are one row: the cases of a parametrized test, say. A
test whose number of trials is known only afterwards records it: `record_property("trials", 217)`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROPERTY = "fault"


@dataclass
class Row:
    """One fault: how often it was injected, and what became of it."""

    trials: int = 0
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)
    """Ids of the tests that failed."""


class FaultTable:
    """Collects the reports of marked tests, of this process or of its workers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, str], Row] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of one test: the call counts as trials, a failure of any phase counts as failed."""
        told = dict(report.user_properties)
        if PROPERTY not in told:
            return
        fault, how, trials = told[PROPERTY]  # type: ignore[misc]
        row = self.rows.setdefault((str(fault), str(how)), Row())
        row.seconds += report.duration
        if report.when == "call":
            row.trials += int(told.get("trials", trials))  # type: ignore[call-overload]
        if report.failed and report.nodeid not in row.failed:
            row.failed.append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Writes the table, and shows it."""
        text = table(self.rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text, encoding="utf-8")
        terminalreporter.write_line(f"\n{text}\n{self.path}")


def table(rows: dict[tuple[str, str], Row]) -> str:
    """The rows as Markdown, sorted, since tests end in any order; failures name the tests."""
    lines = ["| fault | how injected | trials | outcome |", "|---|---|---:|---|"]
    for (fault, how), row in sorted(rows.items()):
        outcome = f"**FAILED**: {', '.join(row.failed)}" if row.failed else f"held ({row.seconds:.1f} s)"
        lines.append(f"| {_cell(fault)} | {_cell(how)} | {row.trials} | {_cell(outcome)} |")
    failed = sum(1 for row in rows.values() if row.failed)
    lines += ["", f"{len(rows)} faults, {sum(row.trials for row in rows.values())} trials, {failed} failed"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def described(fault: str, *, how: str, trials: int = 1) -> tuple[str, str, int]:
    """The arguments of the marker, checked by being called."""
    if trials < 1:
        raise ValueError(f"fault {fault!r}: trials={trials}: must be 1 or more")
    return fault, how, trials


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--faults=FILE`."""
    parser.addoption("--faults", type=Path, metavar="FILE.md", help="write the table of injected faults here")


def pytest_configure(config: pytest.Config) -> None:
    """The table is made where the reports arrive: not in the workers."""
    path = config.getoption("--faults")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FaultTable(path))


def pytest_itemcollected(item: pytest.Item) -> None:
    """What the marker says travels with the test's reports, from workers too."""
    mark = item.get_closest_marker(PROPERTY)
    if mark is not None:
        try:
            item.user_properties.append((PROPERTY, described(*mark.args, **mark.kwargs)))
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from error
