"""Plain dataclasses to JSON and back. Loading is strict, and reports everything that is wrong at once."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class RequestError(ValueError):
    """Data that does not fit its dataclass, or a request that cannot be carried out.

    `problems` lists every reason with its key, `where` names the data.
    """

    def __init__(self, where: str, problems: list[str]) -> None:
        self.where = where
        self.problems = problems
        lines = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(f"{where}: {len(problems)} problem(s)\n{lines}")


def to_jsonable(value: Any) -> Any:
    """Dataclasses as dicts, enums as their values, paths as strings, tuples as lists; nested ones too."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(v) for v in value]
    return value


def dump(value: Any) -> str:
    """Indented JSON, keys in the order of the fields; the same value always gives the same text."""
    return json.dumps(to_jsonable(value), ensure_ascii=False, indent=2) + "\n"


def dump_line(value: Any) -> str:
    """The same as `dump`, on one line without spaces and without a newline."""
    return json.dumps(to_jsonable(value), ensure_ascii=False, separators=(",", ":"))


def load(cls: type[T], data: Any, where: str) -> T:
    """Builds the dataclass `cls` from parsed JSON.

    Args:
        cls: its fields may be scalars, enums, dataclasses, lists, tuples of any length, mappings and `Any`;
            each may be optional.
        data: what `json.loads` gives, for instance.
        where: what the data is called in the error.

    Raises:
        RequestError: naming every unknown key (with the nearest known one), missing key and value of a wrong
            type.
    """
    problems: list[str] = []
    value = _build(cls, data, "", problems)
    if problems:
        raise RequestError(where, problems)
    return typing.cast(T, value)


def load_file(cls: type[T], path: Path) -> T:
    """Reads `cls` from a JSON file.

    Raises:
        RequestError: if the file is missing, is no JSON, or does not fit `cls`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RequestError(str(path), ["no such file: give the path of a request JSON"]) from None
    except UnicodeDecodeError as error:
        raise RequestError(str(path), [f"not valid JSON: {error}"]) from None
    return load_text(cls, text, str(path))


def load_text(cls: type[T], text: str, where: str) -> T:
    """Builds `cls` from JSON text; the inverse of `dump` and `dump_line`.

    Raises:
        RequestError: if the text is no JSON or does not fit `cls`.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(where, [f"not valid JSON: {error}"]) from None
    return load(cls, data, where)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The hint `; did you mean 'x'?` with the known name nearest to an unknown one, or an empty text.

    Args:
        name: the unknown name.
        known: all known names.
        cutoff: how similar the nearest must be, in [0, 1]; see `difflib.get_close_matches`.
    """
    import difflib  # only where there is a mistake to explain

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def _build(kind: Any, data: Any, key: str, problems: list[str]) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        return _build(next(a for a in args if a is not type(None)), data, key, problems)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, data, key, problems)
    if origin in (list, tuple):
        if not isinstance(data, list):
            problems.append(f"{key}: {data!r} is no list")
            return origin()
        return origin(_build(args[0], item, f"{key}[{i}]", problems) for i, item in enumerate(data))
    if origin is dict:
        if not isinstance(data, dict):
            problems.append(f"{key}: {data!r} is no mapping")
            return {}
        return {k: _build(args[1], v, f"{key}.{k}", problems) for k, v in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            problems.append(f"{key}: {data!r} is none of {', '.join(repr(m.value) for m in kind)}")
            return None
    return _build_scalar(kind, data, key, problems)


def _build_scalar(kind: Any, data: Any, key: str, problems: list[str]) -> Any:
    if kind is Any:
        return data
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or (kind in (int, float) and isinstance(data, bool)):
        problems.append(f"{key}: {data!r} is no {kind.__name__}")
        return None
    return data


def _build_dataclass(cls: Any, data: Any, key: str, problems: list[str]) -> Any:
    if not isinstance(data, dict):
        problems.append(f"{key or cls.__name__}: {data!r} is no mapping")
        return None
    prefix = f"{key}." if key else ""
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name in data:
        if name not in fields:
            problems.append(f"{prefix}{name}: unknown key{did_you_mean(str(name), fields)}")
    before = len(problems)
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _build(hints[name], data[name], prefix + name, problems)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"{prefix}{name}: missing")
    return cls(**values) if len(problems) == before else None
