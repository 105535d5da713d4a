"""Composed settings to typed ones: every fault of keys, types and numbers is reported, not the first.

Hydra composes plain YAML and nothing more. The types of `pipeline.settings` are applied by `stages.contract.serial`, because
OmegaConf's structured configs stop at the first fault and match enums by member name; here all faults come together, each with
its key and the nearest known one, and enums are written as their lower-case values (`bf16`, `cosine`, `bridge`).

A stage is a mapping under `stages`, by name and in the order of the file. Beside the keys of `STAGE_KEYS` it takes any key of
`conf/train`, which then counts for this stage alone: `stages.G.lr=2e-4` on the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from pipeline.guard import GuardLimits
from pipeline.judge import Thresholds
from pipeline.ladder import LadderSettings
from pipeline.machine import look
from pipeline.settings import (
    INIT_KEYS,
    PATH_KEYS,
    RECIPE_KEYS,
    STAGE_KEYS,
    Judging,
    ModelSettings,
    ProbeSettings,
    Settings,
    StageKind,
    StageSettings,
)
from pipeline.tracking import TrackingSettings
from pipeline.trainer import TrainerSettings, usable
from stages.contract import InitRequest, RequestError, Template, TrainRequest, offload_faults
from stages.contract.serial import load

T = TypeVar("T")

_STAND_IN = {key: f"<{key}>" for key in PATH_KEYS}
_TOP = {"name": str, "seed": int, "plan": bool, "reuse": bool, "artifacts": str}


@dataclass
class _Faults:
    """Collects faults while parts are built one by one."""

    found: list[str] = field(default_factory=list)

    def part(self, cls: type[T], data: Any, key: str, instead: T) -> T:
        """Builds `cls`; or notes why not, and gives a stand-in with which the search for faults goes on."""
        try:
            return load(cls, data, key)
        except RequestError as error:
            self.say(key, error.faults)
            return instead

    def say(self, key: str, faults: list[str]) -> None:
        """Notes faults of a part, each once."""
        self.found += [fault for fault in (f"{key}.{text}" for text in faults) if fault not in self.found]


def read(raw: Mapping[str, Any]) -> tuple[Settings | None, list[str]]:
    """Builds the settings from the composed configuration.

    Args:
        raw: plain containers, interpolations resolved.

    Returns:
        The settings, or None if there is no stage to speak of; and all faults of keys, types and numbers. Settings that come
        with faults have stand-ins in some places: they serve for looking further, at files, and not for running.
    """
    faults = _Faults()
    known = {f.name for f in fields(Settings)} | {"train", "probes", "ladder", "trainer"}
    faults.found += [f"{key}: unknown key{nearest(key, known)}" for key in raw if key not in known]
    faults.found += [f"{key}: missing: conf/config.yaml sets it" for key in sorted(known - set(raw))]
    for key, kind in _TOP.items():
        if key in raw and type(raw[key]) is not kind:
            faults.found.append(f"{key}: {raw[key]!r} is no {kind.__name__}")
    model = faults.part(ModelSettings, raw.get("model"), "model", _some_model(raw.get("model")))
    guard = faults.part(GuardLimits, raw.get("guard"), "guard", GuardLimits(gpu_limit_gb=1.0))
    tracking = faults.part(TrackingSettings, raw.get("tracking"), "tracking", TrackingSettings())
    faults.say("guard", guard.check())
    faults.say("tracking", tracking.check())
    stages = _stages(raw, model.template, faults)
    if not stages:
        return None, faults.found
    top = {key: raw[key] if type(raw.get(key)) is kind else kind() for key, kind in _TOP.items()}
    return Settings(**top, model=model, guard=guard, tracking=tracking, stages=stages), faults.found


def read_judging(raw: Mapping[str, Any]) -> tuple[Judging, list[str]]:
    """The part of the settings that judging a weight needs, without an experiment; and its faults, as `read` gives them."""
    faults = _Faults()
    train = raw.get("train") if isinstance(raw.get("train"), Mapping) else {}
    model = faults.part(ModelSettings, raw.get("model"), "model", _some_model(raw.get("model")))
    guard = faults.part(GuardLimits, raw.get("guard"), "guard", GuardLimits(gpu_limit_gb=1.0))
    probes = faults.part(ProbeSettings, raw.get("probes"), "probes", ProbeSettings([], Thresholds()))
    faults.say("guard", guard.check())
    faults.say("probes", probes.check())
    recipe = {**train, "data": [], "template": model.template.value}  # type: ignore[dict-item]
    return Judging(model, guard, probes, recipe, str(raw.get("artifacts", ""))), faults.found


def _some_model(raw: Any) -> ModelSettings:
    raw = raw if isinstance(raw, Mapping) else {}
    name, folder, weight = (str(raw.get(key, "")) for key in ("name", "dir", "weight"))
    return ModelSettings(name, folder, weight)


def _stages(raw: Mapping[str, Any], template: Template, faults: _Faults) -> list[StageSettings]:
    stages, train = raw.get("stages"), raw.get("train")
    if not isinstance(stages, Mapping) or not stages:
        faults.found.append("stages: empty: choose an experiment, as in +experiment=stageG; conf/experiment/ holds them")
        return []
    if not isinstance(train, Mapping):
        faults.found.append(f"train: {train!r} is no mapping")
        return []
    recipe = {"data": [{"path": "-"}], **train}
    shared = _recipe_faults(TrainRequest, recipe, _STAND_IN)
    faults.say("train", shared)
    built = [_stage(str(name), own, raw, faults, shared) for name, own in stages.items()]
    keep = {"template": template.value}
    return [s if s.kind is StageKind.INIT else replace(s, recipe={**s.recipe, **keep}) for s in built if s is not None]


def _stage(name: str, own: Any, raw: Mapping[str, Any], faults: _Faults, shared: list[str]) -> StageSettings | None:
    """One stage; `shared` are the faults of `conf/train`, which are not told again for every stage."""
    key = f"stages.{name}"
    if not isinstance(own, Mapping):
        faults.found.append(f"{key}: {own!r} is no mapping: give it data, and what differs from conf/train")
        return None
    takes = {*STAGE_KEYS, *RECIPE_KEYS}
    faults.say(key, [f"{k}: unknown key{nearest(k, takes)}" for k in own if k not in takes])
    kind = own.get("kind", StageKind.TRAIN.value)
    if kind not in list(StageKind):
        faults.say(key, [f"kind: {kind!r} is none of {', '.join(repr(k.value) for k in StageKind)}"])
        return None
    recipe = with_sources(merged(raw["train"], {k: v for k, v in own.items() if k in RECIPE_KEYS}))
    config = own.get("config", "")
    if kind == StageKind.INIT:
        recipe = {k: recipe[k] for k in INIT_KEYS if k in recipe}
        places = {"config": config, "output_dir": "-", "output_weight": "-", "events": "-", "result": "-"}
        found = _recipe_faults(InitRequest, recipe, places)
    else:
        found = _recipe_faults(TrainRequest, {k: v for k, v in recipe.items() if k not in PATH_KEYS}, _STAND_IN)
    faults.say(key, [fault for fault in found if fault not in shared])
    asked, rungs = _laid_over(raw, own, "probes"), _laid_over(raw, own, "ladder")
    files = asked.get("files") if isinstance(asked, Mapping) else None
    some = ProbeSettings([f for f in files if isinstance(f, str)] if isinstance(files, list) else [], Thresholds())
    probes = faults.part(ProbeSettings, asked, f"{key}.probes", some)
    ladder = faults.part(LadderSettings, rungs, f"{key}.ladder", LadderSettings())
    recipe["data"] = [source for source in recipe["data"] if _is_source(source)]
    faults.say(f"{key}.probes", probes.check())
    faults.say(f"{key}.ladder", ladder.check(recipe) if kind == StageKind.TRAIN else [])
    trainer = faults.part(TrainerSettings, _laid_over(raw, own, "trainer"), f"{key}.trainer", TrainerSettings())
    faults.say(f"{key}.trainer", trainer.check())
    config = config if isinstance(config, str) else ""
    return StageSettings(name, StageKind(kind), recipe, probes, usable(ladder, trainer), config, trainer)


def _recipe_faults(cls: type[TrainRequest] | type[InitRequest], recipe: Mapping[str, Any], places: Mapping[str, str]) -> list[str]:
    """The contract's own word on types and numbers, with stand-ins for the paths of an attempt."""
    try:
        request = load(cls, {**recipe, **places}, "")
    except RequestError as error:
        return error.faults
    if isinstance(request, TrainRequest) and offload_faults(request):
        return request.check(look().unified)
    return request.check()


def _laid_over(raw: Mapping[str, Any], own: Mapping[str, Any], key: str) -> Any:
    below, above = raw.get(key), own.get(key)
    return merged(below, above) if isinstance(below, Mapping) and isinstance(above, Mapping) else above or below


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


def nearest(name: str, known: Any, cutoff: float = 0.6) -> str:
    """`; did you mean 'x'?` for the nearest known name, or nothing. `cutoff`: how alike it must be, in [0, 1]."""
    near = difflib.get_close_matches(str(name), [str(k) for k in known], n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""
