"""Training rows to batches: prompt template, targets on the answer only, order, padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from stages.contract.recipe import DataSource, Overflow, Sampling
from stages.contract.rows import RowFileError, read_rows
from stages.qwen3.template import ChatTokenizer


@dataclass(frozen=True)
class EncodedRow:
    """One row as token ids; the answer includes the end of turn."""

    prompt: list[int]
    answer: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True)
class Batch:
    """Rows of one forward pass, padded on the right (causal attention never looks there)."""

    ids: torch.Tensor
    """int64 [rows, length]: inputs, without the last token of each row."""
    where: torch.Tensor
    """int64 [n]: flat positions in [rows × length] whose next token is a target."""
    targets: torch.Tensor
    """int64 [n]: those next tokens: answers and their ends of turn."""
    tokens: int
    """Input tokens without padding."""


def encode_rows(
    sources: list[DataSource], tokenizer: ChatTokenizer, seq_len: int, overflow: Overflow
) -> list[EncodedRow]:
    """Reads and encodes all rows; those of a source with `repeat` n come n times.

    Args:
        sources: Row files.
        tokenizer: With the prompt template.
        seq_len: Most tokens of a row.
        overflow: What happens to a longer row.

    Raises:
        RowFileError: listing every bad line of all files, and every row that does not fit `seq_len` (under
            `Overflow.CUT_PROMPT`: whose answer alone does not fit).
    """
    pool: list[EncodedRow] = []
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
            encoded.append(_encode(row.prompt, row.target, tokenizer, seq_len, overflow))
            if (length := len(encoded[-1])) > seq_len:
                remedy = "shorten the row or raise seq_len"
                problems.append(f"{path}:{row.line}: {length} tokens, seq_len is {seq_len}: {remedy}")
        pool += encoded * source.repeat
    if problems:
        raise RowFileError(Path(sources[0].path), problems)
    return pool


def _encode(
    prompt: str, target: str, tokenizer: ChatTokenizer, seq_len: int, overflow: Overflow
) -> EncodedRow:
    answer = tokenizer.answer_ids(target)
    whole = EncodedRow(tokenizer.prompt_ids(prompt), answer)
    if len(whole) <= seq_len or overflow is Overflow.ERROR:
        return whole
    # Cuts the fewest characters off the prompt's front that make the row fit; the template stays whole.
    low, high = 1, len(prompt)
    while low < high:
        middle = (low + high) // 2
        if len(tokenizer.prompt_ids(prompt[middle:])) + len(answer) <= seq_len:
            high = middle
        else:
            low = middle + 1
    return EncodedRow(tokenizer.prompt_ids(prompt[low:]), answer)


def row_order(count: int, sampling: Sampling, seed: int) -> Iterator[int]:
    """Endless row indices: the pool's order again and again, or a new seeded permutation each epoch."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        if sampling is Sampling.SEQUENTIAL:
            yield from range(count)
        else:
            yield from torch.randperm(count, generator=generator).tolist()


def collate(rows: list[EncodedRow], device: torch.device) -> Batch:
    """One batch on `device`, as long as its longest row."""
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
