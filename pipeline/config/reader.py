"""Composed settings to typed ones: every problem of keys, types and numbers is reported, not the first.

Hydra composes plain YAML and nothing more. The types of `pipeline.core.settings` are applied by
`stages.contract.serial`, because OmegaConf's structured configs stop at the first problem and match enums by
member name; here all problems come together, each with its key and the nearest known one, and enums are
written as their lower-case values (`bf16`, `cosine`, `bridge`).

A stage is a mapping under `stages`, by name and in the order of the file. Beside the keys of `STAGE_KEYS` it
takes any key of `conf/train`, which then counts for this stage alone: `stages.G.lr=2e-4` on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
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
"""What a stage may hold beside the keys of its recipe."""
_RECIPE_KEYS = tuple(f.name for f in fields(Recipe))
_TOP = {"name": str, "seed": int, "plan": bool, "reuse": bool, "artifacts": str}


@dataclass
class _Problems:
    """Collects problems while parts are built one by one."""

    found: list[str] = field(default_factory=list)

    def part(self, cls: type[T], data: Any, key: str, instead: T) -> T:
        """Builds `cls`; or notes why not, and gives a stand-in with which the search for problems goes on."""
        try:
            return load(cls, data, key)
        except RequestError as error:
            self.say(key, error.problems)
            return instead

    def say(self, key: str, problems: list[str]) -> None:
        """Notes problems of a part, each once."""
        self.found += [
            problem for problem in (f"{key}.{text}" for text in problems) if problem not in self.found
        ]


def read(raw: Mapping[str, Any]) -> tuple[Settings | None, list[str]]:
    """Builds the settings from the composed configuration.

    Args:
        raw: plain containers, interpolations resolved.

    Returns:
        The settings, or None if there is no stage to speak of; and all problems of keys, types and numbers.
        Settings that come with problems have stand-ins in some places: they serve for looking further, at
        files, and not for running.
    """
    problems = _Problems()
    known = {f.name for f in fields(Settings)} | {"train", "probes", "ladder", "trainer"}
    problems.found += [f"{key}: unknown key{did_you_mean(key, known)}" for key in raw if key not in known]
    problems.found += [f"{key}: missing: conf/config.yaml sets it" for key in sorted(known - set(raw))]
    for key, kind in _TOP.items():
        if key in raw and type(raw[key]) is not kind:
            problems.found.append(f"{key}: {raw[key]!r} is no {kind.__name__}")
    model = problems.part(ModelSettings, raw.get("model"), "model", _some_model(raw.get("model")))
    guard = problems.part(GuardLimits, raw.get("guard"), "guard", GuardLimits(gpu_limit_gb=1.0))
    tracking = problems.part(TrackingSettings, raw.get("tracking"), "tracking", TrackingSettings())
    problems.say("guard", bound_problems(guard))
    problems.say("tracking", tracking_problems(tracking))
    stages = _stages(raw, model, problems)
    if not stages:
        return None, problems.found
    top = {key: raw[key] if type(raw.get(key)) is kind else kind() for key, kind in _TOP.items()}
    return Settings(**top, model=model, guard=guard, tracking=tracking, stages=stages), problems.found


def read_validation(raw: Mapping[str, Any]) -> tuple[ValidationSettings, list[str]]:
    """The part of the settings that judging a weight needs, without an experiment; and its problems, as
    `read` gives them.
    """
    problems = _Problems()
    train = raw.get("train") if isinstance(raw.get("train"), Mapping) else {}
    model = problems.part(ModelSettings, raw.get("model"), "model", _some_model(raw.get("model")))
    guard = problems.part(GuardLimits, raw.get("guard"), "guard", GuardLimits(gpu_limit_gb=1.0))
    probes = problems.part(ProbeSettings, raw.get("probes"), "probes", ProbeSettings([], Thresholds()))
    problems.say("guard", bound_problems(guard))
    problems.say("probes", probe_problems(probes))
    recipe, _ = _recipe({**train, "data": []}, model)  # type: ignore[dict-item]
    return ValidationSettings(model, guard, probes, recipe, str(raw.get("artifacts", ""))), problems.found


def _some_model(raw: Any) -> ModelSettings:
    raw = raw if isinstance(raw, Mapping) else {}
    name, folder, weight = (str(raw.get(key, "")) for key in ("name", "dir", "weight"))
    return ModelSettings(name, folder, weight)


def _stages(raw: Mapping[str, Any], model: ModelSettings, problems: _Problems) -> list[StageSettings]:
    stages, train = raw.get("stages"), raw.get("train")
    if not isinstance(stages, Mapping) or not stages:
        problems.found.append(
            "stages: empty: choose an experiment, as in +experiment=stageG; conf/experiment/ holds them"
        )
        return []
    if not isinstance(train, Mapping):
        problems.found.append(f"train: {train!r} is no mapping")
        return []
    _, shared = _recipe({"data": ["-"], **train}, model)
    problems.say("train", shared)
    built = [_stage(str(name), own, raw, model, problems, shared) for name, own in stages.items()]
    return [stage for stage in built if stage is not None]


def _stage(
    name: str, own: Any, raw: Mapping[str, Any], model: ModelSettings, problems: _Problems, shared: list[str]
) -> StageSettings | None:
    """One stage; `shared` are the problems of `conf/train`, which are not repeated for every stage."""
    key = f"stages.{name}"
    if not isinstance(own, Mapping):
        problems.found.append(f"{key}: {own!r} is no mapping: give it data, and what differs from conf/train")
        return None
    known = {*STAGE_KEYS, *_RECIPE_KEYS}
    problems.say(key, [f"{k}: unknown key{did_you_mean(str(k), known)}" for k in own if k not in known])
    kind = own.get("kind", StageKind.TRAIN.value)
    if kind not in list(StageKind):
        problems.say(key, [f"kind: {kind!r} is none of {', '.join(repr(k.value) for k in StageKind)}"])
        return None
    recipe, found = _recipe(merged(raw["train"], {k: v for k, v in own.items() if k in _RECIPE_KEYS}), model)
    problems.say(key, [problem for problem in found if problem not in shared])
    probes = _stage_probes(_laid_over(raw, own, "probes"), f"{key}.probes", problems)
    trainer = problems.part(
        TrainerSettings, _laid_over(raw, own, "trainer"), f"{key}.trainer", TrainerSettings()
    )
    problems.say(f"{key}.trainer", trainer_problems(trainer))
    ladder = problems.part(
        LadderSettings, _full_rungs(_laid_over(raw, own, "ladder")), f"{key}.ladder", LadderSettings()
    )
    problems.say(f"{key}.ladder", ladder_problems(ladder, recipe) if kind == StageKind.TRAIN else [])
    config = own.get("config", "")
    if not isinstance(config, str):
        problems.say(key, [f"config: {config!r} is no str"])
        config = ""
    return StageSettings(
        name, StageKind(kind), recipe, probes, usable_rungs(ladder, trainer), config, trainer
    )


def _stage_probes(asked: Any, key: str, problems: _Problems) -> ProbeSettings:
    files = asked.get("files") if isinstance(asked, Mapping) else None
    named = [f for f in files if isinstance(f, str)] if isinstance(files, list) else []
    probes = problems.part(ProbeSettings, asked, key, ProbeSettings(named, Thresholds()))
    problems.say(key, probe_problems(probes))
    return probes


def _recipe(values: Mapping[str, Any], model: ModelSettings) -> tuple[Recipe, list[str]]:
    """The recipe with the model's template, and its problems; with problems of types, one of defaults."""
    sources = full_sources(values.get("data"))
    try:
        recipe = load(Recipe, {**values, "data": sources, "template": model.template.value}, "")
    except RequestError as error:
        return Recipe(data=[DataSource(s["path"]) for s in sources if _is_source(s)]), error.problems
    return recipe, recipe.check(detect_machine().unified if offload_problems(recipe) else None)


def _laid_over(raw: Mapping[str, Any], own: Mapping[str, Any], key: str) -> Any:
    below, above = raw.get(key), own.get(key)
    return (
        merged(below, above) if isinstance(below, Mapping) and isinstance(above, Mapping) else above or below
    )


def _full_rungs(ladder: Any) -> Any:
    """The ladder with the data of every rung in full."""
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
    """Every data entry in full: a plain path stands for a file that counts once. What is no entry stays as it is."""
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
