"""The answers of a weight to probe files: asked once under the guard, then cached."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.code_key import code_key
from pipeline.core.files import replacing
from pipeline.core.guard_limits import GuardLimits
from pipeline.core.hashing import sha256_data, sha256_file
from pipeline.core.settings import ProbeSettings
from pipeline.core.types import MODEL_FILES, WeightRef
from pipeline.guard.machine import Machine
from pipeline.processes.stage_process import (
    Job,
    ProcessCallbacks,
    ProcessResult,
    StageCommands,
    guarded_process,
    write_request,
)
from stages.contract.events import Answer
from stages.contract.fields import Affects
from stages.contract.recipe import Recipe
from stages.contract.requests import InferencePath, ProbeRequest
from stages.contract.rows import Probe, read_probes
from stages.contract.serial import load_text

ENTRY = "stages.probe"
"""The program that answers."""


class ProbingError(RuntimeError):
    """The probing process gave no answers. `ended` says how it ended."""

    def __init__(self, weight: str, ended: ProcessResult) -> None:
        self.ended = ended
        super().__init__(f"{weight}: no answers: {ended.error}")


@dataclass(frozen=True)
class ProbeQuery:
    """A weight, the probes, and how they are answered: with the numerics of the weight's training."""

    weight: WeightRef
    probes: ProbeSettings
    recipe: Recipe
    """Only the settings that affect answers are used."""
    path: InferencePath = InferencePath.BRIDGE

    def request(self, job: Job, answers: str) -> ProbeRequest:
        """The request of a probing process."""
        return ProbeRequest(
            model_dir=self.weight.model_dir,
            weight=self.weight.path,
            probes=self.probes.files,
            answers=answers,
            events=job.path("events.jsonl"),
            result=job.path("result.json"),
            max_tokens=self.probes.max_tokens,
            batch_size=self.probes.batch_size,
            path=self.path,
            **self.recipe.values(Affects.RESULT_AND_ANSWERS),
        )

    def key(self, root: Path, machine: Machine) -> str:
        """SHA-256 over all that the answers depend on. Paths are no part of it."""
        recipe = self.recipe.resolved(machine.trains_on(self.recipe.device))
        return sha256_data(
            {
                "weight": self.weight.sha256,
                "model": [sha256_file(root / self.weight.model_dir / name) for name in MODEL_FILES],
                "probes": [[Path(file).name, sha256_file(root / file)] for file in self.probes.files],
                "max_tokens": self.probes.max_tokens,
                "batch_size": self.probes.batch_size,
                "path": self.path,
                "recipe": recipe.values(Affects.RESULT_AND_ANSWERS),
                "code": code_key(ENTRY),
            }
        )


class AnswerCache:
    """Answers by query, in `<artifacts>/cache/answers/`."""

    def __init__(
        self, root: Path, artifacts: str, guard: GuardLimits, commands: StageCommands, machine: Machine
    ) -> None:
        self._root = root
        self._cache = root / artifacts / "cache" / "answers"
        self._guard = guard
        self._commands = commands
        self._machine = machine

    def ask(self, query: ProbeQuery, folder: str, name: str, callbacks: ProcessCallbacks) -> list[Answer]:
        """The answers; see `asking`."""
        with self.asking(query, folder, name, callbacks) as wait_for_answers:
            return wait_for_answers()

    @contextmanager
    def asking(
        self, query: ProbeQuery, folder: str, name: str, callbacks: ProcessCallbacks
    ) -> Iterator[Callable[[], list[Answer]]]:
        """Starts a guarded process that answers, unless the answers are cached; the block waits for them.

        Args:
            query: which weight is asked what.
            folder: receives `<name>.jsonl` and the files of the process, `<name>-…`.
            name: `answers`, or another name that is unique in the folder.
            callbacks: of the process.

        Yields:
            A function that waits for the answers. It raises ProbingError if the process fails.
        """
        cached = self._cache / f"{query.key(self._root, self._machine)}.jsonl"
        answers = f"{folder}/{name}.jsonl"
        (self._root / folder).mkdir(parents=True, exist_ok=True)
        if cached.exists():
            shutil.copyfile(cached, self._root / answers)
            yield lambda: read_answers(cached)
            return
        job = Job(self._commands.probe, folder, f"{name}-")
        write_request(job, query.request(job, answers), self._root)
        with guarded_process(job, self._guard, self._root, callbacks) as process:

            def wait() -> list[Answer]:
                ended = process.wait()
                if ended.exit_code != 0:
                    raise ProbingError(query.weight.path, ended)
                found = read_answers(self._root / answers)
                self._cache.mkdir(parents=True, exist_ok=True)
                with replacing(cached) as aside:
                    shutil.copyfile(self._root / answers, aside)
                return found

            yield wait


def read_answers(path: Path) -> list[Answer]:
    """Reads an answers file.

    Raises:
        RequestError: naming file and line, if a line is no answer.
        OSError: if it cannot be read.
    """
    # Not `splitlines`: answers may contain other line separators, which JSON does not escape.
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return [load_text(Answer, line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def load_probes(files: Sequence[str], root: Path) -> list[Probe]:
    """The probes of several files, in order."""
    return [probe for file in files for probe in read_probes(root / file)]
