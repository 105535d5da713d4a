"""The graph of imports: which statements count, and what chains, cycles and closures come of them."""

from pathlib import Path

import pytest

from benchmarks.import_graph import (
    Graph,
    cycles,
    floors,
    import_graph,
    reached,
    read_sources,
    with_folders,
    within,
)
from tests.benchmarks.trees import write_tree


def graph_of(root: Path, files: dict[str, str]) -> Graph:
    return import_graph(read_sources(write_tree(root, files), "a"))


@pytest.mark.parametrize(
    ("text", "imported"),
    [
        ("import a.b.c", {"a.b.c"}),
        ("import a.b.c as d, os", {"a.b.c"}),
        ("from a.b import c", {"a.b.c"}),
        ("from a.b import c, value", {"a.b", "a.b.c"}),
        ("from a.b.c import value", {"a.b.c"}),
        ("from .b import c", {"a.b.c"}),
        ("from . import b", {"a.b"}),
        ("def f():\n    if f:\n        from a.b import c", {"a.b.c"}),
        ("if TYPE_CHECKING:\n    import a.b.c\nelse:\n    import a.b", {"a.b"}),
        ("if typing.TYPE_CHECKING:\n    import a.b.c", set()),
        ("if not TYPE_CHECKING:\n    import a.b.c", {"a.b.c"}),
        ("import a.unknown\nimport json\nfrom a.m import f", set()),
        ("'import a.b.c'  # import a.b", set()),
    ],
)
def test_what_an_import_statement_names(tmp_path: Path, text: str, imported: set[str]) -> None:
    graph = graph_of(tmp_path, {"a/m.py": text, "a/b/__init__.py": "", "a/b/c.py": ""})
    assert graph == {"a.m": imported, "a.b": set(), "a.b.c": set()}


def test_relative_imports_of_a_nested_package(tmp_path: Path) -> None:
    files = {"a/b/__init__.py": "from .c import f", "a/b/c.py": "from ..m import g", "a/m.py": ""}
    graph = graph_of(tmp_path, files)
    assert graph == {"a.b": {"a.b.c"}, "a.b.c": {"a.m"}, "a.m": set()}


def test_floors_follow_the_longest_chain_and_a_cycle_is_one_floor() -> None:
    chain: Graph = {"top": {"middle", "low"}, "middle": {"low"}, "low": set(), "alone": set()}
    assert floors(chain) == 3
    assert floors({**chain, "low": {"middle"}}) == 2
    assert floors({}) == 0


def test_cycles_are_found_whole_and_apart() -> None:
    graph: Graph = {
        "a": {"b"},
        "b": {"c"},
        "c": {"b", "d"},
        "d": {"c"},
        "x": {"y", "a"},
        "y": {"x"},
        "z": {"x"},
    }
    assert cycles(graph) == [["b", "c", "d"], ["x", "y"]]
    assert cycles({"a": {"b"}, "b": set()}) == []


def test_reached_counts_its_starts_and_goes_all_the_way() -> None:
    graph: Graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert reached(graph, ["b"]) == {"a", "b", "c"}
    assert reached(graph, []) == set()


def test_a_folder_that_imports_is_run_with_its_modules() -> None:
    graph: Graph = {"a": set(), "a.b": {"a.b.d"}, "a.b.c": set(), "a.b.d": set(), "m": {"a.b.c"}}
    assert reached(with_folders(graph), ["m"]) == {"m", "a.b", "a.b.c", "a.b.d"}
    assert reached(with_folders({**graph, "a.b": set()}), ["m"]) == {"m", "a.b.c"}


def test_within_keeps_one_package_and_its_own_imports() -> None:
    graph: Graph = {"a": {"b"}, "a.x": {"a", "b"}, "ab": {"a"}, "b": set()}
    assert within(graph, "a") == {"a": set(), "a.x": {"a"}}
