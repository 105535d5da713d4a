"""Settings of one run as typed, frozen dataclasses. `pipeline.config.reader` builds them and finds what is
wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from pipeline.evaluate.judge import Thresholds
from pipeline.guard.limits import GuardLimits
from pipeline.ledger.mlflow.tracking import TrackingSettings
from pipeline.run.ladder import LadderSettings
from pipeline.run.trainer import TrainerSettings
from stages.contract import DataSource, Phase, Template, TrainRequest

PATH_KEYS = ("model_dir", "input_weight", "output_weight", "events", "result", "checkpoints", "resume")
"""Keys of a `TrainRequest` that belong to one attempt and are no recipe."""
RECIPE_KEYS = tuple(f.name for f in fields(TrainRequest) if f.name not in PATH_KEYS)
INIT_KEYS = ("data", "seed", "scale_rule")
STAGE_KEYS = ("kind", "config", "probes", "ladder", "trainer")
"""What a stage may hold beside recipe keys."""


class StageKind(StrEnum):
    """`TRAIN` turns one weight into another; `INIT` makes a tokenizer and a random weight from nothing."""

    TRAIN = "train"
    INIT = "init"


class SettingsError(ValueError):
    """Settings that cannot be run. `problems` lists every reason as `key: value: remedy`."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(
            f"{len(problems)} problem(s) in the settings\n"
            + "\n".join(f"  - {problem}" for problem in problems)
        )


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
class ProbeSettings:
    """What a weight is asked, and the limits its answers are held against."""

    files: list[str]
    thresholds: Thresholds
    max_tokens: int = 64
    batch_size: int = 64

    def check(self) -> list[str]:
        """All impossible numbers, each as `key: value: remedy`."""
        problems = [f"thresholds.{problem}" for problem in self.thresholds.check()]
        for key in ("max_tokens", "batch_size"):
            if getattr(self, key) < 1:
                problems.append(f"{key}: {getattr(self, key)}: must be 1 or more")
        return problems


@dataclass(frozen=True)
class StageSettings:
    """One stage with everything resolved: shared settings with the stage's own laid over them."""

    name: str
    kind: StageKind
    recipe: dict[str, Any]
    """`RECIPE_KEYS` as plain JSON values; for `INIT` only `INIT_KEYS`."""
    probes: ProbeSettings
    ladder: LadderSettings
    config: str = ""
    """`INIT` only: the `config.json` of the model to make."""
    trainer: TrainerSettings = field(default_factory=TrainerSettings)

    @property
    def data(self) -> list[DataSource]:
        """The recipe's data files."""
        return [DataSource(**source) for source in self.recipe["data"]]

    @property
    def measures(self) -> bool:
        """Whether `stop_after` ends it before there is a weight. The user's own trainer does not know of it."""
        return not self.trainer.external and self.recipe.get("stop_after", "") not in ("", Phase.EXPORTED)


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
        """Whether the first stage makes the model, so that there is no base weight to start from or to
        compare with.
        """
        return self.stages[0].kind is StageKind.INIT


@dataclass(frozen=True)
class ValidationSettings:
    """What judging a single weight needs."""

    model: ModelSettings
    """Its weight is the base that is compared with."""
    guard: GuardLimits
    probes: ProbeSettings
    recipe: dict[str, Any]
    """Device, dtype and threads are taken from it."""
    artifacts: str
