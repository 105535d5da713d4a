"""Checks the files that settings name before anything is started. It reports every problem at once, each as
`key: value: remedy` with the nearest name that exists.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from pipeline.core.settings import ModelSettings, Settings, StageKind, StageSettings
from pipeline.core.types import MODEL_FILES
from stages.contract.rows import RowFileError, read_probes, read_rows
from stages.contract.serial import did_you_mean

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DAT_MIN_BYTES = 16


def check_files(settings: Settings, root: Path) -> list[str]:
    """All problems of names, files and disk space.

    Args:
        settings: as `reader.read` returns them.
        root: what relative paths are relative to.
    """
    problems = _name_problems(settings)
    first = settings.stages[0]
    if first.kind is StageKind.INIT:
        remedy = "name the config.json of the model to make"
        problems += _missing(root, f"stages.{first.name}.config", first.config, remedy)
    else:
        problems += model_problems(settings.model, root)
    rows, probes = dict[str, str](), dict[str, str]()
    for stage in settings.stages:
        for key, path in _data_files(stage):
            rows.setdefault(path, key)
        if stage.kind is StageKind.TRAIN:
            key = f"stages.{stage.name}.probes.files"
            for index, path in enumerate(stage.probes.files):
                probes.setdefault(path, f"{key}[{index}]")
            if not stage.probes.files:
                problems.append(f"{key}: empty: name a probe file; without probes there is no verdict")
    problems += _row_file_problems(rows, root, read_rows)
    problems += probe_file_problems(probes, root)
    return problems + _disk_problems(settings, root)


def _name_problems(settings: Settings) -> list[str]:
    problems = []
    keys = [("name", settings.name), *((f"stages.{stage.name}", stage.name) for stage in settings.stages)]
    for key, name in keys:
        if not _NAME.fullmatch(name):
            remedy = "names folders, so it is made of letters, digits, '.', '_' and '-'"
            problems.append(f"{key}: {name!r}: {remedy}")
    for stage in settings.stages[1:]:
        if stage.kind is StageKind.INIT:
            remedy = "only the first stage can make a model from nothing"
            problems.append(f"stages.{stage.name}.kind: init: {remedy}")
    last = settings.stages[-1].name
    for stage in settings.stages[:-1]:
        if stage.measures:
            remedy = f"set it in {last} only: a stage that stops early leaves no weight for the next"
            problems.append(f"stages.{stage.name}.stop_after: {stage.recipe.stop_after}: {remedy}")
    return problems


def model_problems(model: ModelSettings, root: Path) -> list[str]:
    """What is missing of a model: its folder, config and tokenizer, its base weight."""
    problems = _missing(root, "model.dir", model.dir, "it holds config.json and tokenizer.json of the model")
    if not problems:
        for name in MODEL_FILES:
            problems += _missing(root, "model.dir", f"{model.dir}/{name}", "put the model's own there")
    return problems + weight_problems("model.weight", model.weight, root)


def weight_problems(key: str, path: str, root: Path) -> list[str]:
    """What is wrong with a weight file, without reading it: the stage checks its content."""
    problems = _missing(root, key, path, "name a weight, a .dat file")
    if not problems and not (root / path).is_file():
        problems = [f"{key}: {path}: is a folder: name the .dat file in it"]
    if not problems and (size := (root / path).stat().st_size) < _DAT_MIN_BYTES:
        remedy = "fetch the file again (an empty or broken copy?)"
        problems = [f"{key}: {path}: {size} bytes are no weight: {remedy}"]
    return problems


def probe_file_problems(files: dict[str, str], root: Path) -> list[str]:
    """All bad lines of probe files, given as path → key."""
    return _row_file_problems(files, root, read_probes)


def _data_files(stage: StageSettings) -> Iterable[tuple[str, str]]:
    """Key and path of every data file that an attempt may read, also after a change by the ladder."""
    for index, source in enumerate(stage.recipe.data):
        yield f"stages.{stage.name}.data[{index}]", source.path
    for index, rung in enumerate(stage.ladder.rungs if stage.kind is StageKind.TRAIN else ()):
        for source in rung.change.get("data", ()):
            if isinstance(source, dict) and "path" in source:
                yield f"stages.{stage.name}.ladder.rungs[{index}].change.data", str(source["path"])


def _row_file_problems(files: dict[str, str], root: Path, reader: Callable[[Path], object]) -> list[str]:
    problems: list[str] = []
    for path, key in files.items():
        missing = _missing(root, key, path, "name an existing TSV; nothing is put in its place")
        if missing:
            problems += missing
            continue
        try:
            reader(root / path)
        except RowFileError as error:
            problems += [problem.replace(str(root / path), path) for problem in error.problems]
    return problems


def _missing(root: Path, key: str, path: str, remedy: str) -> list[str]:
    """No problem if the path exists; else one, with the nearest name in the deepest folder that exists."""
    if not path:
        return [f"{key}: empty: {remedy}"]
    place = root / path
    if place.exists():
        return []
    part, folder = place, place.parent
    while not folder.is_dir() and folder != folder.parent:
        part, folder = folder, folder.parent
    near = did_you_mean(part.name, [entry.name for entry in folder.iterdir()], cutoff=0.75)
    where = ""
    if folder != place.parent:
        where = f" ({folder.relative_to(root) if folder.is_relative_to(root) else folder} has no {part.name})"
    return [f"{key}: {path}: no such file{where}{near or ': ' + remedy}"]


def _disk_problems(settings: Settings, root: Path) -> list[str]:
    """Every stage writes one weight of about the base's size; all of them must fit on the disk."""
    weight = root / settings.model.weight
    if settings.from_nothing or not weight.is_file():
        return []
    place = root / settings.artifacts
    while not place.exists():
        place = place.parent
    need, free = weight.stat().st_size * len(settings.stages), shutil.disk_usage(place).free
    if free >= need:
        return []
    size = f"{free / 2**30:.1f} GiB free, {need / 2**30:.1f} needed"
    return [f"artifacts: {settings.artifacts}: {size}: free some, or set artifacts="]
