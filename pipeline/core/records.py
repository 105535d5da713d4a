"""The words of the control plane as JSON text and back, strictly, for the journal."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any, TypeVar

from stages.contract.serial import RequestError, load, to_jsonable

T = TypeVar("T")


def to_text(value: Any) -> str:
    """Plain dataclasses as one line of JSON; the same value always gives the same text."""
    return json.dumps(to_jsonable(value), ensure_ascii=False, separators=(",", ":"))


def from_text(cls: type[T], text: str, where: str) -> T:
    """The inverse of `to_text`. `stages.contract.serial.load` with tuples besides, which requests have no use
    for.

    Args:
        cls: the dataclass to build.
        text: JSON.
        where: what the text is, for errors.

    Raises:
        RequestError: if the text is no JSON or does not fit `cls`.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(where, [f"not valid JSON: {error}"]) from None
    return _build(cls, data, where)


def _build(cls: type[T], data: Any, where: str) -> T:
    if not isinstance(data, dict):
        raise RequestError(where, [f"{data!r} is no mapping"])
    plain, parts = dict(data), {}
    for name, hint in typing.get_type_hints(cls).items():
        inner = _dataclass_in(hint)
        if plain.get(name) is None:
            continue
        if typing.get_origin(hint) is tuple:
            parts[name] = _items(typing.get_args(hint)[0], plain.pop(name), f"{where}.{name}")
        elif inner is not None:
            parts[name] = _build(inner, plain[name], f"{where}.{name}")
            plain[name] = None
    # Tuples have defaults and nested dataclasses are optional in these words, so `load` accepts their
    # absence.
    return dataclasses.replace(load(cls, plain, where), **parts)  # type: ignore[type-var]


def _dataclass_in(hint: Any) -> Any:
    """The dataclass of `X | None`; None for every other hint."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return None
    return next((arg for arg in typing.get_args(hint) if dataclasses.is_dataclass(arg)), None)


def _items(kind: Any, data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise RequestError(where, [f"{data!r} is no list"])
    if dataclasses.is_dataclass(kind):
        return tuple(_build(typing.cast(Any, kind), item, f"{where}[{i}]") for i, item in enumerate(data))
    wrong = [item for item in data if not isinstance(item, kind)]
    if wrong:
        raise RequestError(where, [f"{item!r} is no {kind.__name__}" for item in wrong])
    return tuple(data)
