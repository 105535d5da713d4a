"""Errors about input files: defined low, so that every room can raise them and `process` can catch them."""

from __future__ import annotations

from pathlib import Path


class InputError(ValueError):
    """A file or folder that cannot be used as it is. The process ends with `ExitCode.BAD_INPUT`."""


class InputProblems(InputError):
    """An input with all that is wrong with it.

    Args:
        path: The file or folder.
        problems: Every reason, a line each.
    """

    summary = ""
    """Words between the path and the count, for subclasses to set."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.problems = problems
        lines = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"{path}: {self.summary}{len(problems)} problem(s){lines}")
