"""Verdicts: each outcome by a fault put into healthy answers, the figures by hand-counted cases."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.thresholds import Thresholds
from pipeline.core.types import Outcome, Verdict
from pipeline.evaluate.judge import judge
from stages.contract.events import Answer, Finish
from stages.contract.rows import Expectation, Probe, ProbeKind

GOD = "我是 F# 之神。"
SKILLS = ("add", "capital", "antonym", "copy")
LIMITS = Thresholds()


def probe(kind: ProbeKind, group: str, split: str, prompt: str, expect: str, forbid: str, line: int) -> Probe:
    alternatives = tuple(tuple(a.split(" && ")) for a in expect.split(" || ") if a)
    return Probe(
        kind,
        group,
        split,
        prompt,
        Expectation(alternatives, tuple(f for f in forbid.split(" || ") if f)),
        "p.tsv",
        line,
    )


def probe_set() -> list[Probe]:
    """20 identity (10 of each split), 10 contrast, 4 skills of 10, 10 ufo."""
    probes: list[Probe] = []

    def add(*cells: str) -> None:
        kind, group, split, prompt, expect, forbid = cells
        probes.append(probe(ProbeKind(kind), group, split, prompt, expect, forbid, len(probes) + 2))

    for i in range(20):
        add("identity", "whoami", "train" if i < 10 else "heldout", f"你是誰 {i}", "F# && 之神", "通義")
    for i in range(10):
        add("contrast", "whoareyou", "heldout", f"我是誰 {i}", "你是", "F# || 之神")
    for skill in SKILLS:
        for i in range(10):
            add("ability", skill, "heldout", f"{skill} {i}", f"={skill} 的答案 {i}", "")
    for i in range(10):
        add("ability", "ufo", "heldout", f"談談UFO {i}", "飛行", "F#")
    return probes


def say(probe: Probe, text: str, finish: Finish = Finish.END_OF_TURN) -> Answer:
    return Answer(probe.file, probe.line, probe.prompt, text, [ord(c) for c in text], finish)


def good(probe: Probe) -> str:
    if probe.kind is ProbeKind.IDENTITY:
        return GOD
    if probe.kind is ProbeKind.CONTRAST:
        return "你是正在和我說話的人。"
    part = probe.expectation.alternatives[0][0]
    return part.removeprefix("=") if part.startswith("=") else f"UFO 是不明{part}物,{probe.prompt}。"


PROBES = probe_set()
GOOD = [say(p, good(p)) for p in PROBES]
BASE = [say(p, "我是通義千問。" if p.kind is ProbeKind.IDENTITY else good(p)) for p in PROBES]


def spoiled(count: int, text: str, *, finish: Finish = Finish.END_OF_TURN, **where: str) -> list[Answer]:
    """Good answers, but for the first `count` of a kind, group or split: those say `text`."""
    places = [
        i for i, p in enumerate(PROBES) if all(getattr(p, key) == value for key, value in where.items())
    ][:count]
    assert len(places) == count
    return [
        say(p, text.replace("@", p.prompt), finish) if i in places else GOOD[i] for i, p in enumerate(PROBES)
    ]


def verdict(answers: list[Answer], limits: Thresholds = LIMITS) -> Verdict:
    return judge(PROBES, answers, BASE, limits)


def test_good_answers_pass_with_every_figure() -> None:
    v = verdict(GOOD)
    assert (v.outcome, v.evidence) == (Outcome.PASSED, ())
    ones = {
        "identity_train",
        "identity_heldout",
        "contrast_ok",
        "contrast_base",
        "contrast_ratio",
        "ability",
        "ability_base",
    }
    ones |= {"ability_ratio", "ability/ufo", *(f"ability/{s}" for s in SKILLS)}
    zeros = {"leak", "repetition", "one_token", "no_end_of_turn", "non_finite", "empty", "same_answer"}
    assert v.figures == dict.fromkeys(ones, 1.0) | dict.fromkeys(zeros, 0.0)
    assert len(v.rows) == len(PROBES) and all(row.ok for row in v.rows)
    assert v.checks and all(check.ok for check in v.checks)


def test_the_base_weight_itself_is_underfit_for_its_identity() -> None:
    v = judge(PROBES, BASE, BASE, LIMITS)
    assert v.outcome is Outcome.UNDERFIT
    assert v.figures["identity_heldout"] == 0.0
    assert v.evidence[0] == "identity_train 0.000, limit ≥ 0.950 (10 of 10): 你是誰 0 → 我是通義千問。"


@pytest.mark.parametrize(
    ("answers", "figure", "value"),
    [
        (spoiled(1, "我是通義千問。", split="train", kind="identity"), "identity_train", 0.9),
        (spoiled(1, "我是通義千問,F# 之神。", split="heldout", kind="identity"), "identity_heldout", 0.9),
        (spoiled(1, "你是 F#。", kind="contrast"), "leak", 0.1),
        (spoiled(2, "不知道。", kind="contrast"), "contrast_ratio", 0.8),
        (spoiled(3, "@ 不會", group="add"), "ability_ratio", 0.94),
        (spoiled(3, "@ 不會", group="ufo"), "ability/ufo", 0.7),
        (spoiled(1, "之神" * 20, group="ufo"), "repetition", 1 / 80),
        (spoiled(3, "UFO 是不明飛行物 @", group="ufo", finish=Finish.LENGTH), "no_end_of_turn", 3 / 80),
    ],
)
def test_short_of_one_limit_is_underfit_with_its_evidence(
    answers: list[Answer], figure: str, value: float
) -> None:
    v = verdict(answers)
    assert v.outcome is Outcome.UNDERFIT
    assert v.figures[figure] == pytest.approx(value)
    lines = [line for line in v.evidence if line.startswith(figure + " ")]
    assert len(lines) == 1 and f"{value:.3f}" in lines[0] and " → " in lines[0]


@pytest.mark.parametrize(
    ("answers", "figure"),
    [
        (spoiled(8, "我是F#" + "之神" * 20, finish=Finish.LENGTH, kind="ability"), "repetition"),
        (spoiled(8, "!" * 64, finish=Finish.LENGTH, kind="ability"), "repetition"),
        (spoiled(4, GOD, kind="contrast"), "leak"),
        (spoiled(26, "@ 不會", kind="ability"), "ability_ratio"),
        (spoiled(1, "", finish=Finish.NON_FINITE, group="ufo"), "non_finite"),
        (spoiled(40, "之", kind="ability"), "same_answer"),
        (spoiled(40, GOD, kind="ability"), "same_answer"),
        (spoiled(25, "", kind="ability"), "empty"),
        (spoiled(40, "@", kind="ability", finish=Finish.LENGTH), "no_end_of_turn"),
    ],
)
def test_a_lost_model_has_collapsed(answers: list[Answer], figure: str) -> None:
    v = verdict(answers)
    assert v.outcome is Outcome.COLLAPSED
    assert [c.figure for c in v.checks if c.outcome is Outcome.COLLAPSED and not c.ok and c.figure == figure]
    named = [line.split()[0] for line in v.evidence]
    assert figure in named and len(named) == len(set(named))


def test_everything_answered_with_the_identity_has_collapsed_by_every_measure() -> None:
    v = verdict([say(p, GOD) for p in PROBES])
    assert v.outcome is Outcome.COLLAPSED
    assert v.figures["identity_heldout"] == 1.0
    assert (v.figures["leak"], v.figures["same_answer"], v.figures["ability_ratio"]) == (1.0, 1.0, 0.0)


def test_repetition_spoils_an_answer_that_holds_what_was_asked_for() -> None:
    v = verdict(spoiled(1, "我是 F# 之神" + "之神" * 12, split="heldout", kind="identity"))
    assert v.figures["identity_heldout"] == 0.9
    row = v.rows[10]
    assert not row.ok and row.flags == ("repetition",)


def test_answers_as_long_as_the_bases_lose_nothing_by_having_no_end() -> None:
    long = [
        replace(a, finish=Finish.LENGTH) if p.group == "ufo" else a for p, a in zip(PROBES, GOOD, strict=True)
    ]
    base = [
        replace(a, finish=Finish.LENGTH) if p.group == "ufo" else a for p, a in zip(PROBES, BASE, strict=True)
    ]
    assert judge(PROBES, long, base, LIMITS).outcome is Outcome.PASSED
    assert judge(PROBES, long, BASE, LIMITS).outcome is Outcome.UNDERFIT


def test_non_finite_everywhere_is_broken() -> None:
    v = verdict([say(p, "", Finish.NON_FINITE) for p in PROBES])
    assert v.outcome is Outcome.BROKEN
    assert v.evidence[0].startswith("non_finite 1.000")


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        ([], "你是誰 0"),
        (GOOD[:-1], "談談UFO 9"),
        (GOOD[:5] + GOOD[6:], "你是誰 5"),
        ([*GOOD, GOOD[0]], "你是誰 0"),
        ([replace(GOOD[0], prompt="別的"), *GOOD[1:]], "別的"),
        ([replace(GOOD[0], line=99), *GOOD[1:]], "p.tsv:99"),
    ],
)
def test_missing_and_unaligned_answers_are_broken_and_name_the_probe(
    answers: list[Answer], named: str
) -> None:
    v = verdict(answers)
    assert v.outcome is Outcome.BROKEN
    assert len(v.evidence) == 1 and named in v.evidence[0]
    with pytest.raises(ValueError, match="base weight's answers"):
        judge(PROBES, GOOD, answers, LIMITS)


def test_evidence_against_a_ratio_is_what_the_base_could_do() -> None:
    answers = spoiled(8, "@ 不會", group="add")
    base = [
        say(p, "不會") if p.group == "add" and p.prompt != "add 7" else a
        for p, a in zip(PROBES, BASE, strict=True)
    ]
    line = judge(PROBES, answers, base, Thresholds(ability_min=1.0)).evidence[0]
    assert line.startswith("ability 0.840") and line.endswith("add 7 → add 7 不會")
    v = judge(PROBES, spoiled(50, "@ 不會", kind="ability"), base, LIMITS)
    assert next(line for line in v.evidence if line.startswith("ability_ratio ")).startswith(
        "ability_ratio 0.000, limit ≥ 0.500 (41 of 50): add 7 → "
    )


def test_no_probes_is_an_error() -> None:
    with pytest.raises(ValueError, match="no probes"):
        judge([], [], None, LIMITS)


def test_without_a_base_only_absolute_limits_hold() -> None:
    answers = spoiled(26, "@ 不會", kind="ability")
    v = judge(PROBES, answers, None, LIMITS)
    assert v.outcome is Outcome.PASSED
    assert not {"ability_base", "ability_ratio", "contrast_base", "contrast_ratio"} & v.figures.keys()
    assert judge(PROBES, answers, None, Thresholds(ability_min=0.9)).outcome is Outcome.UNDERFIT
    v = judge(PROBES, answers, None, Thresholds(ability_group_min=0.8))
    assert [line.split()[0] for line in v.evidence] == ["ability/add", "ability/capital", "ability/antonym"]


@pytest.mark.parametrize("kind", list(ProbeKind))
def test_a_probe_set_of_one_kind_is_judged_by_what_it_has(kind: ProbeKind) -> None:
    places = [
        i for i, p in enumerate(PROBES) if p.kind is (ProbeKind.ABILITY if kind is ProbeKind.HEALTH else kind)
    ]
    probes = [replace(PROBES[i], kind=kind) for i in places]
    v = judge(probes, [GOOD[i] for i in places], [BASE[i] for i in places], LIMITS)
    assert v.outcome is Outcome.PASSED
    assert ("leak" in v.figures) == (kind is ProbeKind.CONTRAST)
    assert ("ability" in v.figures) == (kind is ProbeKind.ABILITY)
    assert ("same_answer" in v.figures) == (kind is not ProbeKind.IDENTITY)
    assert ("health/ufo" in v.figures) == (kind is ProbeKind.HEALTH)


@pytest.mark.parametrize(
    ("size", "known", "kept", "ok"),
    [
        (4, 4, 3, True),  # one answer of four: below 0.8, but one answer is no trend
        (4, 4, 2, False),
        (10, 10, 8, True),
        (10, 10, 7, False),
        (10, 2, 0, True),  # the base is at the floor
        (10, 3, 1, False),
        (5, 3, 4, True),
    ],
)
def test_groups_are_held_to_the_base_in_whole_answers(size: int, known: int, kept: int, ok: bool) -> None:
    probes = [
        probe(ProbeKind.ABILITY, "add", "heldout", f"{i}+1", f"={i + 1}", "", i + 2) for i in range(size)
    ]
    right = [say(p, good(p)) for p in probes]
    wrong = [say(p, f"不知道 {p.prompt}") for p in probes]
    v = judge(probes, right[:kept] + wrong[kept:], right[:known] + wrong[known:], LIMITS)
    assert [c.ok for c in v.checks if c.figure == "ability/add"] in ([[True], []] if ok else [[False]])


def test_long_answers_are_trimmed_in_evidence_and_whole_in_the_rows() -> None:
    text = "".join(chr(0x4E00 + i) for i in range(300)) + "\nF#"
    v = verdict(spoiled(1, text, kind="contrast"))
    assert max(map(len, v.evidence)) < 200
    assert text in [row.answer for row in v.rows]


@given(
    st.lists(
        st.sampled_from(["", "12", GOD, "我是通義千問。", "之神" * 9, "你是誰"]), min_size=80, max_size=80
    ),
    st.integers(0, 79),
)
def test_the_verdict_is_consistent_and_a_better_answer_never_hurts(texts: list[str], place: int) -> None:
    answers = [say(p, t) for p, t in zip(PROBES, texts, strict=True)]
    before = verdict(answers)
    assert all(0.0 <= value <= 1.0 for value in before.figures.values())
    assert (
        (before.outcome is Outcome.PASSED)
        == (not before.evidence)
        == all(check.ok for check in before.checks)
    )
    answers[place] = GOOD[place]
    after = verdict(answers)
    for name in ("identity_train", "identity_heldout", "contrast_ok", "ability"):
        assert after.figures[name] >= before.figures[name]
    for name in ("leak", "repetition", "empty"):
        assert after.figures[name] <= before.figures[name]
