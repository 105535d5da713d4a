"""Rows to batches: long prompts are cut, targets are the answer only, every epoch visits every row."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stages.contract.recipe import DataSource, Overflow, Sampling, Template
from stages.contract.rows import RowFileError
from stages.qwen3.batches import collate, encode_rows, row_order
from stages.qwen3.config import read_config
from stages.qwen3.template import ChatTokenizer, load_tokenizer
from tests.conftest import ROWS, TinyModel


def _tokenizer(tiny: TinyModel) -> ChatTokenizer:
    return load_tokenizer(tiny.folder, read_config(tiny.folder / "config.json"), Template.QWEN)


def test_a_long_prompt_is_cut_at_its_front_and_the_answer_never(tiny: TinyModel, tmp_path: Path) -> None:
    tokenizer = _tokenizer(tiny)
    rows = tmp_path / "long.tsv"
    rows.write_text("abcdefghij" * 20 + "END\t我是 F# 之神。\n", encoding="utf-8")
    (row,) = encode_rows([DataSource(str(rows))], tokenizer, 48, Overflow.CUT_PROMPT)
    assert len(row) in (46, 47, 48) and row.answer == tokenizer.answer_ids("我是 F# 之神。")
    text = tokenizer.tokenizer.decode(row.prompt, skip_special_tokens=False)
    assert text.startswith("<|im_start|>user\n") and text.endswith("END<|im_end|>\n<|im_start|>assistant\n")


def test_labels_are_the_answer_and_its_end_of_turn_only(tiny: TinyModel) -> None:
    tokenizer = _tokenizer(tiny)
    rows = encode_rows([DataSource(str(tiny.rows), repeat=2)], tokenizer, 64, Overflow.ERROR)
    assert len(rows) == 2 * len(ROWS), "the header is no row, and repeat counts"
    batch = collate(rows[:3], torch.device("cpu"))
    assert batch.targets.tolist() == [t for row in rows[:3] for t in row.answer]
    assert batch.targets.tolist().count(tokenizer.end_of_turn) == 3
    for row, place in zip(rows[:3], batch.where.split([len(r.answer) for r in rows[:3]]), strict=True):
        seen = batch.ids.flatten()[place].tolist()
        assert seen == [row.prompt[-1], *row.answer[:-1]]


def test_an_epoch_visits_every_row_once() -> None:
    order = row_order(10, Sampling.RANDOM, seed=3)
    first, second = [next(order) for _ in range(10)], [next(order) for _ in range(10)]
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    sequential = row_order(3, Sampling.SEQUENTIAL, seed=3)
    assert [next(sequential) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_bad_rows_are_all_listed(tiny: TinyModel, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_text(
        "prompt\ttarget\n你是誰\t我是\nno tab here\n\tempty prompt\nempty target\t\na\tb\tc\n",
        encoding="utf-8",
    )
    with pytest.raises(RowFileError) as error:
        encode_rows([DataSource(str(bad))], _tokenizer(tiny), 64, Overflow.ERROR)
    assert [fault.split(": ")[0].rpartition(":")[2] for fault in error.value.problems] == ["3", "4", "5", "6"]


def test_the_bad_lines_of_all_files_and_long_rows_come_together(tiny: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("no tab\n", encoding="utf-8")
    (tmp_path / "b.tsv").write_text("long\t" + "z9" * 90 + "\n你是誰\t我\n", encoding="utf-8")
    sources = [DataSource(str(tmp_path / name)) for name in ("a.tsv", "b.tsv")]
    for overflow in Overflow:
        with pytest.raises(RowFileError) as error:
            encode_rows(sources, _tokenizer(tiny), 64, overflow)
        assert [p.split(": ")[0].rsplit("/")[-1] for p in error.value.problems] == ["a.tsv:1", "b.tsv:1"]
        assert "seq_len is 64" in error.value.problems[1]


def test_a_batch_is_as_long_as_its_longest_row_and_counts_no_padding(tiny: TinyModel) -> None:
    rows = encode_rows([DataSource(str(tiny.rows))], _tokenizer(tiny), 64, Overflow.ERROR)
    batch = collate(rows, torch.device("cpu"))
    lengths = [len(row) - 1 for row in rows]
    assert batch.ids.shape == (len(rows), max(lengths)) and batch.tokens == sum(lengths)
    assert all(batch.ids[i, n:].eq(0).all() for i, n in enumerate(lengths))
