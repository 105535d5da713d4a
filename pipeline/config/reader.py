"""Composed settings to typed ones: every problem of keys, types and numbers is reported, not only the first.

Hydra composes plain YAML and nothing more. `stages.contract.serial` then builds the dataclasses of
`pipeline.core.settings`: OmegaConf's structured configs stop at the first problem and match enums by member
name, while here all problems come together, each with its key and the nearest known one, and enums are
written as their values (`bf16`, `cosine`, `bridge`).

A stage is a mapping under `stages`, by name and in the order of the file. Beside `STAGE_KEYS` it may have any
key of `conf/train`, which then applies to this stage alone: `stages.G.lr=2e-4` on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pipeline.config.value_checks import (
    ladder_problems,
    probe_problems,
    tracking_problems,
    trainer_problems,
    usable_rungs,
)
from pipeline.core.settings import (
    GuardLimits,
    LadderSettings,
    ModelSettings,
    ProbeSettings,
    Settings,
    StageKind,
    StageSettings,
    TrackingSettings,
    TrainerSettings,
    ValidationSettings,
)
from pipeline.core.thresholds import Thresholds
from pipeline.guard.machine import detect_machine
from stages.contract.fields import bound_problems
from stages.contract.offload import offload_problems
from stages.contract.recipe import DataSource, Recipe
from stages.contract.serial import RequestError, did_you_mean, load

T = TypeVar("T")

STAGE_KEYS = ("kind", "config", "probes", "ladder", "trainer")
"""The keys of a stage beside those of its recipe."""
_RECIPE_KEYS = tuple(f.name for f in fields(Recipe))
_TOP_LEVEL = {"name": str, "seed": int, "plan": bool, "reuse": bool, "artifacts": str}


def read(raw: Mapping[str, Any]) -> tuple[Settings | None, list[str]]:
    """Builds the settings from the composed configuration.

    Args:
        raw: plain containers, interpolations resolved.

    Returns:
        The settings, or None if there is no usable stage; and all problems of keys, types and numbers. If
        there are problems, some settings are defaults: their files can be checked, but they must not be run.
    """
    reader = _Reader(raw)
    reader.check_keys()
    model, guard = reader.model(), reader.guard()
    tracking = reader.part(TrackingSettings, raw.get("tracking"), "tracking", TrackingSettings())
    reader.add("tracking", tracking_problems(tracking))
    stages = reader.stages(model)
    if not stages:
        return None, reader.problems
    top = {key: raw[key] if type(raw.get(key)) is kind else kind() for key, kind in _TOP_LEVEL.items()}
    return Settings(**top, model=model, guard=guard, tracking=tracking, stages=stages), reader.problems


def read_validation(raw: Mapping[str, Any]) -> tuple[ValidationSettings, list[str]]:
    """Builds the settings for judging one weight, without an experiment, and lists their problems."""
    reader = _Reader(raw)
    model, guard, probes = reader.model(), reader.guard(), reader.probes(raw.get("probes"), "probes")
    train = raw.get("train")
    recipe, _ = _recipe({**(train if isinstance(train, Mapping) else {}), "data": []}, model)
    return ValidationSettings(model, guard, probes, recipe, str(raw.get("artifacts", ""))), reader.problems


class _Reader:
    """Builds the parts of the settings one by one and collects their problems."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self.problems: list[str] = []

    def add(self, key: str, problems: list[str]) -> None:
        """Adds the problems of a part, each once."""
        texts = (f"{key}.{problem}" for problem in problems)
        self.problems += [text for text in texts if text not in self.problems]

    def part(self, cls: type[T], data: Any, key: str, fallback: T) -> T:
        """Builds a dataclass. If the data do not fit, the search for problems goes on with a fallback."""
        try:
            return load(cls, data, key)
        except RequestError as error:
            self.add(key, error.problems)
            return fallback

    def check_keys(self) -> None:
        """Finds unknown and missing keys at the top level, and values of a wrong type."""
        raw, known = self._raw, {f.name for f in fields(Settings)} | {"train", "probes", "ladder", "trainer"}
        self.problems += [
            f"{key}: unknown key{did_you_mean(str(key), known)}" for key in raw if key not in known
        ]
        self.problems += [f"{key}: missing: conf/config.yaml sets it" for key in sorted(known - set(raw))]
        for key, kind in _TOP_LEVEL.items():
            if key in raw and type(raw[key]) is not kind:
                self.problems.append(f"{key}: {raw[key]!r} is no {kind.__name__}")

    def model(self) -> ModelSettings:
        raw = self._raw.get("model")
        known = raw if isinstance(raw, Mapping) else {}
        name, folder, weight = (str(known.get(key, "")) for key in ("name", "dir", "weight"))
        return self.part(ModelSettings, raw, "model", ModelSettings(name, folder, weight))

    def guard(self) -> GuardLimits:
        guard = self.part(GuardLimits, self._raw.get("guard"), "guard", GuardLimits(gpu_limit_gb=1.0))
        self.add("guard", bound_problems(guard))
        return guard

    def probes(self, data: Any, key: str) -> ProbeSettings:
        files = data.get("files") if isinstance(data, Mapping) else None
        named = [file for file in files if isinstance(file, str)] if isinstance(files, list) else []
        probes = self.part(ProbeSettings, data, key, ProbeSettings(named, Thresholds()))
        self.add(key, probe_problems(probes))
        return probes

    def stages(self, model: ModelSettings) -> list[StageSettings]:
        stages, train = self._raw.get("stages"), self._raw.get("train")
        if not isinstance(stages, Mapping) or not stages:
            remedy = "choose an experiment, as in +experiment=stageG; conf/experiment/ holds them"
            self.problems.append(f"stages: empty: {remedy}")
            return []
        if not isinstance(train, Mapping):
            self.problems.append(f"train: {train!r} is no mapping")
            return []
        _, shared = _recipe({"data": ["-"], **train}, model)
        self.add("train", shared)
        built = [self._stage(str(name), own, model, shared) for name, own in stages.items()]
        return [stage for stage in built if stage is not None]

    def _stage(self, name: str, own: Any, model: ModelSettings, shared: list[str]) -> StageSettings | None:
        """One stage; `shared` are the problems of `conf/train`, which are not repeated for every stage."""
        key = f"stages.{name}"
        if not isinstance(own, Mapping):
            remedy = "give it data, and what differs from conf/train"
            self.problems.append(f"{key}: {own!r} is no mapping: {remedy}")
            return None
        known = {*STAGE_KEYS, *_RECIPE_KEYS}
        self.add(key, [f"{k}: unknown key{did_you_mean(str(k), known)}" for k in own if k not in known])
        kind = own.get("kind", StageKind.TRAIN.value)
        if kind not in list(StageKind):
            self.add(key, [f"kind: {kind!r} is none of {', '.join(repr(k.value) for k in StageKind)}"])
            return None
        recipe_values = {k: value for k, value in own.items() if k in _RECIPE_KEYS}
        recipe, found = _recipe(merged(self._raw["train"], recipe_values), model)
        self.add(key, [problem for problem in found if problem not in shared])
        probes = self.probes(self._laid_over(own, "probes"), f"{key}.probes")
        trainer = self.part(
            TrainerSettings, self._laid_over(own, "trainer"), f"{key}.trainer", TrainerSettings()
        )
        self.add(f"{key}.trainer", trainer_problems(trainer))
        rungs = _with_full_rungs(self._laid_over(own, "ladder"))
        ladder = self.part(LadderSettings, rungs, f"{key}.ladder", LadderSettings())
        self.add(f"{key}.ladder", ladder_problems(ladder, recipe) if kind == StageKind.TRAIN else [])
        config = own.get("config", "")
        if not isinstance(config, str):
            self.add(key, [f"config: {config!r} is no str"])
            config = ""
        ladder = usable_rungs(ladder, trainer)
        return StageSettings(name, StageKind(kind), recipe, probes, ladder, config, trainer)

    def _laid_over(self, own: Mapping[str, Any], key: str) -> Any:
        """A stage's own part, laid over the one that all stages share."""
        below, above = self._raw.get(key), own.get(key)
        both = isinstance(below, Mapping) and isinstance(above, Mapping)
        return merged(below, above) if both else above or below  # type: ignore[arg-type]


