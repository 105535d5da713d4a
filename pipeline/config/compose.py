"""Hydra's configuration to checked settings: overrides that need no `+`, plain values, all problems together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.config.file_checks import check_files
from pipeline.config.reader import read
from pipeline.core.settings import Settings, SettingsError

__all__ = ["CONF", "ROOT", "SettingsError", "checked", "composed", "plain", "relaxed"]

ROOT = Path(__file__).resolve().parents[2]
"""The project; relative paths in settings are relative to it, wherever a command is given."""
CONF = ROOT / "conf"
_OVERRIDE = re.compile(r"~|\+*[A-Za-z_][^=]*=")
_VALUE = re.compile(r"([A-Za-z_][\w.]*)=")


def relaxed(arguments: Sequence[str]) -> list[str]:
    """Lets `key=value` set a key that the file does not hold yet (`stages.G.lr=2e-4`), as `++key=value` does.

    Only of values: `model=qwen3_4b` chooses a file of a group and stays, and so do `hydra.…` and options. A
    key that exists nowhere is then found with all the other problems, not by Hydra alone and first. Options
    come first in the result: Hydra takes overrides in one piece only, and `+experiment=stageG -m seed=1,2` is
    natural.
    """
    groups = {entry.name for entry in CONF.iterdir() if entry.is_dir()}
    result: list[str] = []
    options: list[str] = []
    for argument in arguments:
        if not _OVERRIDE.match(argument):
            options.append(argument)
            continue
        match = _VALUE.match(argument)
        is_value = match is not None and match[1] not in groups and not match[1].startswith("hydra")
        result.append(f"++{argument}" if is_value else argument)
    return options + result


def composed(overrides: Sequence[str]) -> DictConfig:
    """The configuration for a program that is no Hydra application.

    Raises:
        hydra.errors.HydraException: if it cannot be composed.
    """
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        return compose("config", relaxed(overrides))


def plain(config: DictConfig) -> dict[str, Any]:
    """Plain containers, interpolations resolved.

    Raises:
        omegaconf.errors.OmegaConfBaseException: if an interpolation leads nowhere or a value is missing.
    """
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]


def checked(raw: Mapping[str, Any], root: Path) -> Settings:
    """Settings that can be run.

    Raises:
        SettingsError: with every problem of keys, types, numbers and files.
    """
    settings, problems = read(raw)
    if settings is not None:
        problems = problems + check_files(settings, root)
    if settings is None or problems:
        raise SettingsError(problems)
    return settings
