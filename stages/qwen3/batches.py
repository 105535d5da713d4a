"""Rows to batches: templates, labels on the answer only, order, padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from stages.contract import DataSource, Overflow, RowFileError, Sampling, read_rows
from stages.qwen3.template import ChatTokenizer


@dataclass(frozen=True)
class Encoded:
    """One row as token ids; the answer ends with the end of turn."""

    prompt: list[int]
    answer: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True)
class Batch:
    """Rows of one forward pass, padded on the right (causal attention never looks there)."""

    ids: torch.Tensor
    """int64 [rows, length]: inputs, the last token of each row left out."""
    where: torch.Tensor
    """int64 [n]: flat positions in [rows × length] whose next token is a target."""
    targets: torch.Tensor
    """int64 [n]: those next tokens, answers and their ends of turn."""
    tokens: int
    """Tokens that are no padding."""


def encode_rows(
    sources: list[DataSource], tokenizer: ChatTokenizer, seq_len: int, overflow: Overflow
) -> list[Encoded]:
    """Reads and encodes all rows; a source with `repeat` stands so many times in the pool.

    Raises:
        RowFileError: listing every bad line of all files, and every row that does not fit `seq_len` (under
            `Overflow.CUT_PROMPT`: whose answer alone does not).
    """
    pool: list[Encoded] = []
    problems: list[str] = []
    for source in sources:
        path = Path(source.path)
        try:
            rows = read_rows(path)
        except RowFileError as error:
            problems += error.problems
            continue
        encoded = []
        for row in rows:
            one = _fit(row.prompt, row.target, tokenizer, seq_len, overflow)
            if len(one) > seq_len:
                problems.append(
                    f"{path}:{row.line}: {len(one)} tokens, seq_len is {seq_len}: shorten the row or raise seq_len"
                )
            encoded.append(one)
        pool += encoded * source.repeat
    if problems:
        raise RowFileError(Path(sources[0].path), problems)
    return pool


def _fit(prompt: str, target: str, tokenizer: ChatTokenizer, seq_len: int, overflow: Overflow) -> Encoded:
    answer = tokenizer.answer_ids(target)
    whole = Encoded(tokenizer.prompt_ids(prompt), answer)
    if len(whole) <= seq_len or overflow is Overflow.ERROR:
        return whole
    # The fewest characters off the prompt's front that make the row fit: the template around it stays whole.
    low, high = 1, len(prompt)
    while low < high:
        middle = (low + high) // 2
        if len(tokenizer.prompt_ids(prompt[middle:])) + len(answer) <= seq_len:
            high = middle
        else:
            low = middle + 1
    return Encoded(tokenizer.prompt_ids(prompt[low:]), answer)


def row_order(count: int, sampling: Sampling, seed: int) -> Iterator[int]:
    """Row indices without end: the pool's order again and again, or a new seeded permutation each time round."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        if sampling is Sampling.SEQUENTIAL:
            yield from range(count)
        else:
            yield from torch.randperm(count, generator=generator).tolist()


def collate(rows: list[Encoded], device: torch.device) -> Batch:
    """Makes one batch, as wide as its longest row."""
    width = max(map(len, rows)) - 1
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    where: list[int] = []
    targets: list[int] = []
    for index, row in enumerate(rows):
        whole = row.prompt + row.answer
        ids[index, : len(whole) - 1] = torch.tensor(whole[:-1])
        start = index * width + len(row.prompt) - 1
        where += range(start, start + len(row.answer))
        targets += row.answer
    tokens = sum(map(len, rows)) - len(rows)
    return Batch(ids.to(device), torch.tensor(where).to(device), torch.tensor(targets).to(device), tokens)
