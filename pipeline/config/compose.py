"""Composes the configuration with Hydra and turns it into checked settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.config.file_checks import check_files
from pipeline.config.reader import read
from pipeline.core.settings import Settings, SettingsError

ROOT = Path(__file__).resolve().parents[2]
"""The project folder. Relative paths in settings are relative to it, whatever the working directory is."""
CONF = ROOT / "conf"
_OVERRIDE = re.compile(r"~|\+*[A-Za-z_][^=]*=")
_VALUE = re.compile(r"([A-Za-z_][\w.]*)=")


def relaxed(arguments: Sequence[str]) -> list[str]:
    """Lets `key=value` set a key that no file has (`stages.G.lr=2e-4`), as `++key=value` does.

    That applies to values only: `model=qwen3_4b`, which chooses a file of a group, `hydra.…` and options are
    unchanged. A key that exists nowhere is then reported with all other problems, not by Hydra alone. Options
    come first in the result, because Hydra does not allow them between overrides, where one would write them:
    `+experiment=stageG -m seed=1,2`.
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
    """The configuration, for a program that is no Hydra application.

    Raises:
        hydra.errors.HydraException: if it cannot be composed.
    """
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(config_dir=str(CONF), version_base="1.3"):
        return compose("config", relaxed(overrides))


def plain(config: DictConfig) -> dict[str, Any]:
    """Plain containers, interpolations resolved.

    Raises:
        omegaconf.errors.OmegaConfBaseException: if an interpolation cannot be resolved or a value is missing.
    """
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]


def checked(raw: Mapping[str, Any], root: Path) -> Settings:
    """The settings of a run, all checked.

    Raises:
        SettingsError: with every problem of keys, types, numbers and files.
    """
    settings, problems = read(raw)
    if settings is not None:
        problems = problems + check_files(settings, root)
    if settings is None or problems:
        raise SettingsError(problems)
    return settings
