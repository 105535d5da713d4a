"""The graph of imports of a source tree, read from its files: nothing is run, so any commit will do.

An import is every import statement that names a module of the tree, inside functions too, but not under
`if TYPE_CHECKING:`. `from a import b` is an import of `a.b` where that is a module, else of `a`. Modules that
only a string names (a command, `import_module`) are not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Graph = dict[str, set[str]]
"""Each module and the modules that its import statements name."""

_TYPES_ONLY = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@dataclass(frozen=True)
class Source:
    """One Python file, read and parsed once."""

    path: Path
    """Relative to the root of the tree."""
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The name it is imported by."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_sources(root: Path, folder: str) -> list[Source]:
    """All Python files below a folder of the tree, in order of their paths; none if there is no such folder.

    Raises:
        SyntaxError: if a file is not Python.
    """
    out = []
    for path in sorted((root / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        out.append(Source(path.relative_to(root), text, ast.parse(text, filename=str(path))))
    return out


def _import_statements(nodes: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) in _TYPES_ONLY:
            yield from _import_statements(node.orelse)
        else:
            yield from _import_statements(ast.iter_child_nodes(node))


def _base(source: Source, statement: ast.ImportFrom) -> str:
    """What stands between `from` and `import`, as a full name."""
    folders = source.path.parent.parts
    above = folders[: len(folders) - statement.level + 1] if statement.level else ()
    return ".".join([*above, *([statement.module] if statement.module else [])])


def _imported(source: Source, modules: set[str]) -> set[str]:
    found = set()
    for statement in _import_statements([source.tree]):
        names = [alias.name for alias in statement.names]
        if isinstance(statement, ast.ImportFrom):
            base = _base(source, statement)
            names = [f"{base}.{name}" if f"{base}.{name}" in modules else base for name in names]
        found.update(names)
    return (found & modules) - {source.name}


def import_graph(sources: Sequence[Source]) -> Graph:
    """The graph of these files; imports of anything else are left out."""
    modules = {source.name for source in sources}
    return {source.name: _imported(source, modules) for source in sources}


def within(graph: Graph, package: str) -> Graph:
    """The part of the graph that lies inside one package."""
    inside = {module for module in graph if f"{module}.".startswith(f"{package}.")}
    return {module: graph[module] & inside for module in inside}


def with_folders(graph: Graph) -> Graph:
    """The graph as Python runs it: a module also needs the `__init__.py` above it that import anything."""
    out = {}
    for module, imports in graph.items():
        parts = module.split(".")
        folders = {".".join(parts[:length]) for length in range(1, len(parts))}
        out[module] = imports | {folder for folder in folders if graph.get(folder)}
    return out


def reached(graph: Graph, starts: Iterable[str]) -> set[str]:
    """The starts themselves and all that they import, directly or not."""
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


def _components(graph: Graph) -> dict[str, frozenset[str]]:
    """Each module's strongly connected component: itself and all that it is in a cycle with."""
    reach = {module: reached(graph, [module]) for module in graph}
    return {module: frozenset(name for name in reach[module] if module in reach[name]) for module in graph}


def cycles(graph: Graph) -> list[list[str]]:
    """Every set of modules that all reach each other, as sorted names; loops that share a module are one."""
    return sorted(sorted(component) for component in set(_components(graph).values()) if len(component) > 1)


def floors(graph: Graph) -> int:
    """How many levels there are when every module stands one above the highest module it imports.

    The modules of a cycle stand on one level.
    """
    components = _components(graph)

    @cache
    def level(component: frozenset[str]) -> int:
        below = {components[name] for module in component for name in graph[module]} - {component}
        return 1 + max(map(level, below), default=0)

    return max(map(level, components.values()), default=0)
