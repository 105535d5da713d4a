"""The chat command: turns given as options, or read from the keyboard or a pipe.

Ctrl-C during an answer ends the answer; at the prompt, or a second time, it ends the program. Exit codes: 0;
2 for bad input, such as a turn longer than the model's context; 130 if interrupted while it worked.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from stages.contract.events import ExitCode
from stages.contract.recipe import ComputeDtype, ScaleRule, Template
from stages.contract.requests import InferencePath
from stages.inference.chat_session import ChatSession, ContextError, Turn
from stages.inference.generate import GenerationConfig
from stages.process.errors import InputError
from stages.process.process import StageError, pick_device
from stages.qwen3.config import read_config
from stages.qwen3.template import load_tokenizer
from stages.weights.dat import DatFile
from stages.weights.model_weights import load_model


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stages.chat", description="Talk to a weight file.")
    parser.add_argument(
        "--model-dir", type=Path, required=True, help="folder with config.json and tokenizer.json"
    )
    parser.add_argument("--weight", type=Path, required=True, help="the .dat file")
    parser.add_argument("--prompt", help="the first turn; without it the turns are read from the keyboard")
    parser.add_argument(
        "--followup", action="append", default=[], help="a later turn; may be given several times"
    )
    parser.add_argument(
        "--turns",
        type=_count,
        default=0,
        help="end after so many turns (0: when the prompts or the input end)",
    )
    parser.add_argument("--temp", type=_temperature, default=0.0, help="temperature; 0 is greedy")
    parser.add_argument(
        "--top-p",
        type=_probability,
        default=1.0,
        help="nucleus: the smallest set of tokens whose probabilities reach this",
    )
    parser.add_argument("--max-tokens", type=_count, default=128, help="most tokens of one answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timing", action="store_true", help="print lengths and times of each turn")
    parser.add_argument(
        "--path", type=InferencePath, choices=list(InferencePath), default=InferencePath.BRIDGE
    )
    parser.add_argument(
        "--scale-rule",
        type=ScaleRule,
        choices=list(ScaleRule),
        default=ScaleRule.SEARCH,
        help="for --path fp2",
    )
    parser.add_argument("--template", type=Template, choices=list(Template), default=Template.QWEN)
    parser.add_argument(
        "--compute-dtype", type=ComputeDtype, choices=list(ComputeDtype), default=ComputeDtype.AUTO
    )
    parser.add_argument("--device", default="auto")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text}: a whole number, 0 or more, is needed")
    return value


def _temperature(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text}: a finite number, 0 or more, is needed")
    return value


def _probability(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: must lie in (0, 1]")
    return value


class _Interrupt:
    """Inside it, the first Ctrl-C makes calls return True; the second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._pressed = False

    def __call__(self) -> bool:
        return self._pressed

    def __enter__(self) -> _Interrupt:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._pressed:
            raise KeyboardInterrupt
        self._pressed = True


def _prompts(arguments: argparse.Namespace) -> Iterator[str]:
    if arguments.prompt is not None:
        yield from (arguments.prompt, *arguments.followup)
        return
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n" if sys.stdin.isatty() else "")
            return
        if line:
            yield line


def _open(arguments: argparse.Namespace) -> ChatSession:
    device = pick_device(arguments.device)
    config = read_config(arguments.model_dir / "config.json")
    tokenizer = load_tokenizer(arguments.model_dir, config, arguments.template)
    with DatFile(arguments.weight) as dat:
        model, _ = load_model(
            dat,
            config,
            path=arguments.path,
            rule=arguments.scale_rule,
            compute_dtype=arguments.compute_dtype,
            device=device,
        )
    model.eval().requires_grad_(False)
    generation = GenerationConfig(arguments.max_tokens, arguments.temp, arguments.top_p)
    return ChatSession(model, tokenizer, generation, arguments.seed)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    arguments = _parser().parse_args(argv)
    try:
        return _talk(_open(arguments), arguments)
    except (InputError, StageError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_INPUT
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        return ExitCode.INTERRUPTED


def _talk(session: ChatSession, arguments: argparse.Namespace) -> int:
    scripted = arguments.prompt is not None
    code = ExitCode.OK
    for number, prompt in enumerate(_prompts(arguments), start=1):
        if scripted:
            sys.stdout.write(f"> {prompt}\n")
        try:
            with _Interrupt() as interrupt:
                turn = session.turn(prompt, _write, interrupt)
            sys.stdout.write("\n")
            if arguments.timing:
                sys.stdout.write(_timing(number, turn))
            sys.stdout.flush()
        except ContextError as error:
            sys.stderr.write(f"turn {number}: {error}\n")
            code = ExitCode.BAD_INPUT
            if scripted:
                break
        if number == arguments.turns:
            break
    return code


def _timing(number: int, turn: Turn) -> str:
    rate = len(turn.token_ids) / turn.decode_seconds if turn.decode_seconds else 0.0
    prefill, decode = turn.prefill_seconds * 1e3, turn.decode_seconds * 1e3
    return (
        f"[turn {number}: {turn.cached_tokens} tokens cached, {turn.new_prompt_tokens} prefilled in"
        f" {prefill:.1f} ms, {len(turn.token_ids)} decoded in {decode:.1f} ms ({rate:.0f}/s),"
        f" {turn.finish}]\n"
    )


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
