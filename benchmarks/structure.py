"""Measures how the sources are laid out and prints it as one Markdown table, then what has a name as a list.

`python -m benchmarks.structure` measures this repository, `--root DIR` another tree: an earlier commit, say.
`--json FILE` keeps the figures, and `--before FILE` shows kept ones beside today's. What the words mean:

- Module: a `.py` file of `pipeline` or `stages`, `__init__.py` and `__main__.py` too. Folder: one with any.
- Floors: the modules on the longest chain of imports (`benchmarks.import_graph` says what counts as one).
- Reached: the module itself and all that it imports, directly or not. An `__init__.py` above a reached module
  runs too: it is followed, and counted, where it imports anything of the project. No import leads from the
  entry to `stages.train`, which it starts as a process of its own; both together are what training takes.
- Beside the door: modules of `stages` outside `stages.contract` that `pipeline` imports.
- Untested: `a/b/c.py` with no `test_c.py` below `tests/a/`; `__init__.py` and `__main__.py` need none.
- Code: lines without blank ones, comments, and strings that stand alone (docstrings, those of fields too).
- Functions: of both packages, methods and inner ones too; as long as from `def` to the last line.
- Columns: as ruff counts them for E501, where a Chinese character takes 2. Unlike E501, no line is excused.
  Counted are both packages, `tests` and `benchmarks`.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import statistics
import sys
import textwrap
import tokenize
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.import_graph import (
    Graph,
    Source,
    cycles,
    floors,
    import_graph,
    reached,
    read_sources,
    with_folders,
    within,
)

ROOT = Path(__file__).parent.parent
PACKAGES = ("pipeline", "stages")
DOOR = "stages.contract"
LIMITS = (100, 110)
PAGE_COLUMNS = 80
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@dataclass(frozen=True)
class Measured:
    """What is found out about one tree."""

    figures: dict[str, float]
    """By the words that the table shows."""
    names: dict[str, list[str]]
    """Which ones they are, for some of the figures."""


def _is_text(statement: ast.Expr) -> bool:
    return isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)


def code_lines(source: Source) -> int:
    """How many lines hold code."""
    texts = [node for node in ast.walk(source.tree) if isinstance(node, ast.Expr) and _is_text(node)]
    alone = {line for text in texts for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        first, last = token.start[0], token.end[0]
        if token.type not in _NO_CODE and not (token.type == tokenize.STRING and first in alone):
            lines.update(range(first, last + 1))
    return len(lines)


def columns(line: str) -> int:
    """How wide a line is."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in line)


def untested(root: Path, package: str, sources: Sequence[Source]) -> list[str]:
    """The modules of a package that have no test file of their name."""
    tests = {path.name for path in (root / "tests" / package).rglob("test_*.py")}
    wanting = [source for source in sources if source.path.stem not in ("__init__", "__main__")]
    return [source.name for source in wanting if f"test_{source.path.name}" not in tests]


