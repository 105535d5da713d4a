"""The sources are laid out as `docs/architecture.md` says: rooms, the way of one run, tests by name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.import_graph import cycles, import_graph, read_sources
from benchmarks.structure import untested

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("pipeline", "stages")


def modules() -> list[Path]:
    return [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def test_a_folder_has_at_most_twelve_modules() -> None:
    fullest = Counter(path.parent for path in modules()).most_common(1)[0]
    assert fullest[1] <= 12, fullest


def test_every_room_says_what_it_is_for_and_stands_on_the_page() -> None:
    for room in {path.parent for path in modules()}:
        first = (ROOT / room / "__init__.py").read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith('"""') and len(first) > 30, room
        if len(room.parts) == 2:
            assert room.name in PAGE, room


def test_the_way_of_one_run_is_short_and_every_module_on_it_exists() -> None:
    way = re.findall(r"^\d+\. `([^`]+)`", PAGE, flags=re.M)
    assert 20 <= len(way) <= 25
    assert [
        path
        for path in re.findall(r"`((?:pipeline|stages)/[\w/]+\.py)`", PAGE)
        if not (ROOT / path).is_file()
    ] == []
    assert "```mermaid" in PAGE


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_has_a_test_of_its_name(package: str) -> None:
    assert untested(ROOT, package, read_sources(ROOT, package)) == []


def test_there_are_no_cycles_of_files() -> None:
    assert cycles(import_graph([s for package in PACKAGES for s in read_sources(ROOT, package)])) == []
