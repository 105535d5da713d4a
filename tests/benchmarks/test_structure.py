"""Every figure of the structure of a tree, on a tree small enough to count by hand."""

import ast
import json
from pathlib import Path

import pytest

from benchmarks.import_graph import Source
from benchmarks.structure import Measured, code_lines, columns, main, measure, name_lists, table
from tests.benchmarks.trees import write_tree

LONG = '''"""What the command does."""

import stages.heavy
from pipeline.settings import Settings


@decorator
def main() -> int:
    """Begins."""
    # a comment
    from pipeline.core.run import run

    return run(Settings())
'''
TREE = {
    "pipeline/__init__.py": "",
    "pipeline/__main__.py": LONG,
    "pipeline/settings.py": "from pipeline.core import names\n\n\ndef load(): return names\n",
    "pipeline/core/__init__.py": "",
    "pipeline/core/names.py": "from stages.contract import Request\n",
    "pipeline/core/run.py": "def run():\n    def inner():\n        pass\n    return inner\n",
    "stages/__init__.py": "",
    "stages/contract/__init__.py": "from stages.contract.request import Request\n",
    "stages/contract/request.py": "class Request: ...\n",
    "stages/heavy.py": "from stages.light import light\n",
    "stages/light.py": "def light():\n    from stages.heavy import heavy\n    return heavy\n",
    "stages/train.py": "from stages.kernels import go\n",
    "stages/kernels.py": "",
    "tests/pipeline/core/test_run.py": "",
    "tests/stages/test_names.py": "def test_of_another_package(): ...\n\n",
    "tests/stages/test_train.py": "x = '" + "字" * 50 + "'\n",
    "tests/stages/test_light.py": "y = '" + "字" * 53 + "'\n",
    "benchmarks/speed.py": f"# {'b' * 98}\n# {'b' * 99}\n",
}
FIGURES = {
    "pipeline: modules": 6,
    "pipeline: folders": 2,
    "pipeline: modules in the fullest folder": 3,
    "pipeline: floors": 3,
    "pipeline: untested modules": 2,
    "pipeline: lines": 22,
    "pipeline: lines of code": 13,
    "stages: modules": 7,
    "stages: folders": 2,
    "stages: modules in the fullest folder": 5,
    "stages: floors": 2,
    "stages: untested modules": 3,
    "stages: lines": 7,
    "stages: lines of code": 7,
    "floors of both packages": 5,
    "cycles": 1,
    "imports beside the door": 1,
    "reached by entry": 8,
    "reached by entry, in pipeline": 4,
    "reached by entry, in stages": 4,
    "reached by settings": 4,
    "reached by settings, in pipeline": 2,
    "reached by settings, in stages": 2,
    "reached by entry and stages.train": 10,
    "reached by entry and stages.train, in pipeline": 4,
    "reached by entry and stages.train, in stages": 6,
    "functions": 5,
    "median length of a function": 3,
    "length of the longest function": 6,
    "tests: lines": 4,
    "lines over 100 columns": 3,
    "lines over 100 columns, %": 8.6,
    "lines over 110 columns": 1,
    "lines over 110 columns, %": 2.9,
}
NAMES = {
    "pipeline: fullest folder": ["pipeline"],
    "pipeline: untested modules": ["pipeline.core.names", "pipeline.settings"],
    "stages: fullest folder": ["stages"],
    "stages: untested modules": ["stages.contract.request", "stages.heavy", "stages.kernels"],
    "cycles": ["stages.heavy <-> stages.light"],
    "imports beside the door": ["stages.heavy"],
    "longest function": ["pipeline.__main__.main:8"],
}


def source(text: str) -> Source:
    return Source(Path("m.py"), text, ast.parse(text))


def test_every_figure_of_a_small_tree(tmp_path: Path) -> None:
    assert measure(write_tree(tmp_path, TREE)) == Measured(FIGURES, NAMES)