def function_lengths(sources: Sequence[Source]) -> dict[str, int]:
    """Lines of every function, by its module, name and first line."""
    return {
        f"{source.name}.{node.name}:{node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _count_lines(sources: Sequence[Source]) -> int:
    return sum(len(source.text.splitlines()) for source in sources)


def _add_package(out: Measured, root: Path, package: str, sources: Sequence[Source], graph: Graph) -> None:
    folders = Counter(source.path.parent.as_posix() for source in sources)
    (fullest, most), *_ = folders.most_common(1)
    out.names[f"{package}: fullest folder"] = [fullest]
    out.names[f"{package}: untested modules"] = untested(root, package, sources)
    out.figures[f"{package}: modules"] = len(sources)
    out.figures[f"{package}: folders"] = len(folders)
    out.figures[f"{package}: modules in the fullest folder"] = most
    out.figures[f"{package}: floors"] = floors(within(graph, package))
    out.figures[f"{package}: untested modules"] = len(out.names[f"{package}: untested modules"])
    out.figures[f"{package}: lines"] = _count_lines(sources)
    out.figures[f"{package}: lines of code"] = sum(map(code_lines, sources))


def _add_imports(out: Measured, graph: Graph) -> None:
    named = set().union(*(graph[module] for module in within(graph, "pipeline")))
    beside = within(graph, "stages").keys() & named - within(graph, DOOR).keys()
    out.names["cycles"] = [" <-> ".join(cycle) for cycle in cycles(graph)]
    out.names["imports beside the door"] = sorted(beside)
    out.figures["floors of both packages"] = floors(graph)
    out.figures["cycles"] = len(out.names["cycles"])
    out.figures["imports beside the door"] = len(beside)


def _present(graph: Graph, *places: str) -> list[str]:
    return [place for place in places if place in graph][:1]


def _add_reached(out: Measured, graph: Graph) -> None:
    entry = _present(graph, "pipeline.__main__")
    settings = _present(graph, "pipeline.core.settings", "pipeline.settings")
    train = _present(graph, "stages.train.__main__", "stages.train")
    both = entry + train if entry and train else []
    begun = {"entry": entry, "settings": settings, "entry and stages.train": both}
    for words, starts in begun.items():
        if not starts:
            continue
        found = reached(with_folders(graph), starts)
        out.figures[f"reached by {words}"] = len(found)
        for package in PACKAGES:
            out.figures[f"reached by {words}, in {package}"] = len(found & within(graph, package).keys())


def _add_functions(out: Measured, sources: Sequence[Source]) -> None:
    lengths = function_lengths(sources)
    if lengths:
        longest = max(lengths, key=lambda name: lengths[name])
        out.names["longest function"] = [longest]
        out.figures["functions"] = len(lengths)
        out.figures["median length of a function"] = statistics.median(lengths.values())
        out.figures["length of the longest function"] = lengths[longest]


def _add_widths(out: Measured, sources: Sequence[Source]) -> None:
    widths = [columns(line) for source in sources for line in source.text.splitlines()]
    for limit in LIMITS:
        wide = sum(width > limit for width in widths)
        out.figures[f"lines over {limit} columns"] = wide
        out.figures[f"lines over {limit} columns, %"] = round(100 * wide / max(len(widths), 1), 1)


def measure(root: Path) -> Measured:
    """All figures of the tree below a root.

    Raises:
        FileNotFoundError: if one of the two packages is not there.
    """
    packages = {package: read_sources(root, package) for package in PACKAGES}
    for package, sources in packages.items():
        if not sources:
            raise FileNotFoundError(f"{root / package}: no Python file there")
    both = [source for sources in packages.values() for source in sources]
    tests, graph, out = read_sources(root, "tests"), import_graph(both), Measured({}, {})
    for package, sources in packages.items():
        _add_package(out, root, package, sources, graph)
    _add_imports(out, graph)
    _add_reached(out, graph)
    _add_functions(out, both)
    out.figures["tests: lines"] = _count_lines(tests)
    _add_widths(out, [*both, *tests, *read_sources(root, "benchmarks")])
    return out


def table(after: dict[str, float], before: dict[str, float] | None = None) -> str:
    """Markdown, one row a figure; a dash for a figure that one of the two trees lacks."""
    sides = {"today": after} if before is None else {"before": before, "after": after}
    names = list(dict.fromkeys([*after, *(before or {})]))
    wide = max(len(name) for name in ["figure", *names])
    lines = [f"| {'figure':{wide}} |" + "".join(f" {head:>8} |" for head in sides)]
    lines.append(f"|{'-' * (wide + 2)}|" + "---------:|" * len(sides))
    for name in names:
        cells = [f"{side[name]:,.10g}" if name in side else "–" for side in sides.values()]
        lines.append(f"| {name:{wide}} |" + "".join(f" {cell:>8} |" for cell in cells))
    return "\n".join(lines) + "\n"


def name_lists(names: dict[str, list[str]]) -> str:
    """Markdown, one item for each figure that has names."""
    items = [f"- {words}: {'; '.join(found) or 'none'}" for words, found in names.items()]
    return "".join(f"{textwrap.fill(item, PAGE_COLUMNS, subsequent_indent='  ')}\n" for item in items)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structure", description="Layout of sources.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to measure")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--before", type=Path, help="figures of an earlier tree, as --json wrote them")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Measures one tree and returns 0; ends with 2 if the tree or the earlier figures are not there."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        before = json.loads(options.before.read_text(encoding="utf-8"))["figures"] if options.before else None
        found = measure(options.root)
    except FileNotFoundError as fault:
        parser.error(str(fault))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(found), indent=2, ensure_ascii=False)
        options.json.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{table(found.figures, before)}\n{name_lists(found.names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