def _recipe(values: Mapping[str, Any], model: ModelSettings) -> tuple[Recipe, list[str]]:
    """The recipe with the model's template, and its problems; if types are wrong, a recipe of defaults."""
    sources = full_sources(values.get("data"))
    try:
        recipe = load(Recipe, {**values, "data": sources, "template": model.template.value}, "")
    except RequestError as error:
        return Recipe(data=[DataSource(s["path"]) for s in sources if _is_source(s)]), error.problems
    return recipe, recipe.check(detect_machine().unified if offload_problems(recipe) else None)


def _with_full_rungs(ladder: Any) -> Any:
    """The ladder with full data entries in every rung."""
    rungs = ladder.get("rungs") if isinstance(ladder, Mapping) else None
    if not isinstance(rungs, list):
        return ladder
    return {**ladder, "rungs": [_full_rung(rung) for rung in rungs]}


def _full_rung(rung: Any) -> Any:
    change = rung.get("change") if isinstance(rung, Mapping) else None
    if not isinstance(change, Mapping) or not isinstance(change.get("data"), list):
        return rung
    return {**rung, "change": {**change, "data": full_sources(change["data"])}}


def full_sources(data: Any) -> list[Any]:
    """Data entries in full: a plain path is a file that counts once. Anything else is returned as it is."""
    entries = data if isinstance(data, list) else []
    return [{"path": entry, "repeat": 1} if isinstance(entry, str) else entry for entry in entries]


def _is_source(source: Any) -> bool:
    return isinstance(source, Mapping) and isinstance(source.get("path"), str)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: mappings key by key, everything else replaced. Neither is changed."""
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result
