"""Command templates: split as a shell would do it, each value one argument, no shell unless asked for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract.command import RECIPE_PLACEHOLDERS, expand, placeholders, template_problems
from stages.contract.requests import TrainRequest

NASTY = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)


@given(NASTY)
def test_a_value_stays_one_argument_whatever_is_in_it(value: str) -> None:
    words = expand(
        "program --in {input} x{output}y 'two words'", {"input": value, "output": value}, shell=False
    )
    assert words == ["program", "--in", value, f"x{value}y", "two words"]


@settings(max_examples=15, deadline=None)
@given(NASTY)
def test_a_shell_hands_the_value_on_unchanged(value: str) -> None:
    text = f"{sys.executable} -c 'import sys, json; print(json.dumps(sys.argv[1:]))' {{input}} | cat"
    shown = subprocess.run(
        expand(text, {"input": value}, shell=True), capture_output=True, check=True, env={"PYTHONUTF8": "1"}
    )
    assert json.loads(shown.stdout) == [value]


def test_numbers_read_as_a_program_wants_them() -> None:
    values = {"lr": 8e-05, "steps": 4, "gradient_checkpointing": True}
    assert expand("{lr} {steps} {gradient_checkpointing} {a: 1}", values, shell=False) == [
        "8e-05",
        "4",
        "true",
        "{a:",
        "1}",
    ]
    assert placeholders("{lr}{steps} {A} {}") == ["lr", "steps"]


def test_every_number_is_a_key_of_the_recipe() -> None:
    assert set(RECIPE_PLACEHOLDERS) <= set(TrainRequest.__dataclass_fields__)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{output} {step}", "did you mean 'steps'"),
        ("{output} {zzz}", "there are data"),
        ("{input}", "{output}"),
    ],
)
def test_problems_name_the_placeholder(template: str, says: str) -> None:
    assert [problem for problem in template_problems(template) if says in problem]
    assert template_problems("x {data} {input} {output} {steps}") == []
