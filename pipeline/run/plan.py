"""What a run would do, for `plan=true`: stages with files and hashes, memory, content keys and the exact
commands.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.core.code_key import code_key
from pipeline.core.hashing import sha256_file
from pipeline.core.settings import Settings, StageKind, StageSettings
from pipeline.core.types import WeightRef
from pipeline.guard.machine import Machine, detect_machine
from pipeline.processes.memory_estimate import (
    EstimateError,
    MemoryCap,
    MemoryNeed,
    ModelFiles,
    estimate_memory,
)
from pipeline.processes.stage_process import StageCommands, command_line
from pipeline.run.content_key import ENTRIES, content_key
from pipeline.run.stage_request import attempt_folder, memory_cap_gb, stage_job
from stages.contract.serial import to_jsonable

_SHOWN = [
    "steps",
    "lr",
    "batch_size",
    "grad_accum",
    "seq_len",
    "schedule",
    "warmup_steps",
    "rounding",
    "seed",
]
_SHOWN_OF_INIT = ["seed"]


def base_weight(settings: Settings, root: Path) -> WeightRef:
    """The weight that the experiment starts from; an empty one if its first stage makes it."""
    if settings.from_nothing:
        return WeightRef("", "", "")
    path = settings.model.weight
    return WeightRef(settings.model.dir, path, sha256_file(root / path))


def memory_need(
    settings: Settings, stage: StageSettings, root: Path, commands: StageCommands, machine: Machine
) -> MemoryNeed | None:
    """The memory that a stage's training will need; None for a stage that another program trains, or that
    trains nothing.

    Raises:
        EstimateError: if nothing can be said.
    """
    if stage.kind is StageKind.INIT or stage.external:
        return None
    first, limit = settings.stages[0], settings.guard.gpu_limit_gb
    model = (
        ModelFiles(first.config)
        if settings.from_nothing
        else ModelFiles(f"{settings.model.dir}/config.json", settings.model.weight)
    )
    cap = MemoryCap(limit, min(limit, stage.recipe.memory_limit_gb or memory_cap_gb(settings.guard)))
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
    base = weight = base_weight(settings, root)
    lines = [f"experiment 實驗  {settings.name}   seed {settings.seed}"]
    if base.path:
        size = (root / base.path).stat().st_size
        lines.append(f"base 基礎權重    {base.path}  {base.sha256[:12]}  {size:,} bytes")
    for entry in dict.fromkeys(ENTRIES[stage.kind] for stage in settings.stages if not stage.external):
        lines.append(f"code 程式碼      {entry}  {code_key(entry)[:12]}")
    for index, stage in enumerate(settings.stages):
        lines += _describe_stage(settings, root, commands, index, weight, machine)
        lines += _describe_memory(settings, root, commands, stage, machine)
        made = f"<weight of {stage.name}>"
        folder = f"<model of {stage.name}>" if stage.kind is StageKind.INIT else weight.model_dir
        weight = WeightRef(folder, made, "")
    return "\n".join(lines) + "\n"


def _describe_stage(
    settings: Settings, root: Path, commands: StageCommands, index: int, weight: WeightRef, machine: Machine
) -> list[str]:
    stage = settings.stages[index]
    job = stage_job(stage, attempt_folder(settings, "<run>", index, stage.name, 1), commands)
    key = "known once the stage before it has passed"
    if index == 0:
        key = content_key(stage, stage.recipe, weight, root, machine)[:12]
    lines = ["", f"stage 階段 {index + 1}/{len(settings.stages)}  {stage.name}  ({stage.kind.value})"]
    lines.append(f"  input 輸入     {weight.path or 'nothing: it makes the model'}")
    for source in stage.recipe.data:
        digest = sha256_file(root / source.path)[:12]
        lines.append(f"  data 資料      {source.path}  {digest}  × {source.repeat}")
    for path in stage.probes.files if stage.kind is StageKind.TRAIN else ():
        lines.append(f"  probes 測題    {path}  {sha256_file(root / path)[:12]}")
    lines.append(f"  recipe 配方    {_short_recipe(stage)}")
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


def _short_recipe(stage: StageSettings) -> str:
    shown = _SHOWN_OF_INIT if stage.kind is StageKind.INIT else _SHOWN
    return " · ".join(f"{key} {to_jsonable(getattr(stage.recipe, key))}" for key in shown)
