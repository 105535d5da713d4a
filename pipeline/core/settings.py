"""Settings of one run as frozen dataclasses. `pipeline.config` builds them and checks them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pipeline.core.guard_limits import GuardLimits
from pipeline.core.thresholds import Thresholds
from pipeline.core.types import Outcome, StartFrom
from stages.contract.events import Phase
from stages.contract.fields import setting
from stages.contract.recipe import Recipe, Template


class SettingsError(ValueError):
    """Settings that cannot be run. `problems` lists every reason as `key: value: remedy`."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        lines = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(f"{len(problems)} problem(s) in the settings\n{lines}")


@dataclass(frozen=True)
class ModelSettings:
    """The model that the experiment starts from."""

    name: str
    dir: str
    """Folder with `config.json` and `tokenizer.json`."""
    weight: str
    """The base weight, a `.dat` file."""
    template: Template = Template.QWEN


@dataclass(frozen=True)
class TrackingSettings:
    """Whether and where MLflow records the runs."""

    enabled: bool = True
    uri: str = ""
    """`http://…`, or `sqlite:///…` with a path from the root; empty: SQLite below the artifacts folder."""
    artifact_root: str = ""
    """Folder or URI for MLflow's artifacts; empty: below the artifacts folder, or as the server decides."""
    experiment_prefix: str = ""
    """Put before the experiment's name in MLflow."""
    trace_points: int = setting(300, at_least=2)
    """Most memory samples of an attempt that become metrics."""
    close_wait_secs: float = setting(30.0, unit="s", at_least=0.0, below=3600.0)
    """How long the end of a run waits for MLflow; `sync` sends what is left then."""


@dataclass(frozen=True)
class ProbeSettings:
    """What a weight is asked, and the limits that its answers are compared with."""

    files: list[str]
    thresholds: Thresholds
    max_tokens: int = setting(64, unit="tokens", at_least=1)
    """Longest answer."""
    batch_size: int = setting(64, unit="probes", at_least=1)
    """Answered together."""


class TrainerKind(StrEnum):
    """`INTERNAL` is `stages.train`; `EXTERNAL` is any program that reads and writes weight files."""

    INTERNAL = "internal"
    EXTERNAL = "external"


@dataclass(frozen=True)
class TrainerSettings:
    """Which program trains a stage."""

    kind: TrainerKind = TrainerKind.INTERNAL
    command: str = ""
    """Template for `EXTERNAL`; see `stages.contract.command`."""
    shell: bool = False
    """Hand the command to `/bin/sh`."""

    @property
    def external(self) -> bool:
        """Whether an external program trains."""
        return self.kind is TrainerKind.EXTERNAL


class Cause(StrEnum):
    """The reason behind an outcome, where one outcome needs different answers."""

    ANY = "any"
    NON_FINITE = "non_finite"
    """Broken by NaN or infinite values: a smaller rate helps."""
    SPILL = "spill"
    """Underfit although the new identity is there: it leaks, or has replaced something else. More training
    makes it worse.
    """
    OTHER = "other"
    """Broken by bad input or a crash; underfit because the new identity is not there yet."""


@dataclass(frozen=True)
class Rung:
    """One way to continue after an outcome."""

    after: Outcome
    change: dict[str, Any]
    """Recipe key → new value. A string such as `*0.5` or `+20` is arithmetic on the present value; whole
    numbers stay whole (rounded up, at least 1).
    """
    why: str
    """The reason in a sentence: it goes into the ledger with the attempt."""
    start_from: StartFrom | None = None
    """None: the base weight after `collapsed` and `broken`, else the start of the attempt before."""
    repeat: bool = False
    """Whether the last rung of an outcome may be used again and again."""
    cause: Cause = Cause.ANY
    """Only for attempts with this cause; see `PastAttempt.cause`."""


@dataclass(frozen=True)
class LadderSettings:
    """The rungs of all outcomes, and how often a stage is tried."""

    max_attempts: int = setting(4, at_least=1)
    """Most attempts of one stage, the first included."""
    rungs: list[Rung] = field(default_factory=list)
    """Those of one outcome are used in this order, each once."""


class StageKind(StrEnum):
    """`TRAIN` turns one weight into another; `INIT` makes a tokenizer and a random weight from nothing."""

    TRAIN = "train"
    INIT = "init"


@dataclass(frozen=True)
class StageSettings:
    """One stage: the shared settings with those of the stage laid over them."""

    name: str
    kind: StageKind
    recipe: Recipe
    """`INIT` uses only `INIT_SETTINGS` of it."""
    probes: ProbeSettings
    ladder: LadderSettings
    config: str = ""
    """`INIT` only: the `config.json` of the model to make."""
    trainer: TrainerSettings = field(default_factory=TrainerSettings)

    @property
    def external(self) -> bool:
        """Whether an external program trains it."""
        return self.kind is StageKind.TRAIN and self.trainer.external

    @property
    def measures(self) -> bool:
        """Whether `stop_after` ends it before there is a weight; an external program ignores that setting."""
        return not self.trainer.external and self.recipe.stop_after not in ("", Phase.EXPORTED)


@dataclass(frozen=True)
class Settings:
    """All settings of one run."""

    name: str
    """Of the experiment."""
    seed: int
    plan: bool
    """Print what would be done, and stop."""
    reuse: bool
    """Take finished attempts with the same content key from the ledger instead of training again."""
    artifacts: str
    """Folder of runs, weights, trash and cache."""
    model: ModelSettings
    guard: GuardLimits
    tracking: TrackingSettings
    stages: list[StageSettings]

    @property
    def from_nothing(self) -> bool:
        """Whether the first stage makes the model: there is no base weight to start from or compare with."""
        return self.stages[0].kind is StageKind.INIT


@dataclass(frozen=True)
class ValidationSettings:
    """What judging a single weight needs."""

    model: ModelSettings
    """Its weight is the base that is compared with."""
    guard: GuardLimits
    probes: ProbeSettings
    recipe: Recipe
    """Only the settings that affect answers are used."""
    artifacts: str
