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
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from pipeline.config.ladder_checks import ladder_problems, trainer_problems, usable
from pipeline.core.settings import (
    INIT_KEYS,
    PATH_KEYS,
    RECIPE_KEYS,
    STAGE_KEYS,
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
from pipeline.evaluate.judge import Thresholds
from pipeline.guard.machine import detect_machine
from stages.contract import InitRequest, RequestError, Template, TrainRequest, offload_problems
from stages.contract.serial import did_you_mean, load

T = TypeVar("T")

_STAND_IN = {key: f"<{key}>" for key in PATH_KEYS}
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
    problems.say("guard", guard.check())
    problems.say("tracking", tracking.check())
    stages = _stages(raw, model.template, problems)
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
    problems.say("guard", guard.check())
    problems.say("probes", probes.check())
    recipe = {**train, "data": [], "template": model.template.value}  # type: ignore[dict-item]
    return ValidationSettings(model, guard, probes, recipe, str(raw.get("artifacts", ""))), problems.found


def _some_model(raw: Any) -> ModelSettings:
    raw = raw if isinstance(raw, Mapping) else {}
    name, folder, weight = (str(raw.get(key, "")) for key in ("name", "dir", "weight"))
    return ModelSettings(name, folder, weight)


def _stages(raw: Mapping[str, Any], template: Template, problems: _Problems) -> list[StageSettings]:
    stages, train = raw.get("stages"), raw.get("train")
    if not isinstance(stages, Mapping) or not stages:
        problems.found.append(
            "stages: empty: choose an experiment, as in +experiment=stageG; conf/experiment/ holds them"
        )
        return []
    if not isinstance(train, Mapping):
        problems.found.append(f"train: {train!r} is no mapping")
        return []
    recipe = {"data": [{"path": "-"}], **train}
    shared = _recipe_problems(TrainRequest, recipe, _STAND_IN)
    problems.say("train", shared)
    built = [_stage(str(name), own, raw, problems, shared) for name, own in stages.items()]
    keep = {"template": template.value}
    return [
        s if s.kind is StageKind.INIT else replace(s, recipe={**s.recipe, **keep})
        for s in built
        if s is not None
    ]


def _stage(
    name: str, own: Any, raw: Mapping[str, Any], problems: _Problems, shared: list[str]
) -> StageSettings | None:
    """One stage; `shared` are the problems of `conf/train`, which are not told again for every stage."""
    key = f"stages.{name}"
    if not isinstance(own, Mapping):
        problems.found.append(f"{key}: {own!r} is no mapping: give it data, and what differs from conf/train")
        return None
    takes = {*STAGE_KEYS, *RECIPE_KEYS}
    problems.say(key, [f"{k}: unknown key{did_you_mean(str(k), takes)}" for k in own if k not in takes])
    kind = own.get("kind", StageKind.TRAIN.value)
    if kind not in list(StageKind):
        problems.say(key, [f"kind: {kind!r} is none of {', '.join(repr(k.value) for k in StageKind)}"])
        return None
    recipe = with_sources(merged(raw["train"], {k: v for k, v in own.items() if k in RECIPE_KEYS}))
    config = own.get("config", "")
    if kind == StageKind.INIT:
        recipe = {k: recipe[k] for k in INIT_KEYS if k in recipe}
        places = {"config": config, "output_dir": "-", "output_weight": "-", "events": "-", "result": "-"}
        found = _recipe_problems(InitRequest, recipe, places)
    else:
        found = _recipe_problems(
            TrainRequest, {k: v for k, v in recipe.items() if k not in PATH_KEYS}, _STAND_IN
        )
    problems.say(key, [problem for problem in found if problem not in shared])
    asked, rungs = _laid_over(raw, own, "probes"), _laid_over(raw, own, "ladder")
    files = asked.get("files") if isinstance(asked, Mapping) else None
    some = ProbeSettings(
        [f for f in files if isinstance(f, str)] if isinstance(files, list) else [], Thresholds()
    )
    probes = problems.part(ProbeSettings, asked, f"{key}.probes", some)
    ladder = problems.part(LadderSettings, rungs, f"{key}.ladder", LadderSettings())
    recipe["data"] = [source for source in recipe["data"] if _is_source(source)]
    problems.say(f"{key}.probes", probes.check())
    problems.say(f"{key}.ladder", ladder_problems(ladder, recipe) if kind == StageKind.TRAIN else [])
    trainer = problems.part(
        TrainerSettings, _laid_over(raw, own, "trainer"), f"{key}.trainer", TrainerSettings()
    )
    problems.say(f"{key}.trainer", trainer_problems(trainer))
    config = config if isinstance(config, str) else ""
    return StageSettings(name, StageKind(kind), recipe, probes, usable(ladder, trainer), config, trainer)


def _recipe_problems(
    cls: type[TrainRequest] | type[InitRequest], recipe: Mapping[str, Any], places: Mapping[str, str]
) -> list[str]:
    """The contract's own word on types and numbers, with stand-ins for the paths of an attempt."""
    try:
        request = load(cls, {**recipe, **places}, "")
    except RequestError as error:
        return error.problems
    if isinstance(request, TrainRequest) and offload_problems(request):
        return request.check(detect_machine().unified)
    return request.check()


def _laid_over(raw: Mapping[str, Any], own: Mapping[str, Any], key: str) -> Any:
    below, above = raw.get(key), own.get(key)
    return (
        merged(below, above) if isinstance(below, Mapping) and isinstance(above, Mapping) else above or below
    )


def with_sources(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with every data entry in full: a plain path stands for a file that counts once."""
    full = [{"path": s, "repeat": 1} if isinstance(s, str) else s for s in recipe.get("data") or []]
    return {**recipe, "data": [{"repeat": 1, **s} if _is_source(s) else s for s in full]}


def _is_source(source: Any) -> bool:
    return isinstance(source, Mapping) and isinstance(source.get("path"), str)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: mappings key by key, everything else replaced. Neither is changed."""
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result
