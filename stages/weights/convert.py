"""The conversion command: `to-dat HF_FOLDER FILE --format nvfp4|float16` and `to-hf FILE HF_FOLDER`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stages.contract.events import ExitCode
from stages.contract.recipe import ScaleRule
from stages.process.errors import InputError
from stages.process.files import NoSpaceError
from stages.weights.dat_to_hf import to_hf
from stages.weights.hf_to_dat import Format, to_dat


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stages.convert", description="Hugging Face folders to weight files and back."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    to_dat_options = commands.add_parser("to-dat", help="safetensors to a weight file")
    to_dat_options.add_argument("folder", type=Path, help="folder with config.json and safetensors")
    to_dat_options.add_argument("file", type=Path, help="the .dat file to write")
    to_dat_options.add_argument("--format", type=Format, choices=list(Format), default=Format.NVFP4)
    to_dat_options.add_argument(
        "--scale-rule", type=ScaleRule, choices=list(ScaleRule), default=ScaleRule.SEARCH
    )
    to_dat_options.add_argument(
        "--two-level",
        action="store_true",
        help="a scale of each tensor too; F# programs cannot read such a file",
    )
    to_hf_options = commands.add_parser("to-hf", help="a weight file to safetensors")
    to_hf_options.add_argument("file", type=Path, help="the .dat file")
    to_hf_options.add_argument("folder", type=Path, help="the folder to make")
    to_hf_options.add_argument(
        "--model-dir", type=Path, help="folder with config.json and tokenizer (default: that of the file)"
    )
    to_hf_options.add_argument("--shard-gb", type=float, default=4.0, help="most GB of one safetensors file")
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "to-dat":
            written = to_dat(
                arguments.folder, arguments.file, arguments.format, arguments.scale_rule, arguments.two_level
            )
            sys.stdout.write(f"{arguments.file}: {written.nbytes} bytes, SHA-256 {written.sha256}\n")
        else:
            model_dir = arguments.model_dir or arguments.file.parent
            to_hf(arguments.file, arguments.folder, model_dir, int(arguments.shard_gb * 1e9))
            sys.stdout.write(f"{arguments.folder}: written\n")
    except NoSpaceError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.NO_SPACE
    except (InputError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_INPUT
    return ExitCode.OK
