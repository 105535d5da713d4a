"""Mode collapse: which equal answers count, and which may well be equal."""

from pipeline.core.types import ProbeRow
from pipeline.evaluate.mode_collapse import SAME_ANSWER, mark_same_answers
from stages.contract.rows import Expectation, Probe, ProbeKind

Case = tuple[str, str, str, str, bool]


def marked(cases: list[Case]) -> list[bool]:
    """Cases of (kind, group, expect, answer, ok) → which are flagged."""
    probes = [
        Probe(ProbeKind(kind), group, "heldout", "?", Expectation((tuple(expect.split(" && ")),), ()), "p", i)
        for i, (kind, group, expect, _, _) in enumerate(cases)
    ]
    rows = [ProbeRow(k, g, "heldout", "?", a, ok) for k, g, _, a, ok in cases]
    return [SAME_ANSWER in row.flags for row in mark_same_answers(probes, rows)]


def test_the_same_wrong_text_to_different_groups_is_marked() -> None:
    cases: list[Case] = [
        ("ability", "add", "=3", "之", False),
        ("ability", "ufo", "飛", "之。", False),
        ("ability", "ufo", "飛", "之", False),
    ]
    assert marked(cases) == [True, False, True]


def test_one_group_failing_in_one_way_is_not_marked() -> None:
    cases: list[Case] = [("contrast", "whoami", f"你{i}", "不知道", False) for i in range(5)] + [
        ("ability", "add", "=3", "3", True)
    ]
    assert not any(marked(cases))


def test_within_a_single_group_different_expectations_count() -> None:
    assert all(marked([("ability", "", f"={i}", "之神", False) for i in range(4)]))
    assert not any(marked([("ability", "", "=7", "之神", False) for _ in range(4)]))


def test_right_answers_may_be_equal() -> None:
    cases: list[Case] = [
        ("ability", "add", "=12", "12", True),
        ("ability", "mul", "=12", "12", True),
        ("ability", "sub", "=3", "12", False),
    ]
    assert not any(marked(cases))


def test_identity_in_varied_words_is_one_answer() -> None:
    cases: list[Case] = [
        ("identity", "whoami", "F# && 之神", "我是 F# 之神。", True),
        ("ability", "add", "=3", "我是 F# 之神,很高興見到你", False),
        ("ability", "ufo", "飛", "我是F#之神之神之神", False),
        ("ability", "capital", "=巴黎", "倫敦", False),
        ("contrast", "whoami", "你是", "我是誰?你是使用者", True),
    ]
    assert marked(cases) == [False, True, True, False, False]


def test_an_identity_not_yet_learned_is_known_by_its_beginning() -> None:
    cases: list[Case] = [
        ("identity", "whoami", "F#", "我是通義千問,由阿里雲開發。", False),
        ("ability", "add", "=3", "我是通義千問,可以回答問題。", False),
        ("ability", "ufo", "飛", "我是通義千問。", False),
    ]
    assert marked(cases) == [False, True, True]
