"""`python -m pipeline +experiment=stageG`: composes settings, reports every problem, plans or runs."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Sequence

from omegaconf import DictConfig

from pipeline.config.compose import CONF, ROOT, checked, plain, relaxed
from pipeline.core.settings import Settings, SettingsError
from stages.contract.events import ExitCode

_ERROR_SWITCH = "HYDRA_FULL_ERROR"
"""Environment variable: Hydra raises its errors instead of ending the process; the user's wish for all of
them.
"""


def main() -> int:
    """The command line, which Hydra reads from `sys.argv`.

    Returns:
        0 passed (or planned), 1 failed, 2 bad settings, 130 interrupted; of a sweep (`-m`) the worst of its
        runs.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    arguments = sys.argv[1:]
    sys.argv = ["python -m pipeline", *relaxed(arguments)]
    show_all = bool(os.environ.get(_ERROR_SWITCH))
    os.environ[_ERROR_SWITCH] = "1"
    codes: list[int] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def task(config: DictConfig) -> str:
        code, word = _carry_out(config, arguments)
        codes.append(code)
        if code == ExitCode.INTERRUPTED:
            sys.exit(code)  # a sweep ends here too
        return word

    try:
        with contextlib.chdir(
            ROOT
        ):  # paths in settings are relative to the project, wherever the command is given
            task()
    except (HydraException, OmegaConfBaseException) as error:
        if show_all:
            raise
        sys.stderr.write(_readable(error))
        return ExitCode.BAD_INPUT
    return max(codes, default=0)


def _carry_out(config: DictConfig, arguments: Sequence[str]) -> tuple[int, str]:
    """One composed configuration: exit code, and the word that a sweep gets to hear."""
    try:
        settings = checked(plain(config), ROOT)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_INPUT, "bad settings"
    if settings.plan:
        from pipeline.processes.stage_process import StageCommands
        from pipeline.run.plan import describe

        sys.stdout.write(describe(settings, ROOT, StageCommands()))
        return ExitCode.OK, "planned"
    return _run(settings, config, arguments)


def _run(settings: Settings, config: DictConfig, arguments: Sequence[str]) -> tuple[int, str]:
    from omegaconf import OmegaConf

    from pipeline.run import summary
    from pipeline.run.session import SessionError, run

    command = shlex.join(["python", "-m", "pipeline", *arguments])
    try:
        result = run(settings, ROOT, command, OmegaConf.to_yaml(config, resolve=True))
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_INPUT, "bad settings"
    except SessionError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.FAILED, "failed"
    summary.write(result.end, result.attempts, sys.stdout, arguments)
    return result.exit_code, result.end.outcome.value


def _readable(error: BaseException) -> str:
    """Hydra's own words without the way they came: the error and what caused it, each once."""
    texts: list[str] = []
    step: BaseException | None = error
    while step is not None:
        text = str(step).strip()
        if text and not any(text in told for told in texts):
            texts.append(text)
        step = step.__cause__
    return "settings cannot be composed 設定無法組合:\n" + "".join(
        f"  {line}\n" for text in texts for line in text.splitlines()
    )


if __name__ == "__main__":
    sys.exit(main())
