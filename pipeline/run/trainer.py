"""Who trains: the project's own stage, or another program by a command template; and what that changes in
keys and ladder.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from pipeline.core.hashing import sha256_data, sha256_file
from pipeline.run.ladder import LadderSettings
from stages.contract.command import placeholders, template_problems


class TrainerKind(StrEnum):
    """`INTERNAL` is `stages.train`; `EXTERNAL` any program that reads and writes weight files."""

    INTERNAL = "internal"
    EXTERNAL = "external"


@dataclass(frozen=True)
class TrainerSettings:
    """Who trains a stage."""

    kind: TrainerKind = TrainerKind.INTERNAL
    command: str = ""
    """Template for `EXTERNAL`; see `stages.contract.command`."""
    shell: bool = False
    """Hand the command to `/bin/sh`."""

    @property
    def external(self) -> bool:
        """Whether another program trains."""
        return self.kind is TrainerKind.EXTERNAL

    def check(self) -> list[str]:
        """All problems, each as `key: value: remedy`."""
        if not self.external:
            return []
        if not self.command.strip():
            return ["command: empty: give the program's command line, as conf/trainer/external.yaml does"]
        return [f"command: {problem}" for problem in template_problems(self.command)]

    def key(self, root: Path) -> str:
        """What stands for the code in an external attempt's content key: the template, and the files that it
        names.

        The recipe is part of the key anyway; what a program reads beyond its arguments is not known here.
        """
        words = shlex.split(self.command)
        files = [sha256_file(root / word) for word in words if "{" not in word and (root / word).is_file()]
        return sha256_data([self.command, self.shell, files])


def usable(ladder: LadderSettings, trainer: TrainerSettings) -> LadderSettings:
    """The rungs that make a difference: another program sees only what its command names, and its rows."""
    if not trainer.external:
        return ladder
    seen = {"data", *placeholders(trainer.command)}
    return replace(ladder, rungs=[rung for rung in ladder.rungs if seen & set(rung.change)])
