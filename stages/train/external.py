"""One stage that another program trains: `python -m stages.external REQUEST.json`.

Starts the program, waits for it, and checks the weight file that it wrote. The program writes to a name that
begins with a dot. The file gets its real name once the program has ended with exit code 0 and the file has
the entries of the input weight; a file without them stays under the first name, for a person to look at.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch

from stages.contract.command import RECIPE_PLACEHOLDERS, expand
from stages.contract.events import ExitCode, Phase, StageResult
from stages.contract.requests import ExternalRequest, TrainRequest
from stages.contract.rows import read_rows
from stages.contract.signals import StopSignals
from stages.process.files import publish, require_new, require_space, sha256_of, write_new_text
from stages.process.process import Reporter, StageError, run_process, versions
from stages.weights.dat import DatFile
from stages.weights.dat_index import DatError

POLL_SECS = 0.05
_SHOWN = 3


def external(request: ExternalRequest, stop: StopSignals | None = None) -> StageResult:
    """Runs one stage with the request's command.

    Args:
        request: what to train, and the command.
        stop: entered; its first signal is passed to the program as SIGTERM. None: nothing is.

    Raises:
        StageError: `FAILED` if the program failed, or wrote no weight or a broken one; `INTERRUPTED` if a
            stop was requested. Errors of reading the inputs are raised before anything is started.
    """
    train = request.train
    reporter = Reporter(Path(train.events), torch.device("cpu"))
    output = Path(train.output_weight)
    aside = output.with_name(f".{output.stem}-partial{output.suffix}")
    require_new(output)
    require_new(aside)
    with DatFile(Path(train.input_weight)) as dat:
        entries = {name: entry.shape for name, entry in dat.entries.items()}
        output.parent.mkdir(parents=True, exist_ok=True)
        require_space(output, dat.nbytes)
    paths = {
        "data": _rows(train),
        "input": train.input_weight,
        "output": str(aside),
        "model_dir": train.model_dir,
    }
    numbers = {key: getattr(train, key) for key in RECIPE_PLACEHOLDERS}
    command = expand(request.command, paths | numbers, request.shell)
    reporter.phase(Phase.START)
    reporter.note(f"command: {shlex.join(command)}")
    seconds = _run(command, stop or StopSignals())
    _require_weight(aside, entries)
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    digest, size = sha256_of(aside), aside.stat().st_size
    publish(aside, output)
    aside.unlink(missing_ok=True)
    reporter.phase(Phase.EXPORTED)
    return StageResult(
        0,
        output=train.output_weight,
        sha256=digest,
        output_bytes=size,
        steps=train.steps,
        figures={"seconds_program": seconds},
        notes=reporter.notes,
        versions=versions(),
    )


def _rows(train: TrainRequest) -> str:
    """Writes all rows, repeated as configured, to one TSV beside the output.

    It has no header, which a program might take for a row.
    """
    path = Path(train.output_weight).with_suffix(".tsv")
    lines = [
        f"{row.prompt}\t{row.target}\n"
        for source in train.data
        for row in read_rows(Path(source.path)) * source.repeat
    ]
    write_new_text(path, "".join(lines))
    return str(path)


def _run(command: list[str], stop: StopSignals) -> float:
    """Runs the program, with this process's stdout and stderr; returns the seconds it took."""
    began = time.monotonic()
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise StageError(
            ExitCode.BAD_INPUT, f"{command[0]}: cannot be started: {error.strerror}: correct trainer.command"
        ) from error
    terminated = False
    while True:
        try:
            code = process.wait(POLL_SECS)
            break
        except subprocess.TimeoutExpired:
            if stop.count and not terminated:
                process.terminate()
                terminated = True
    if stop.count:
        raise StageError(
            ExitCode.INTERRUPTED, f"asked to stop: the program ended with {code}, its weight is not used"
        )
    if code != 0:
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise StageError(
            ExitCode.FAILED,
            f"{Path(command[0]).name} {ended}: see stdout.log and stderr.log for what it said",
        )
    return time.monotonic() - began


def _require_weight(path: Path, entries: dict[str, tuple[int, ...]]) -> None:
    if not path.is_file():
        raise StageError(
            ExitCode.FAILED,
            f"the program ended well but wrote no weight to {{output}}, {path}: correct its command",
        )
    try:
        with DatFile(path) as dat:
            held = {name: entry.shape for name, entry in dat.entries.items()}
    except DatError as error:
        raise StageError(ExitCode.FAILED, f"the program wrote a broken weight: {error}") from error
    wrong = [f"{name} is missing" for name in entries if name not in held]
    wrong += [
        f"{name} is {held[name]}, was {shape}"
        for name, shape in entries.items()
        if held.get(name, shape) != shape
    ]
    wrong += [f"{name} is new" for name in held if name not in entries]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise StageError(
            ExitCode.FAILED, f"{path}: not the input's entries: {'; '.join(wrong[:_SHOWN])}{more}"
        )


def main(argv: list[str] | None = None) -> int:
    """The command line; see `run_process`."""
    words = sys.argv[1:] if argv is None else argv
    with StopSignals(second_ends=True) as stop:
        return run_process(
            ExternalRequest, partial(external, stop=stop), words, "One stage by another program."
        )
