"""The content key of an attempt: all that decides the bytes of its weight, and nothing else."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pipeline.core.code_key import code_key
from pipeline.core.hashing import sha256_data, sha256_file
from pipeline.core.settings import StageKind, StageSettings, TrainerSettings
from pipeline.core.types import MODEL_FILES, WeightRef
from pipeline.guard.machine import Machine
from stages.contract.fields import Affects
from stages.contract.recipe import Recipe
from stages.contract.requests import INIT_SETTINGS

ENTRIES = {StageKind.TRAIN: "stages.train", StageKind.INIT: "stages.init"}
"""What computes a stage."""


def content_key(stage: StageSettings, recipe: Recipe, weight: WeightRef, root: Path, machine: Machine) -> str:
    """What the result of an attempt depends on: equal keys, equal weights. No path and no name is part of it.

    Args:
        stage: tells the kind and who trains.
        recipe: the attempt's own.
        weight: the input.
        root: what relative paths are relative to.
        machine: where it would run: `auto` stands for another device elsewhere.
    """
    return sha256_data(
        {
            "kind": stage.kind,
            "input": weight.sha256,
            "model": _model_hashes(weight, stage, root),
            "data": [[sha256_file(root / source.path), source.repeat] for source in recipe.data],
            "recipe": _counting(stage, recipe, machine),
            "code": _trainer_key(stage.trainer, root) if stage.external else code_key(ENTRIES[stage.kind]),
        }
    )


def _counting(stage: StageSettings, recipe: Recipe, machine: Machine) -> dict[str, Any]:
    """The settings that decide the result, with the device and dtype that `auto` stands for here."""
    resolved = recipe.resolved(machine.trains_on(recipe.device))
    values = resolved.values(Affects.RESULT, Affects.RESULT_AND_ANSWERS)
    names = INIT_SETTINGS if stage.kind is StageKind.INIT else tuple(values)
    return {name: values[name] for name in names if name != "data"}


def _model_hashes(weight: WeightRef, stage: StageSettings, root: Path) -> list[str]:
    """SHA-256 of what says how the weight is to be read: config and tokenizer, or the config to make one
    from.
    """
    if stage.kind is StageKind.INIT:
        return [sha256_file(root / stage.config)]
    return [sha256_file(root / weight.model_dir / name) for name in MODEL_FILES]


def _trainer_key(trainer: TrainerSettings, root: Path) -> str:
    """What stands for the code of an external trainer: its template, and the files that the template names.

    What the program reads beyond its arguments is not known here.
    """
    words = shlex.split(trainer.command)
    files = [sha256_file(root / word) for word in words if "{" not in word and (root / word).is_file()]
    return sha256_data([trainer.command, trainer.shell, files])
