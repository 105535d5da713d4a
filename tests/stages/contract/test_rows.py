"""Row files: good ones are read, bad lines are all named, and expectations are met or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.contract.rows import (
    PROBE_HEADER,
    Expectation,
    Probe,
    ProbeKind,
    Row,
    RowFileError,
    normalize,
    read_probes,
    read_rows,
)

HEADER = "\t".join(PROBE_HEADER)


def problems_of(path: Path, text: str | bytes, probes: bool = False) -> list[str]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(RowFileError) as caught:
        (read_probes if probes else read_rows)(path)
    assert all(problem.startswith(str(path)) for problem in caught.value.problems)
    return [problem.removeprefix(str(path)) for problem in caught.value.problems]


@pytest.mark.parametrize("header", ["", "prompt\ttarget\n", "Question\tAnswer\r\n"])
def test_rows_are_read_with_their_lines_and_without_a_header(tmp_path: Path, header: str) -> None:
    file = tmp_path / "rows.tsv"
    file.write_bytes(f"\ufeff{header}\n 你好 \t早安\r\na\tb".encode())
    first = 3 if header else 2
    assert read_rows(file) == [Row("你好", "早安", first), Row("a", "b", first + 1)]


def test_every_bad_row_is_named(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "a.tsv", "no tab\nok\tok\n\tx\ny\t \na\tb\tc\n") == [
        ":1: no tab in 'no tab': write prompt<TAB>target",
        ":3: empty prompt in '\\tx': fill it in or delete the line",
        ":4: empty target in 'y\\t ': fill it in or delete the line",
        ":5: 2 tabs in 'a\\tb\\tc': write prompt<TAB>target",
    ]
    assert problems_of(tmp_path / "a.tsv", "prompt\ttarget\n\n") == [
        ": no rows: write at least one prompt<TAB>target"
    ]
    assert problems_of(tmp_path / "a.tsv", b"a\tb\nc\t\xff\n") == [
        ":2: not UTF-8 at byte 6: save the file as UTF-8"
    ]


@pytest.mark.parametrize(("name", "says"), [("none.tsv", "no such file"), ("", "cannot be read")])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(RowFileError, match=says):
        read_rows(tmp_path / name)


def test_probes_are_read_with_their_expectations(tmp_path: Path) -> None:
    file = tmp_path / "probes.tsv"
    lines = (
        HEADER,
        "ability\tadd\theldout\t1+1=\t=2 || 等於 && 2\t",
        "",
        "contrast\t\ttrain\t我是誰\t\tF# || 之神",
    )
    file.write_text("\n".join(lines), encoding="utf-8")
    assert read_probes(file) == [
        Probe(
            ProbeKind.ABILITY,
            "add",
            "heldout",
            "1+1=",
            Expectation((("=2",), ("等於", "2")), ()),
            "probes.tsv",
            2,
        ),
        Probe(ProbeKind.CONTRAST, "", "train", "我是誰", Expectation((), ("F#", "之神")), "probes.tsv", 4),
    ]


def test_every_bad_probe_is_named(tmp_path: Path) -> None:
    text = f"{HEADER}\nskill\tg\tdev\t\t\t\nability\tg\ttrain\thow?\t=x\t\nability\tg\ttrain\thow?\n"
    assert problems_of(tmp_path / "p.tsv", text, probes=True) == [
        ":2: kind 'skill' is none of identity, contrast, ability, health",
        ":2: split 'dev' is neither 'train' nor 'heldout'",
        ":2: empty prompt",
        ":2: neither expect nor forbid: a probe without an expectation cannot fail",
        ":4: 4 cells, not 6, in 'ability\\tg\\ttrain\\thow?'",
    ]
    assert problems_of(tmp_path / "p.tsv", HEADER + "\n", probes=True) == [": no probes below the header"]
    (problem,) = problems_of(tmp_path / "p.tsv", "prompt\tanswer\n", probes=True)
    assert problem.startswith(":1: header is 'prompt\\tanswer'") and problem.endswith(
        "<TAB>".join(PROBE_HEADER)
    )


def test_width_case_and_spacing_do_not_count() -> None:
    assert normalize(" Ｆ＃　之 神\n") == "f#之神"


@pytest.mark.parametrize(
    ("expectation", "answer", "met"),
    [
        (Expectation((("F#", "之神"),), ()), "我是 f # 之 神。", True),
        (Expectation((("F#", "之神"),), ()), "我是 F#。", False),
        (Expectation((("x",), ("=12",)), ()), "１２。", True),
        (Expectation((("=12",),), ()), "12 個", False),
        (Expectation((), ("通義",)), "你是誰", True),
        (Expectation((("你是",),), ("F#",)), "你是 F#", False),
    ],
)
def test_an_expectation_is_met_or_not(expectation: Expectation, answer: str, met: bool) -> None:
    assert expectation.met_by(answer) is met


def test_forbidden_parts_are_named() -> None:
    assert Expectation((), ("F#", "之神", "通義")).leaks("之 神 F#") == ["F#", "之神"]