def test_starts_are_found_where_they_lie_now(tmp_path: Path) -> None:
    moved = {
        "pipeline/core/settings.py": "",
        "stages/train/__init__.py": "",
        "stages/train/__main__.py": "import stages.kernels",
    }
    kept = {path: text for path, text in TREE.items() if path != "stages/train.py"}
    found = measure(write_tree(tmp_path, {**kept, **moved})).figures
    assert found["reached by settings"] == 1
    assert found["reached by entry and stages.train"] == 10


def test_what_is_reached_runs_its_folders_too(tmp_path: Path) -> None:
    door = {"pipeline/core/__init__.py": "from pipeline.core.late import x", "pipeline/core/late.py": ""}
    assert measure(write_tree(tmp_path, {**TREE, **door})).figures["reached by entry"] == 10


def test_what_is_reached_from_nowhere_is_not_told(tmp_path: Path) -> None:
    found = measure(write_tree(tmp_path, {"pipeline/__main__.py": "", "stages/__init__.py": ""})).figures
    assert [name for name in found if name.startswith("reached")] == [
        "reached by entry",
        "reached by entry, in pipeline",
        "reached by entry, in stages",
    ]


def test_a_tree_without_a_package_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(tmp_path, {"pipeline/m.py": ""})
    with pytest.raises(SystemExit, match="2"):
        main(["--root", str(tmp_path)])
    assert f"{tmp_path / 'stages'}: no Python file there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", 0),
        ("x = 1  # one\n\n# two\n", 1),
        ('"""Two\nlines."""\nx = 1\n"""Of x."""\n', 1),
        ('def f():\n    "What."\n    return """a\n\n    b"""\n', 4),
        ('def f(): "What."\n', 1),
        ("x = [\n    1,\n\n]\n", 3),
    ],
)
def test_lines_of_code(text: str, lines: int) -> None:
    assert code_lines(source(text)) == lines


@pytest.mark.parametrize(("line", "wide"), [("", 0), ("ab c", 4), ("字：a", 5), ("é–×", 3), ("🙂", 2)])
def test_columns_are_those_of_a_terminal(line: str, wide: int) -> None:
    assert columns(line) == wide


def test_the_table_of_one_tree() -> None:
    assert table({"modules": 1234.0, "share": 8.6}).splitlines() == [
        "| figure  |    today |",
        "|---------|---------:|",
        "| modules |    1,234 |",
        "| share   |      8.6 |",
    ]


def test_the_table_sets_earlier_figures_first_and_a_dash_for_none() -> None:
    assert table({"in both": 2, "new": 3}, {"old": 4, "in both": 1}).splitlines() == [
        "| figure  |   before |    after |",
        "|---------|---------:|---------:|",
        "| in both |        1 |        2 |",
        "| new     |        – |        3 |",
        "| old     |        4 |        – |",
    ]


def test_names_are_wrapped_and_none_is_said() -> None:
    lines = name_lists({"none": [], "many": [f"pipeline.module_{i}" for i in range(9)]}).splitlines()
    assert lines[0] == "- none: none"
    assert lines[1].startswith("- many: pipeline.module_0; pipeline.module_1")
    assert lines[2].startswith("  pipeline.module_")
    assert max(map(len, lines)) <= 80


def test_what_is_kept_is_shown_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, kept = write_tree(tmp_path / "tree", TREE), tmp_path / "new" / "figures.json"
    assert main(["--root", str(root), "--json", str(kept)]) == 0
    assert json.loads(kept.read_text(encoding="utf-8")) == {"figures": FIGURES, "names": NAMES}
    write_tree(root, {"stages/light.py": "", "stages/optim/adamw.py": ""})
    capsys.readouterr()
    assert main(["--root", str(root), "--before", str(kept)]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split("|")[1].strip(): line.split("|")[2:4] for line in lines if line.startswith("| ")}
    assert [cell.strip() for cell in cells["cycles"]] == ["1", "0"]
    assert [cell.strip() for cell in cells["stages: modules"]] == ["7", "8"]
    assert max(map(len, lines)) <= 80
