"""The command for weight files: `list FILE` prints the entries, `check FILE [--config …]` verifies them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from stages.contract.events import ExitCode
from stages.nvfp4.codec import BLOCK
from stages.process.errors import InputError
from stages.qwen3.config import read_config
from stages.weights.bundles import QDATA, SCALE, SCALE_FORMATS, TWO_LEVEL, bundle_problems
from stages.weights.dat import DatFile
from stages.weights.dat_index import Entry
from stages.weights.model_weights import EMBEDDING, HEAD, WeightError, layout_of

_CHUNK_BYTES = 1 << 24


def listing(dat: DatFile) -> Iterator[str]:
    """A line for each entry (type, shape, bytes, what it is part of), then the sums and the kind of head."""
    width = max((len(name) for name in dat.entries), default=4)
    yield f"{'name':<{width}}  {'type':<8}  {'shape':<16}  {'bytes':>12}  part of"
    for entry in dat.entries.values():
        shape = "x".join(map(str, entry.shape)) or "scalar"
        line = f"{entry.name:<{width}}  {entry.elem_type.name:<8}  {shape:<16}  {entry.nbytes:>12}"
        yield f"{line}  {_part(dat, entry)}".rstrip()
    pairs = sum(name.endswith(QDATA) for name in dat.entries)
    yield f"{len(dat.entries)} entries, {dat.nbytes} bytes, {pairs} quantized weights, head: {head_kind(dat)}"


def _part(dat: DatFile, entry: Entry) -> str:
    stem, dot, last = entry.name.rpartition(".")
    if dot + last == QDATA and len(entry.shape) == 2:
        return f"NVFP4 {entry.shape[0]}x{entry.shape[1] * 2}, codes"
    if dot + last == SCALE and stem + QDATA in dat.entries:
        return "NVFP4, scales"
    return ""


def head_kind(dat: DatFile) -> str:
    """`separate`, quantized or plain, or `tied` to the embedding, or `none`."""
    if HEAD + QDATA in dat.entries or HEAD + TWO_LEVEL + QDATA in dat.entries:
        return "separate, quantized"
    if HEAD in dat.entries:
        return "separate, plain"
    return "tied to the embedding" if EMBEDDING in dat.entries or EMBEDDING + QDATA in dat.entries else "none"


def check(dat: DatFile, config: Path | None) -> tuple[list[str], list[str]]:
    """Finds everything that is wrong with a weight file.

    Args:
        dat: The weight file.
        config: A `config.json` whose shapes the file must have.

    Returns:
        Problems (broken pairs, shapes that do not fit, values that are not finite), and notes on what is odd
        but readable.

    Raises:
        ConfigError: if the config itself is bad.
    """
    problems: list[str] = []
    notes: list[str] = []
    for name in dat.entries:
        if name.endswith(QDATA):
            problems += bundle_problems(dat, name.removesuffix(QDATA))
        elif name.endswith(SCALE) and name.removesuffix(SCALE) + QDATA not in dat.entries:
            problems.append(f"{name}: no codes beside it: {name.removesuffix(SCALE)}{QDATA} is missing")
        _check_values(dat, name, problems, notes)
    if config is not None:
        try:
            layout_of(dat, read_config(config))
        except WeightError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    return problems, notes


def _check_values(dat: DatFile, name: str, problems: list[str], notes: list[str]) -> None:
    entry = dat.entries[name]
    scales = name.endswith(SCALE) and entry.elem_type in SCALE_FORMATS
    bad = negative = first = seen = 0
    for chunk in _chunks(dat, entry):
        if not chunk.is_floating_point():
            return
        values = chunk.float() if chunk.itemsize < 4 else chunk
        wrong = (~torch.isfinite(values)).view(-1)
        if not bad and bool(wrong.any()):
            first = seen + int(wrong.nonzero()[0])
        bad += int(wrong.sum())
        negative += int((values < 0).sum()) if scales else 0
        seen += chunk.numel()
    if bad:
        problems.append(f"{name}: {bad} of {seen} values are not finite, the first at index {first}")
    if negative:
        what = f"{negative} of {seen} scales are negative"
        notes.append(f"{name}: {what}: read as such, but no known encoder writes them")


def _chunks(dat: DatFile, entry: Entry) -> Iterator[torch.Tensor]:
    if not entry.shape:
        yield dat.tensor(entry.name).view(1)
        return
    step = max(1, _CHUNK_BYTES * entry.shape[0] // max(1, entry.nbytes))
    for start in range(0, entry.shape[0], step):
        yield dat.tensor(entry.name, slice(start, start + step))


def main(argv: list[str] | None = None) -> int:
    """The command line. `check` ends with 1 if there is a problem."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.dat", description=f"Weight files (NVFP4 in blocks of {BLOCK})."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the entries").add_argument("file", type=Path)
    checker = commands.add_parser("check", help="verify pairs, shapes and values")
    checker.add_argument("file", type=Path)
    checker.add_argument("--config", type=Path, help="a config.json whose shapes the file must have")
    arguments = parser.parse_args(argv)
    try:
        with DatFile(arguments.file) as dat:
            if arguments.command == "list":
                sys.stdout.writelines(line + "\n" for line in listing(dat))
                return ExitCode.OK
            problems, notes = check(dat, arguments.config)
    except (InputError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_INPUT
    sys.stdout.writelines(
        f"{kind}: {line}\n" for kind, lines in (("problem", problems), ("note", notes)) for line in lines
    )
    sys.stdout.write(f"{arguments.file}: {len(problems)} problem(s)\n")
    return ExitCode.FAILED if problems else ExitCode.OK
