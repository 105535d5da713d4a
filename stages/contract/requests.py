"""What `pipeline` asks of `stages`: one JSON file per process; and the names of checkpoints.

Every path is as the caller wrote it, relative to the working directory of the process. `check()` of a request
lists all that is wrong with its values; whether files exist and fit each other is checked by the stage.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from stages.contract.command import template_problems
from stages.contract.fields import bound_problems, setting
from stages.contract.recipe import ComputeDtype, DataSource, Recipe, ScaleRule, Template

WRITE_ROOT = "STAGES_WRITE_ROOT"
"""Environment variable: the folder outside of which a stage refuses to write. Whoever starts the stage sets
it; it is no part of the request, which may come from elsewhere. It also marks the processes of an attempt.
"""
_CHECKPOINT_NAME = re.compile(r"step-(\d{8})\.dat")


class InferencePath(StrEnum):
    """`BRIDGE` reads the weights as stored; `FP2` runs the training forward (straight-through estimator)."""

    BRIDGE = "bridge"
    FP2 = "fp2"


@dataclass(frozen=True, kw_only=True)
class TrainRequest(Recipe):
    """One attempt of one stage: a recipe with the paths of what it reads and writes."""

    model_dir: str
    """Folder with `config.json` and `tokenizer.json`."""
    input_weight: str
    output_weight: str = setting(written=True)
    """Must not exist. It appears whole, or not at all."""
    events: str = setting(written=True)
    """JSON lines are appended here while the stage runs."""
    result: str = setting(written=True)
    """The `StageResult` JSON, written last."""
    checkpoints: str = setting("", written=True)
    """Folder of the checkpoints; they are removed once the weight is exported."""
    resume: str = ""
    """The checkpoint to go on from; empty: the training starts from the input weight."""

    def check(self, unified: bool | None = None) -> list[str]:
        """All impossible values of the recipe and of the paths, each as `key: value: remedy`."""
        problems = super().check(unified)
        if self.checkpoint_every > 0 and not self.checkpoints:
            remedy = "needs checkpoints: name a folder for the saved states"
            problems.append(f"checkpoint_every: {self.checkpoint_every}: {remedy}")
        if self.output_weight == self.input_weight:
            remedy = "is the input weight; nothing is ever overwritten"
            problems.append(f"output_weight: {self.output_weight}: {remedy}")
        return problems


def checkpoint_path(folder: Path, step: int) -> Path:
    """The file of the checkpoint after `step`."""
    return folder / f"step-{step:08d}.dat"


def checkpoint_step(path: Path) -> int:
    """The step in the name of a checkpoint; -1 for any other file."""
    match = _CHECKPOINT_NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the latest step in a folder; None if there is none, or no such folder."""
    found = [path for path in folder.glob("step-*.dat") if checkpoint_step(path) >= 0]
    return max(found, key=checkpoint_step, default=None)


@dataclass(frozen=True)
class ExternalRequest:
    """One attempt of one stage by another program. `train` holds its input and the place of its weight."""

    train: TrainRequest
    command: str
    """Template of the command; see `stages.contract.command`."""
    shell: bool = False
    """Hand the command to `/bin/sh`; else it is an argument list that no shell sees."""

    @property
    def events(self) -> str:
        """Of `train`."""
        return self.train.events

    @property
    def result(self) -> str:
        """Of `train`."""
        return self.train.result

    def check(self) -> list[str]:
        """All impossible values of `train`, and what is wrong with the template."""
        return self.train.check() + [f"command: {problem}" for problem in template_problems(self.command)]


@dataclass(frozen=True)
class ProbeRequest:
    """Answers of one weight to probe files."""

    model_dir: str
    weight: str
    probes: list[str]
    """Probe TSV files, answered in this order."""
    answers: str = setting(written=True)
    """JSON lines of `Answer`, one per probe, in order. Must not exist."""
    events: str = setting(written=True)
    result: str = setting(written=True)
    max_tokens: int = setting(64, unit="tokens", at_least=1)
    batch_size: int = setting(64, unit="probes", at_least=1)
    temperature: float = setting(0.0, at_least=0.0, below=100.0)
    """0 is greedy."""
    top_p: float = setting(1.0, above=0.0, at_most=1.0)
    seed: int = 0
    template: Template = Template.QWEN
    path: InferencePath = InferencePath.BRIDGE
    scale_rule: ScaleRule = ScaleRule.SEARCH
    """Only for `path: fp2`."""
    compute_dtype: ComputeDtype = ComputeDtype.AUTO
    device: str = "auto"
    threads: int = setting(0, at_least=0)

    def check(self) -> list[str]:
        """All impossible values, each as `key: value: remedy`."""
        empty = [] if self.probes else ["probes: empty: name at least one probe TSV file"]
        return empty + bound_problems(self)


@dataclass(frozen=True)
class InitRequest:
    """A model from nothing: a tokenizer trained on rows, and random weights exported as NVFP4."""

    config: str
    """A Qwen3 `config.json`; its `vocab_size` is the size of the tokenizer to train."""
    data: list[DataSource]
    output_dir: str = setting(written=True)
    """Receives `config.json`, `tokenizer.json` and the weight. Must not hold them yet."""
    output_weight: str = setting(written=True)
    events: str = setting(written=True)
    result: str = setting(written=True)
    seed: int = setting(0, at_least=0)
    scale_rule: ScaleRule = ScaleRule.SEARCH

    def check(self) -> list[str]:
        """All impossible values, each as `key: value: remedy`."""
        empty = [] if self.data else ["data: empty: name at least one TSV file to train the tokenizer on"]
        return empty + bound_problems(self)


INIT_SETTINGS = tuple(f.name for f in fields(InitRequest) if f.name in {g.name for g in fields(Recipe)})
"""The fields of a recipe that an `InitRequest` uses."""
