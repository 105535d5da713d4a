"""The parity command: do the two inference paths of a weight agree, and if not, where do they first differ?

Exit code: 0 they agree, 4 they do not, 2 bad input.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path

from stages.contract.events import ExitCode
from stages.contract.recipe import ComputeDtype, ScaleRule, Template
from stages.contract.requests import InferencePath
from stages.parity import table as parity_table
from stages.parity.check import check_parity
from stages.process.errors import InputError
from stages.process.files import require_new, write_new_text
from stages.process.process import StageError, pick_device
from stages.qwen3.config import read_config
from stages.qwen3.template import load_tokenizer
from stages.weights.dat import DatFile
from stages.weights.model_weights import load_model


def _tolerance(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text}: a finite number, 0 or more, is needed")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stages.parity",
        description="Compares the file's own inference (bridge) with the training forward (fp2).",
        epilog="Exit code: 0 they agree, 4 they do not, 2 bad input.",
    )
    parser.add_argument(
        "--model-dir", type=Path, required=True, help="folder with config.json and tokenizer.json"
    )
    parser.add_argument("--weight", type=Path, required=True, help="the .dat file")
    parser.add_argument("--prompt", default="談談UFO", help="what is asked (default 談談UFO)")
    parser.add_argument(
        "--tolerance",
        type=_tolerance,
        help="largest difference of logits over the largest logit (default: by dtype)",
    )
    parser.add_argument(
        "--scale-rule",
        type=ScaleRule,
        choices=list(ScaleRule),
        default=ScaleRule.SEARCH,
        help="of the training forward",
    )
    parser.add_argument("--template", type=Template, choices=list(Template), default=Template.QWEN)
    parser.add_argument(
        "--compute-dtype", type=ComputeDtype, choices=list(ComputeDtype), default=ComputeDtype.AUTO
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="also write it here; must not exist")
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(argv)
    try:
        if options.json:
            require_new(options.json)
        device = pick_device(options.device)
        config = read_config(options.model_dir / "config.json")
        tokenizer = load_tokenizer(options.model_dir, config, options.template)
        prompt = tokenizer.prompt_ids(options.prompt)
        with DatFile(options.weight) as dat:
            model, layout = load_model(
                dat,
                config,
                path=InferencePath.FP2,
                rule=options.scale_rule,
                compute_dtype=options.compute_dtype,
                device=device,
            )
            parity = check_parity(dat, layout, model, prompt)
        if options.tolerance is not None:
            parity = replace(parity, tolerance=options.tolerance)
        sys.stdout.write(parity_table.text(parity, options.prompt, tokenizer))
        if options.json:
            write_new_text(options.json, parity_table.as_json(parity, options.prompt, tokenizer))
    except (InputError, StageError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_INPUT
    return ExitCode.OK if parity.agrees else ExitCode.DISAGREE


if __name__ == "__main__":
    sys.exit(main())
