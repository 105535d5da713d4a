"""The table of a verdict: what it shows and in which order, and that an answer cannot steer the terminal."""

import io

import pytest
from rich.cells import cell_len

from pipeline.core.types import Check, Outcome, ProbeRow, Verdict
from pipeline.evaluate.probe_table import render, to_text, write

ROWS = (
    ProbeRow("identity", "whoami", "heldout", "你是誰?", "我是 F# 之神。", True, "我是通義千問。", False),
    ProbeRow(
        "contrast",
        "whoareyou",
        "heldout",
        "我是誰?",
        "我是 F# 之神。",
        False,
        "你是使用者。",
        True,
        ("leak",),
    ),
    ProbeRow("ability", "add", "heldout", "1+1=", "2", True, "2", True),
    ProbeRow("ability", "add", "heldout", "2+2=", "5", False, "3", False),
    ProbeRow("ability", "add", "heldout", "3+3=", "7", False, "6", True),
    ProbeRow("ability", "ufo", "heldout", "談談UFO", "不明飛行物。", True, "不明飛行物。", True),
)
VERDICT = Verdict(
    Outcome.UNDERFIT,
    {"leak": 1.0, "ability": 1 / 3},
    ("leak 1.000, limit ≤ 0.020 (1 of 1): 我是誰? → 我是 F# 之神。",),
    ROWS,
    (Check("leak", 1.0, 0.02, False, Outcome.UNDERFIT, False),),
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_it_shows_outcome_evidence_figures_and_each_section() -> None:
    text = to_text(VERDICT, limit=0)
    lines = text.splitlines()
    assert lines[0] == "判定 verdict: underfit 還沒學到"
    assert VERDICT.evidence[0] in text
    leak = next(line for line in lines if line.startswith(" leak "))
    assert leak.split() == ["leak", "1.000", "≤", "0.020", "✗", "underfit"]
    assert next(line for line in lines if line.startswith(" ability ")).split() == ["ability", "0.333"]
    heads = [
        "身份 identity: 1/1 (base 0/1)",
        "對照 contrast: 0/1 (base 1/1)",
        "能力 ability: 1/3 (base 2/3)",
        "UFO: 1/1 (base 1/1)",
    ]
    assert [line for line in lines if line in heads] == heads
    assert "健康" not in text
    for row in ROWS:
        assert row.prompt in text and row.answer in text and row.base_answer in text


def test_failing_probes_stand_first_and_first_of_all_what_the_base_could_do() -> None:
    text = to_text(VERDICT, limit=0)
    assert text.index("3+3=") < text.index("2+2=") < text.index("1+1=")


def test_what_the_limit_leaves_out_is_said() -> None:
    text = to_text(VERDICT, limit=1)
    assert "3+3=" in text and "2+2=" not in text and "1+1=" not in text
    assert "2 more, 1 of them failing" in text


def test_without_base_answers_there_is_no_base_column() -> None:
    rows = (ProbeRow("health", "", "heldout", "嗨", "!!!!", False, flags=("repetition", "one_token")),)
    text = to_text(Verdict(Outcome.COLLAPSED, {}, ("x",), rows), limit=5)
    assert "base" not in text
    assert "健康 health: 0/1" in text and "one_token" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_wide_characters_stay_within_the_width(width: int) -> None:
    rows = tuple(
        ProbeRow("ability", "ufo", "heldout", "談談UFO" * 9, "不明飛行物,F# Ω。" * 30, True, "甲" * 200, True)
        for _ in range(2)
    )
    text = to_text(Verdict(Outcome.PASSED, {"ability": 1.0}, (), rows), limit=5, width=width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert text.count("甲") == 400


@pytest.mark.parametrize(
    "hostile", ["[red]x[/red]", "[/]", "\x1b[2Jx", "a\rb", "\u202ex", "\ud800", "[link=http://x]y[/link]"]
)
@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_answers_are_shown_not_obeyed(
    hostile: str, stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    rows = (ProbeRow("ability", hostile, "heldout", hostile, hostile, False, hostile, False),)
    out = stream()
    write(Verdict(Outcome.BROKEN, {}, (hostile,), rows), out, limit=5)
    text = out.getvalue()
    assert "\x1b[2J" not in text and "\r" not in text and "\u202e" not in text and "\ud800" not in text
    if hostile.startswith("["):
        assert hostile in text
    text.encode()


def test_colour_for_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, pipe = Terminal(), io.StringIO()
    write(VERDICT, terminal, limit=3)
    write(VERDICT, pipe, limit=3)
    assert "\x1b[" in terminal.getvalue() and "\x1b[" not in pipe.getvalue()
    assert pipe.getvalue() == to_text(VERDICT, limit=3)


def test_nothing_but_an_outcome_is_a_table_too() -> None:
    assert to_text(Verdict(Outcome.PASSED), limit=3) == "判定 verdict: passed 通過\n"
    assert len(render(Verdict(Outcome.PASSED), limit=3).renderables) == 1
