"""`python -m pipeline.validate WEIGHT`: probes a weight and its base, prints the table and the verdict.

Exit code: 0 passed, 1 not passed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from pipeline.config.compose import ROOT, composed, plain
from pipeline.config.file_checks import model_problems, probe_file_problems, weight_problems
from pipeline.config.reader import read_validation
from pipeline.core.hashing import sha256_file
from pipeline.core.settings import SettingsError, ValidationSettings
from pipeline.core.types import Outcome, Verdict, WeightRef
from pipeline.evaluate import probe_table
from pipeline.evaluate.answers import AnswerCache, ProbeQuery, ProbingError, load_probes
from pipeline.evaluate.judge import judge
from pipeline.guard.machine import detect_machine
from pipeline.processes.progress import Progress
from pipeline.processes.stage_process import ProcessCallbacks, StageCommands
from pipeline.run.attempt_files import write_verdict
from pipeline.run.runner import new_run_id
from stages.contract.events import ExitCode
from stages.contract.requests import InferencePath
from stages.contract.signals import StopSignals


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    from hydra.errors import HydraException

    options = _parser().parse_args(argv)
    weight = str(Path(options.weight).resolve())
    weight = str(Path(weight).relative_to(ROOT)) if Path(weight).is_relative_to(ROOT) else weight
    with StopSignals() as stop, Progress() as progress:
        try:
            settings = _settings(weight, options.model, options.override)
            callbacks = ProcessCallbacks(on_event=progress.event, on_memory=progress.memory, stop=stop)
            verdict, folder = validate(
                settings, weight, InferencePath(options.path), ROOT, StageCommands(), progress, callbacks
            )
        except (SettingsError, HydraException, OmegaConfBaseException) as error:
            sys.stderr.write(f"{error}\n")
            return ExitCode.BAD_INPUT
        except ProbingError as error:
            sys.stderr.write(f"{error}\n")
            code = ExitCode.INTERRUPTED if stop.count else error.ended.exit_code
            return code if code in (ExitCode.BAD_INPUT, ExitCode.INTERRUPTED) else ExitCode.FAILED
    probe_table.write(verdict, sys.stdout, limit=options.limit)
    sys.stdout.write(f"path 路徑: {options.path}\nfiles 檔案: {folder}\n")
    return ExitCode.OK if verdict.outcome is Outcome.PASSED else ExitCode.FAILED


def validate(
    settings: ValidationSettings,
    weight: str,
    path: InferencePath,
    root: Path,
    commands: StageCommands,
    progress: Progress,
    callbacks: ProcessCallbacks,
) -> tuple[Verdict, str]:
    """Judges a weight, compared with its base.

    Args:
        settings: the probes, the limits and the base.
        weight: the file to judge.
        path: how the answers are computed.
        root: what relative paths are relative to.
        commands: of the stage processes.
        progress: shows what is being done.
        callbacks: of the processes.

    Returns:
        The verdict, and the folder with the answers.

    Raises:
        ProbingError: if a probing process failed.
    """
    folder = f"{settings.artifacts}/runs/{new_run_id('validate')}"
    cache = AnswerCache(root, settings.artifacts, settings.guard, commands, detect_machine())
    answers = {}
    for name, file in (("base-answers", settings.model.weight), ("answers", weight)):
        progress.begin(f"{file} · probes · {path.value}")
        ref = WeightRef(settings.model.dir, file, sha256_file(root / file))
        query = ProbeQuery(ref, settings.probes, settings.recipe, path)
        answers[name] = cache.ask(query, folder, name, callbacks)
    probes = load_probes(settings.probes.files, root)
    verdict = judge(probes, answers["answers"], answers["base-answers"], settings.probes.thresholds)
    write_verdict(verdict, root / folder)
    return verdict, folder


def _settings(weight: str, model: str, overrides: Sequence[str]) -> ValidationSettings:
    settings, problems = read_validation(plain(composed([f"model={model}", *overrides])))
    problems = problems + model_problems(settings.model, ROOT) + weight_problems("WEIGHT", weight, ROOT)
    problems += probe_file_problems(
        {file: f"probes.files[{i}]" for i, file in enumerate(settings.probes.files)}, ROOT
    )
    if problems:
        raise SettingsError(problems)
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.validate",
        description="Judges a weight by its answers: identity, contrast, UFO, skills. 以回答判定一個權重。",
        epilog="Exit code: 0 passed, 1 not passed, 2 bad input.",
    )
    parser.add_argument("weight", metavar="WEIGHT", help="the .dat file to judge")
    parser.add_argument(
        "--model", default="qwen3_nano", help="a file of conf/model: config, tokenizer, base weight"
    )
    paths = [path.value for path in InferencePath]
    parser.add_argument(
        "--path",
        default=InferencePath.BRIDGE.value,
        choices=paths,
        help="the weights as stored, or the training forward",
    )
    parser.add_argument(
        "--limit", type=int, default=20, help="most probes shown in each section; 0: all (default 20)"
    )
    parser.add_argument(
        "override", nargs="*", help="settings, as in guard=gpu train.device=cpu probes.max_tokens=32"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
