"""Traditional to simplified Chinese: words before characters, other text untouched, no leftover."""

from __future__ import annotations

from stages.corpus import corpus
from stages.corpus.examples import Language
from stages.corpus.simplified_chinese import CHARACTERS, WORDS, to_simplified


def test_conversion_leaves_other_text_alone_and_is_stable() -> None:
    assert to_simplified("Who are you? 123 F#") == "Who are you? 123 F#"
    for example in corpus.all_examples():
        if example.language is Language.ZH_HANS:
            assert to_simplified(example.target) == example.target


def test_words_that_differ_by_region_come_before_characters() -> None:
    assert to_simplified("這個程式語言") == "这个编程语言"
    assert to_simplified("程式設計師寫程式") == "程序员写程序"


def test_tables_hold_what_changes_only() -> None:
    assert all(len(a) == 1 and len(b) == 1 and a != b for a, b in CHARACTERS.items())
    assert all(len(a) > 1 and to_simplified(b) == b != a for a, b in WORDS.items())
