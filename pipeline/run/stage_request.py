"""The process of one attempt: its job, its request, its folder."""

from __future__ import annotations

from dataclasses import fields

from pipeline.core.guard_limits import GuardLimits
from pipeline.core.settings import Settings, StageKind, StageSettings
from pipeline.core.types import WeightRef
from pipeline.processes.stage_process import Job, StageCommands
from stages.contract.recipe import Recipe
from stages.contract.requests import INIT_SETTINGS, ExternalRequest, InitRequest, TrainRequest

WEIGHT_NAME = "weight.dat"
STATES_NAME = "checkpoints"
"""Folder of an attempt that holds the states its training saved."""
BELOW_LIMIT_GB, BELOW_LIMIT_SHARE = 0.75, 0.03
"""How far below the guard's limit a stage's own cap lies: a CUDA context (about 0.5 GB) is in the guard's
figure alone.
"""


def stage_job(stage: StageSettings, folder: str, commands: StageCommands) -> Job:
    """The process of one attempt of a stage."""
    train = commands.external if stage.external else commands.train
    return Job(commands.init if stage.kind is StageKind.INIT else train, folder)


def memory_cap_gb(limits: GuardLimits) -> float:
    """The cap that a stage sets itself, a little below the guard's limit: an error that names its allocation
    comes before the kill.
    """
    limit = limits.gpu_limit_gb
    return round(max(limit / 2, limit - max(BELOW_LIMIT_GB, BELOW_LIMIT_SHARE * limit)), 3)


def stage_request(
    stage: StageSettings,
    recipe: Recipe,
    weight: WeightRef,
    job: Job,
    limits: GuardLimits,
    resume: str = "",
) -> TrainRequest | InitRequest | ExternalRequest:
    """The request of one attempt: its recipe, its input, and places in its own folder.

    Args:
        stage: tells the kind, and who trains.
        recipe: the attempt's own.
        weight: the input.
        job: whose files it names.
        limits: of the guard around it.
        resume: a saved state to go on from.
    """
    events, result = job.path("events.jsonl"), job.path("result.json")
    values = {f.name: getattr(recipe, f.name) for f in fields(Recipe)}
    if stage.kind is StageKind.INIT:
        made = job.path("model")
        return InitRequest(
            **{name: values[name] for name in INIT_SETTINGS},
            config=stage.config,
            output_dir=made,
            output_weight=f"{made}/{WEIGHT_NAME}",
            events=events,
            result=result,
        )
    train = TrainRequest(
        **values | {"memory_limit_gb": recipe.memory_limit_gb or memory_cap_gb(limits)},
        model_dir=weight.model_dir,
        input_weight=weight.path,
        output_weight=job.path(WEIGHT_NAME),
        events=events,
        result=result,
        checkpoints=job.path(STATES_NAME),
        resume=resume,
    )
    return ExternalRequest(train, stage.trainer.command, stage.trainer.shell) if stage.external else train


def attempt_folder(settings: Settings, run_id: str, index: int, stage: str, number: int) -> str:
    """`<artifacts>/runs/<run id>/<nn>-<stage>-attempt<k>`; stages are counted from 0 here and from 01 in the
    name.
    """
    return f"{settings.artifacts}/runs/{run_id}/{index + 1:02}-{stage}-attempt{number}"
