"""Strict JSON: values come back as they were, and everything that does not fit is reported at once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.contract.serial import (
    RequestError,
    did_you_mean,
    dump,
    dump_line,
    load,
    load_file,
    load_text,
    to_jsonable,
)


class Color(StrEnum):
    RED = "red"
    DARK_BLUE = "dark blue"


class Code(IntEnum):
    OK = 0
    BAD = 2


@dataclass(frozen=True)
class Leaf:
    name: str
    weight: float = 1.0
    color: Color = Color.RED


@dataclass(frozen=True)
class Tree:
    root: Leaf
    code: Code = Code.OK
    shade: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    rings: list[int] = field(default_factory=list)
    by_name: dict[str, Leaf] = field(default_factory=dict)
    pairs: tuple[tuple[str, ...], ...] = ()
    height: float | None = None
    ripe: bool = False
    notes: Any = None


FULL = Tree(
    root=Leaf("根", 2.5, Color.DARK_BLUE),
    code=Code.BAD,
    shade=Leaf("s"),
    leaves=(Leaf("a"), Leaf("b", 0.5)),
    rings=[1, 2],
    by_name={"x": Leaf("y")},
    pairs=(("a", "b"), ()),
    height=3.0,
    ripe=True,
    notes={"free": [1, None]},
)


@pytest.mark.parametrize("tree", [FULL, Tree(Leaf("only"))])
def test_nested_values_come_back_from_both_kinds_of_text(tree: Tree) -> None:
    for text in (dump(tree), dump_line(tree)):
        assert load_text(Tree, text, "here") == tree


@given(
    st.builds(
        Tree,
        root=st.builds(Leaf, st.text(), st.floats(allow_nan=False), st.sampled_from(Color)),
        shade=st.none() | st.builds(Leaf, st.text()),
        leaves=st.lists(st.builds(Leaf, st.text()), max_size=3).map(tuple),
        height=st.none() | st.floats(allow_nan=False),
    )
)
def test_any_value_comes_back(tree: Tree) -> None:
    assert load_text(Tree, dump_line(tree), "here") == tree


def test_texts_are_readable_stable_and_in_the_order_of_the_fields() -> None:
    assert dump(Leaf("根")) == '{\n  "name": "根",\n  "weight": 1.0,\n  "color": "red"\n}\n'
    assert dump_line(Leaf("根")) == '{"name":"根","weight":1.0,"color":"red"}'
    assert to_jsonable({"p": Path("a/b"), 3: (Color.RED,)}) == {"p": "a/b", "3": ["red"]}


def test_a_whole_number_is_good_for_a_float_and_types_are_those_of_the_fields() -> None:
    tree = load(Tree, {"root": {"name": "a", "weight": 3}, "leaves": [{"name": "b"}], "code": 2}, "here")
    assert isinstance(tree.root.weight, float) and tree.code is Code.BAD
    assert tree.leaves == (Leaf("b"),) and tree.root.color is Color.RED


def test_everything_that_is_wrong_is_reported_together_with_its_place() -> None:
    data = {
        "root": {"nmae": "x", "weight": "heavy"},
        "code": 7,
        "shade": {"name": 3},
        "leaves": [{"name": "a", "color": "green"}, {"name": "b"}, 5],
        "rings": [1, True, 2.5],
        "by_name": {"x": {}},
        "pairs": [["a", 1], "b"],
        "height": "tall",
        "ripe": 1,
        "colour": "red",
        4: 5,
    }
    with pytest.raises(RequestError) as caught:
        load(Tree, data, "here")
    assert caught.value.problems == [
        "colour: unknown key",
        "4: unknown key",
        "root.nmae: unknown key; did you mean 'name'?",
        "root.name: missing",
        "root.weight: 'heavy' is no float",
        "code: 7 is none of 0, 2",
        "shade.name: 3 is no str",
        "leaves[0].color: 'green' is none of 'red', 'dark blue'",
        "leaves[2]: 5 is no mapping",
        "rings[1]: True is no int",
        "rings[2]: 2.5 is no int",
        "by_name.x.name: missing",
        "pairs[0][1]: 1 is no str",
        "pairs[1]: 'b' is no list",
        "height: 'tall' is no float",
        "ripe: 1 is no bool",
    ]
    assert caught.value.where == "here"
    assert str(caught.value).startswith("here: 16 problem(s)\n  - colour")


@pytest.mark.parametrize("data", [None, [], "text", {"root": None}, {"root": {"name": "a"}, "leaves": None}])
def test_what_is_not_optional_is_never_none_and_containers_are_not_confused(data: Any) -> None:
    with pytest.raises(RequestError):
        load(Tree, data, "here")


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    with pytest.raises(RequestError, match=r"request\.json.*\n.*no such file"):
        load_file(Leaf, file)
    for content in (b"{half", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(RequestError, match=r"request\.json.*\n.*not valid JSON"):
            load_file(Leaf, file)
    file.write_text(json.dumps({"name": "a"}), encoding="utf-8")
    assert load_file(Leaf, file) == Leaf("a")


def test_the_nearest_name_is_suggested_and_nothing_for_a_far_one() -> None:
    assert did_you_mean("stpes", ["lr", "steps"]) == "; did you mean 'steps'?"
    assert did_you_mean("zzz", ["lr", "steps"]) == ""
    assert did_you_mean("stop", ["steps"], cutoff=0.9) == ""
