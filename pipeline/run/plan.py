"""What a run would do: stages with files and hashes, memory, content keys and the exact commands; and the
requests themselves.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.hashing import sha256_data, sha256_file, sha256_sources
from pipeline.core.settings import INIT_KEYS, GuardLimits, Settings, StageKind, StageSettings, TrainerSettings
from pipeline.guard.machine import Machine, detect_machine
from pipeline.processes.memory_estimate import (
    EstimateError,
    MemoryCap,
    MemoryNeed,
    ModelFiles,
    estimate_memory,
)
from pipeline.processes.stage_process import Job, StageCommands, command_line
from stages.contract import ExternalRequest, InitRequest, TrainRequest
from stages.contract.serial import load

WEIGHT_NAME = "weight.dat"
STATES_NAME = "checkpoints"
"""Folder of an attempt that holds the states its training saved."""
NEUTRAL_KEYS = ("data", "checkpoint_every", "log_every", "memory_limit_gb")
"""Keys of a recipe that do not change what an attempt results in; data count by their content."""
FENCE_GB, FENCE_SHARE = 0.75, 0.03
"""How far below the guard's limit a stage's own cap lies: a CUDA context (about 0.5 GB) is in the guard's
figure alone.
"""
MODEL_FILES = ("config.json", "tokenizer.json")
STAGES_PACKAGE = Path(__file__).parents[2] / "stages"


@dataclass(frozen=True)
class WeightRef:
    """A weight with the folder that explains it. `weight` is empty where there is none yet."""

    dir: str
    weight: str
    sha256: str


def code_key() -> str:
    """SHA-256 over the sources of `stages`: a change of what computes makes every result a new one."""
    return sha256_sources(STAGES_PACKAGE)


def trainer_key(trainer: TrainerSettings, root: Path) -> str:
    """What stands for the code in an external attempt's content key: the template, and the files that it
    names.

    The recipe is part of the key anyway; what a program reads beyond its arguments is not known here.
    """
    words = shlex.split(trainer.command)
    files = [sha256_file(root / word) for word in words if "{" not in word and (root / word).is_file()]
    return sha256_data([trainer.command, trainer.shell, files])


def base_model(settings: Settings, root: Path) -> WeightRef:
    """The model that the experiment starts from; without a weight if its first stage makes one."""
    if settings.from_nothing:
        return WeightRef("", "", "")
    weight = settings.model.weight
    return WeightRef(settings.model.dir, weight, sha256_file(root / weight))


def data_hashes(recipe: dict[str, Any], root: Path) -> dict[str, str]:
    """Data file → SHA-256, in the recipe's order."""
    return {source["path"]: sha256_file(root / source["path"]) for source in recipe["data"]}


def model_hashes(model: WeightRef, stage: StageSettings, root: Path) -> list[str]:
    """SHA-256 of what says how the weight is to be read: config and tokenizer, or the config to make one
    from.
    """
    if stage.kind is StageKind.INIT:
        return [sha256_file(root / stage.config)]
    return [sha256_file(root / model.dir / name) for name in MODEL_FILES]


def content_key(stage: StageSettings, recipe: dict[str, Any], model: WeightRef, root: Path, code: str) -> str:
    """What an attempt's result depends on, as one SHA-256: equal keys, equal weights. No path and no name is
    part of it.

    Args:
        stage: tells the kind.
        recipe: the attempt's own.
        model: the input.
        root: what relative paths are relative to.
        code: as `code_key` gives it.
    """
    data = [[sha256_file(root / source["path"]), source["repeat"]] for source in recipe["data"]]
    return sha256_data(
        {
            "kind": stage.kind,
            "input": model.sha256,
            "model": model_hashes(model, stage, root),
            "data": data,
            "recipe": {key: value for key, value in recipe.items() if key not in NEUTRAL_KEYS},
            "code": trainer_key(stage.trainer, root) if _is_external(stage) else code,
        }
    )


def stage_job(stage: StageSettings, folder: str, commands: StageCommands) -> Job:
    """The process of one attempt of a stage."""
    train = commands.external if _is_external(stage) else commands.train
    return Job(commands.init if stage.kind is StageKind.INIT else train, folder)


def _is_external(stage: StageSettings) -> bool:
    return stage.kind is StageKind.TRAIN and stage.trainer.external


def fence_gb(limits: GuardLimits) -> float:
    """The cap that a stage sets itself, a little below the guard's limit: an error that names its allocation
    comes before the kill.
    """
    limit = limits.gpu_limit_gb
    return round(max(limit / 2, limit - max(FENCE_GB, FENCE_SHARE * limit)), 3)


def stage_request(
    stage: StageSettings,
    recipe: dict[str, Any],
    model: WeightRef,
    job: Job,
    limits: GuardLimits,
    resume: str = "",
) -> TrainRequest | InitRequest | ExternalRequest:
    """The request of one attempt: its recipe, its input, and places in its own folder.

    Args:
        stage: tells the kind, and who trains.
        recipe: the attempt's own.
        model: the input.
        job: whose files it names.
        limits: of the guard around it.
        resume: a saved state to go on from.
    """
    places = {"events": job.path("events.jsonl"), "result": job.path("result.json")}
    if stage.kind is StageKind.INIT:
        made = job.path("model")
        places |= {"config": stage.config, "output_dir": made, "output_weight": f"{made}/{WEIGHT_NAME}"}
        return load(
            InitRequest, {**{key: recipe[key] for key in INIT_KEYS if key in recipe}, **places}, stage.name
        )
    places |= {"model_dir": model.dir, "input_weight": model.weight, "output_weight": job.path(WEIGHT_NAME)}
    places |= {"checkpoints": job.path(STATES_NAME), "resume": resume}
    given = {**recipe, "memory_limit_gb": recipe.get("memory_limit_gb") or fence_gb(limits)}
    train = load(TrainRequest, {**given, **places}, stage.name)
    return (
        ExternalRequest(train, stage.trainer.command, stage.trainer.shell) if _is_external(stage) else train
    )


