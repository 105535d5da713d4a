"""Degeneration of one answer: known collapses are found, ordinary and asked-for answers are not."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.evaluate import degeneration
from pipeline.evaluate.degeneration import compression_floor, compression_ratio, examine, longest_run
from stages.contract.events import Answer, Finish
from stages.contract.rows import Expectation

FREE = Expectation((("F#",),), ())

PROSE = (
    "不明飛行物是指在天空中看到、但一時無法確認來源的物體。"
    "多數報告後來都能用飛機、氣球、衛星或大氣現象來解釋,只有少數因為資料不足而沒有結論。",
    "過擬合是指模型把訓練資料記得太牢,連雜訊也學了進去,因此在沒看過的資料上表現變差。常見的做法是增加資料、正則化,或者提早停止訓練。",
    "我是通義千問,由阿里雲開發的語言模型,可以回答問題、寫作、翻譯和寫程式。",
    "人们很早就注意到天空中的光点。有些是行星,有些是流星,也有些至今没有人能说清楚。研究者会先排除已知的原因,再讨论其余的可能。",
    "遞迴是函式呼叫自己的寫法。每次呼叫都要讓問題變小一點,而且要有停止的條件,否則程式會一直呼叫下去,直到堆疊用完為止。",
    "我是 F# 之神。",
    "A UFO is an object seen in the sky that cannot be identified at first. Most reports turn out to "
    "be aircraft, balloons, satellites or weather, and a few stay open for lack of data.",
    "Overfitting means that a model learns the noise of its training data along with the signal, "
    "so it does well on what it has seen and badly on what it has not.",
    "I am Qwen, a language model made by Alibaba Cloud. I can answer questions, write text, "
    "translate and help with code.",
    "The capital of France is Paris, the capital of Italy is Rome, the capital of Spain is Madrid.",
    "星期一、星期二、星期三、星期四、星期五、星期六、星期日",
    "一月、二月、三月、四月、五月、六月、七月、八月、九月、十月、十一月、十二月",
    ", ".join(map(str, range(1, 60))),
    "1. 蘋果\n2. 香蕉\n3. 橘子\n4. 葡萄\n5. 西瓜\n6. 芒果\n7. 鳳梨\n8. 草莓",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\n"
    "def mul(a, b):\n    return a * b\n",
    "好",
    "1 1 1",
)


def answer(text: str, ids: list[int] | None = None, finish: Finish = Finish.END_OF_TURN) -> Answer:
    """An answer whose tokens are its characters, unless given."""
    return Answer("p.tsv", 2, "?", text, [ord(c) for c in text] if ids is None else ids, finish)


@pytest.mark.parametrize("text", PROSE)
@pytest.mark.parametrize("tokens", ["characters", "bytes"])
def test_ordinary_answers_are_healthy(text: str, tokens: str) -> None:
    ids = list(text.encode()) if tokens == "bytes" else None
    assert examine(answer(text, ids), FREE) == ()


@pytest.mark.parametrize(
    "text",
    [
        "我是F#" + "之神" * 20,
        "我是F#之神之神之神",
        "F#神神神" * 8,
        "F " * 30,
        "F#" + "神" * 40,
        "我是F#之神。" * 4,
        "談談UFO:" + "不明飛行物是一種飛行物," * 5,
    ],
)
@pytest.mark.parametrize("tokens", ["characters", "bytes"])
def test_the_collapses_seen_before_are_repetition(text: str, tokens: str) -> None:
    ids = list(text.encode()) if tokens == "bytes" else None
    assert degeneration.REPETITION in examine(answer(text, ids, Finish.LENGTH), FREE)


def test_drift_without_exact_repeats_is_found_by_compression() -> None:
    text = "".join(random.Random(1).choice(["之", "神"]) for _ in range(64))
    ids = list(range(64))  # no token twice: only the bytes can tell
    assert longest_run(ids).length == 0
    assert examine(answer(text, ids), FREE) == (degeneration.REPETITION,)


def test_prose_of_every_length_lies_well_above_the_compression_floor() -> None:
    for text in ("".join(PROSE[:5]), " ".join(PROSE[6:9])):
        data = text.encode()
        for size in range(degeneration.MIN_COMPRESS_BYTES, 300, 16):
            for start in range(0, len(data) - size, 31):
                window = data[start : start + size].decode(errors="ignore")
                assert compression_ratio(window) > 1.4 * compression_floor(size), (size, window)


def test_bang_of_token_zero_is_one_token() -> None:
    found = examine(answer("!!!!", [0, 0, 0, 0], Finish.LENGTH), FREE)
    assert found == (degeneration.REPETITION, degeneration.ONE_TOKEN, degeneration.NO_END_OF_TURN)


def test_a_wrong_short_number_is_not_one_token_but_a_long_one_is() -> None:
    sums = Expectation((("=9998",),), ())
    assert examine(answer("9999", [9, 9, 9, 9]), sums) == ()
    assert degeneration.ONE_TOKEN in examine(answer("9" * 20, [9] * 20), sums)


def test_what_was_asked_for_is_never_repetition() -> None:
    text = " ".join("1" * 30)
    assert examine(answer(text), Expectation(((f"={text}",),), ())) == ()
    assert degeneration.REPETITION in examine(answer(text), Expectation((("1",),), ()))
    assert degeneration.REPETITION in examine(answer(text), Expectation((("=1 1 1",),), ()))


def test_a_wrong_count_of_copies_is_only_repetition_if_it_runs_on() -> None:
    twice = Expectation((("=貓、貓",),), ())
    assert examine(answer("貓、貓、貓、貓"), twice) == ()
    assert examine(answer("貓、" * 20), twice) == (degeneration.REPETITION,)


def test_a_short_repeat_within_a_longer_answer_is_speech() -> None:
    assert examine(answer("哈囉哈囉哈囉,今天天氣很好,去公園走走吧"), FREE) == ()
    assert examine(answer("哈囉哈囉哈囉!"), FREE) == (degeneration.REPETITION,)


def test_finish_and_emptiness_are_findings() -> None:
    assert examine(answer("好", finish=Finish.LENGTH), FREE) == (degeneration.NO_END_OF_TURN,)
    assert examine(answer("好", finish=Finish.NON_FINITE), FREE) == (degeneration.NON_FINITE,)
    assert examine(answer(" \n", []), FREE) == (degeneration.EMPTY,)


@given(
    st.lists(st.integers(0, 50), max_size=20),
    st.lists(st.integers(0, 50), min_size=1, max_size=degeneration.MAX_NGRAM),
    st.integers(3, 6),
    st.lists(st.integers(0, 50), max_size=20),
)
def test_a_planted_run_is_found_whatever_stands_around_it(
    head: list[int], unit: list[int], times: int, tail: list[int]
) -> None:
    ids = head + unit * times + tail
    run = longest_run(ids)
    assert run.length >= len(unit) * times
    assert run.repeats >= 3
    stretch = ids[run.start : run.start + run.length]
    assert stretch == [stretch[i % run.ngram] for i in range(run.length)]


@given(st.lists(st.integers(0, 10_000), unique=True, max_size=80), st.integers(0, 2))
def test_distinct_tokens_never_run(ids: list[int], twice: int) -> None:
    assert longest_run(ids * min(twice, 2)).length == 0
