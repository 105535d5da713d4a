"""Prompt templates, and the tokenizer that a model folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from stages.contract.recipe import Template
from stages.qwen3.config import ConfigError, Qwen3Config

END_OF_TURN = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
START_OF_TURN = "<|im_start|>"


@dataclass(frozen=True)
class ChatTokenizer:
    """A tokenizer with the ids of its turn markers."""

    tokenizer: Tokenizer
    template: Template
    end_of_turn: int
    stop_ids: frozenset[int]
    """Ids that end an answer: `<|im_end|>` and `<|endoftext|>`."""

    def prompt_ids(self, prompt: str, first: bool = True) -> list[int]:
        """Ids of a user turn and the opening of the assistant's.

        Args:
            prompt: The user's words.
            first: False for a later turn, whose text begins with the newline that closes the turn before.
        """
        return self.tokenizer.encode(
            ("" if first else "\n") + prompt_text(prompt, self.template), add_special_tokens=False
        ).ids

    def answer_ids(self, answer: str) -> list[int]:
        """Ids of an answer with its end of turn."""
        return [*self.tokenizer.encode(answer, add_special_tokens=False).ids, self.end_of_turn]

    def text(self, ids: Sequence[int]) -> str:
        """Text of ids, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


def prompt_text(prompt: str, template: Template) -> str:
    """One user turn and the opening of the assistant's, as Qwen writes it or as the F# runners do (a newline
    more).
    """
    newline = "\n" if template is Template.FSHARP else ""
    return f"{START_OF_TURN}user\n{prompt}{newline}{END_OF_TURN}\n{START_OF_TURN}assistant\n"


def load_tokenizer(model_dir: Path, config: Qwen3Config, template: Template) -> ChatTokenizer:
    """Loads `tokenizer.json` and checks it against the config.

    Raises:
        ConfigError: if it is missing, lacks a turn marker, has more tokens than the model, or disagrees with
            `eos_token_id`.
    """
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(path, ["no such file: the model folder needs Qwen3's tokenizer.json"])
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception for every malformed file
        raise ConfigError(path, [f"not a tokenizer: {error}"]) from None
    markers = (START_OF_TURN, END_OF_TURN, END_OF_TEXT)
    found = {token: tokenizer.token_to_id(token) for token in markers}
    ids = {token: number for token, number in found.items() if number is not None}
    problems = [f"has no token {token}: chat needs it" for token in markers if token not in ids]
    size = tokenizer.get_vocab_size()
    if size > config.vocab_size:
        problems.append(
            f"has {size} tokens, config.json says vocab_size {config.vocab_size}: they are not of one model"
        )
    problems += [
        f"{token} is {number}, past config.json's vocab_size {config.vocab_size}"
        for token, number in ids.items()
        if number >= config.vocab_size
    ]
    if len(ids) == len(markers):
        problems += _id_problems(config, ids)
    if problems:
        raise ConfigError(path, problems)
    return ChatTokenizer(
        tokenizer, template, ids[END_OF_TURN], frozenset((ids[END_OF_TURN], ids[END_OF_TEXT]))
    )


def _id_problems(config: Qwen3Config, ids: dict[str, int]) -> list[str]:
    """Where the config's special ids are not the tokenizer's; -1 says nothing."""
    allowed = {"eos_token_id": (END_OF_TURN, END_OF_TEXT), "bos_token_id": (END_OF_TEXT, START_OF_TURN)}
    return [
        f"config.json says {key} {value}; here " + ", ".join(f"{token} is {ids[token]}" for token in tokens)
        for key, tokens in allowed.items()
        if (value := getattr(config, key)) != -1 and value not in [ids[token] for token in tokens]
    ]