def attempt_folder(settings: Settings, run_id: str, index: int, stage: str, number: int) -> str:
    """`<artifacts>/runs/<run id>/<nn>-<stage>-attempt<k>`; stages are counted from 0 here and from 01 in the
    name.
    """
    return f"{settings.artifacts}/runs/{run_id}/{index + 1:02}-{stage}-attempt{number}"


def memory_need(
    settings: Settings, stage: StageSettings, root: Path, commands: StageCommands, machine: Machine
) -> MemoryNeed | None:
    """The memory that a stage's training will need; None for a stage that another program trains, or that
    trains nothing.

    Raises:
        EstimateError: if nothing can be said.
    """
    if stage.kind is StageKind.INIT or stage.trainer.external:
        return None
    first, limit = settings.stages[0], settings.guard.gpu_limit_gb
    model = (
        ModelFiles(first.config)
        if settings.from_nothing
        else ModelFiles(f"{settings.model.dir}/config.json", settings.model.weight)
    )
    cap = MemoryCap(limit, min(limit, stage.recipe["memory_limit_gb"] or fence_gb(settings.guard)))
    return estimate_memory(stage.name, stage.recipe, model, cap, machine, commands, root)


def describe(settings: Settings, root: Path, commands: StageCommands, machine: Machine | None = None) -> str:
    """The whole plan as text for `plan=true`. Changes nothing and writes nothing.

    Args:
        settings: without problems.
        root: what relative paths are relative to.
        commands: how stage processes are started.
        machine: where it would run; this one if left out.
    """
    machine = machine or detect_machine()
    base, code = base_model(settings, root), code_key()
    lines = [f"experiment 實驗  {settings.name}   seed {settings.seed}"]
    if base.weight:
        lines.append(
            f"base 基礎權重    {base.weight}  {base.sha256[:12]}  {(root / base.weight).stat().st_size:,} bytes"
        )
    lines.append(f"code 程式碼      stages/**/*.py  {code[:12]}")
    model = base
    for index, stage in enumerate(settings.stages):
        lines += _describe_stage(settings, root, commands, index, model, code)
        lines += _describe_memory(settings, root, commands, stage, machine)
        made = f"<weight of {stage.name}>"
        model = WeightRef(f"<model of {stage.name}>" if stage.kind is StageKind.INIT else model.dir, made, "")
    return "\n".join(lines) + "\n"


def _describe_stage(
    settings: Settings, root: Path, commands: StageCommands, index: int, model: WeightRef, code: str
) -> list[str]:
    stage = settings.stages[index]
    job = stage_job(stage, attempt_folder(settings, "<run>", index, stage.name, 1), commands)
    known = index == 0
    key = (
        content_key(stage, stage.recipe, model, root, code)[:12]
        if known
        else "known once the stage before it has passed"
    )
    lines = ["", f"stage 階段 {index + 1}/{len(settings.stages)}  {stage.name}  ({stage.kind.value})"]
    lines.append(f"  input 輸入     {model.weight or 'nothing: it makes the model'}")
    for source in stage.data:
        lines.append(
            f"  data 資料      {source.path}  {sha256_file(root / source.path)[:12]}  × {source.repeat}"
        )
    for path in stage.probes.files if stage.kind is StageKind.TRAIN else ():
        lines.append(f"  probes 測題    {path}  {sha256_file(root / path)[:12]}")
    lines.append(f"  recipe 配方    {_short_recipe(stage.recipe)}")
    lines.append(f"  attempts 嘗試  at most {stage.ladder.max_attempts}")
    lines.append(f"  key 內容鍵     {key}")
    lines.append(f"  command 命令   {command_line(job, settings.guard, root)}")
    return lines


def _describe_memory(
    settings: Settings, root: Path, commands: StageCommands, stage: StageSettings, machine: Machine
) -> list[str]:
    try:
        need = memory_need(settings, stage, root, commands, machine)
    except EstimateError as error:
        return [f"  memory 記憶體  not known: {error}"]
    if need is None:
        return []
    first, *rest = need.lines()
    lines = [f"  memory 記憶體  {first}", *(" " * 17 + line for line in rest)]
    if need.over:
        lines.append(f"  refused 拒絕   {need.refusal()}")
    return lines + ([f"  warning 警告   {need.warning()}"] if need.warning() else [])


def _short_recipe(recipe: dict[str, Any]) -> str:
    shown: Sequence[str] = (
        "steps",
        "lr",
        "batch_size",
        "grad_accum",
        "seq_len",
        "schedule",
        "warmup_steps",
        "rounding",
        "seed",
    )
    return " · ".join(f"{key} {recipe[key]}" for key in shown if key in recipe)
