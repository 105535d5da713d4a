"""The program's part of a content key: the sources that an entry imports and the versions that compute."""

from __future__ import annotations

import ast
import importlib.metadata
from functools import cache
from pathlib import Path

from pipeline.core.hashing import sha256_data, sha256_file

SOURCES = Path(__file__).resolve().parents[2]
"""The folder that holds the package `stages`."""
COMPUTING = ("torch", "triton", "numpy", "tokenizers")
"""Packages that do the arithmetic, or make the tokens for it."""


def code_key(entry: str, sources: Path = SOURCES) -> str:
    """SHA-256 over all that decides what `python -m <entry>` computes, apart from its request.

    Args:
        entry: module or package, such as `stages.train`.
        sources: the folder of its package.
    """
    files = {name: sha256_file(path) for name, path in import_closure(entry, sources).items()}
    return sha256_data({"sources": files, "versions": computing_versions()})


def computing_versions() -> dict[str, str]:
    """Installed versions of `COMPUTING`, as in `2.13.0+cpu`. A package that is not installed is left out."""
    found = {}
    for name in COMPUTING:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def import_closure(entry: str, sources: Path = SOURCES) -> dict[str, Path]:
    """The modules of its own package that an entry imports, directly or not: name → file, sorted by name.

    Imports inside functions count; those under `if TYPE_CHECKING:` do not, since they never run.

    Raises:
        FileNotFoundError: if there is no such module.
    """
    package = entry.partition(".")[0]
    first = f"{entry}.__main__" if (sources / entry.replace(".", "/")).is_dir() else entry
    found: dict[str, Path] = {}
    ahead = [first]
    while ahead:
        name = ahead.pop()
        if name in found:
            continue
        path = _file_of(name, sources)
        if path is None:
            if name == first:
                raise FileNotFoundError(f"{name}: no such module below {sources}")
            continue
        found[name] = path
        # The import of a module runs the `__init__` of every package above it.
        ahead.append(name.rpartition(".")[0] or package)
        ahead += [module for module in _imported(path) if module.partition(".")[0] == package]
    return dict(sorted(found.items()))


def _file_of(module: str, sources: Path) -> Path | None:
    place = sources / module.replace(".", "/")
    for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None


@cache
def _imported(path: Path) -> tuple[str, ...]:
    """Every name that a source imports, be it a module or something in one."""
    names: list[str] = []
    ahead: list[ast.AST] = [ast.parse(path.read_bytes(), str(path))]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            ahead += node.orelse
        elif not isinstance(node, ast.expr):
            ahead += ast.iter_child_nodes(node)
    return tuple(names)


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
