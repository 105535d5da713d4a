"""The tokenizer: exact size, special tokens last, single digits, any text back, the same bytes each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stages.corpus import corpus
from stages.train.tokenizer import SPECIAL_TOKENS, train_tokenizer

SIZE = 4096
TEMPLATE_TOKENS = 9
"""`<|im_start|>user\\n…<|im_end|>\\n<|im_start|>assistant\\n…<|im_end|>` adds about this many tokens to a
row.
"""


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [text for s in corpus.base_rows() for text in (s.prompt, s.target)]


@pytest.fixture(scope="module")
def tokenizer(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(texts, SIZE).save(str(path), pretty=False)
    assert path.stat().st_size < 400_000
    return Tokenizer.from_file(str(path))


def test_size_and_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == SIZE
    assert [tokenizer.token_to_id(t) for t in SPECIAL_TOKENS] == [SIZE - 3, SIZE - 2, SIZE - 1]
    assert sorted(tokenizer.get_vocab().values()) == list(range(SIZE))
    assert tokenizer.encode("<|im_start|>user\n你是誰<|im_end|>").ids[0] == SIZE - 2


def test_digits_are_tokens_of_their_own(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("12+345=357").tokens
    assert [t for t in tokens if any(c.isdigit() for c in t)] == list("12345357")


@given(st.text(max_size=60))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    if any(token in text for token in SPECIAL_TOKENS):
        return
    normalized = tokenizer.normalizer.normalize_str(text)
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == normalized


def test_rows_come_back_and_are_short(tokenizer: Tokenizer) -> None:
    for sample in corpus.all_examples():
        prompt, target = tokenizer.encode(sample.prompt).ids, tokenizer.encode(sample.target).ids
        assert tokenizer.decode(target) == sample.target
        assert len(prompt) + len(target) + TEMPLATE_TOKENS <= 96


def test_the_same_texts_give_the_same_bytes(texts: list[str], tokenizer: Tokenizer) -> None:
    assert train_tokenizer(texts, SIZE).to_str() == tokenizer.to_str()


@pytest.mark.parametrize(("size", "what"), [(258, "must be 259 or more"), (100_000, "add texts")])
def test_impossible_sizes_are_refused(size: int, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        train_tokenizer(["a few words", "and some more"], size)
