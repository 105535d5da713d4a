"""Command templates: the placeholders in the command of an external program, and their expansion.

    dotnet fsi train.fsx --train-data {data} --input-dat {input} --output-dat {output} --lr {lr}

The template is split into words as a shell would do it, and then the placeholders of each word are filled in:
a path with a blank in it stays one argument. A shell runs only a template with `shell: true`; its values are
quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from stages.contract.recipe import Recipe
from stages.contract.serial import did_you_mean

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
PATH_PLACEHOLDERS = ("data", "input", "output", "model_dir")
"""Rows as a TSV without a header, input weight, output weight, folder with config and tokenizer."""
RECIPE_PLACEHOLDERS = tuple(
    f.name
    for f in fields(Recipe)
    if f.name not in ("data", "lr_groups") and not f.name.startswith("offload_")
)
"""Keys of a recipe that a template may name."""


def placeholders(template: str) -> list[str]:
    """The names in braces, in order. Braces around anything else are plain text."""
    return _PLACEHOLDER.findall(template)


def template_problems(template: str) -> list[str]:
    """All that is wrong with a template, each as `value: remedy`."""
    known = (*PATH_PLACEHOLDERS, *RECIPE_PLACEHOLDERS)
    problems = []
    for name in dict.fromkeys(placeholders(template)):
        if name not in known:
            hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            problems.append(f"{{{name}}}: no such placeholder{hint}")
    if "output" not in placeholders(template):
        remedy = "the program must be told where its weight goes, or nothing can be judged"
        problems.append(f"{template!r}: has no {{output}}: {remedy}")
    try:
        shlex.split(template)
    except ValueError as error:
        problems.append(f"{template!r}: {error}: close the quotation")
    return problems


def expand(template: str, values: Mapping[str, Any], shell: bool) -> list[str]:
    """The argument list of a template without problems.

    Args:
        template: the command with placeholders.
        values: placeholder → value, for every placeholder in it. Truth values become `true` and `false`.
        shell: whether `/bin/sh` gets the whole text.
    """
    if shell:
        return ["/bin/sh", "-c", _PLACEHOLDER.sub(lambda m: shlex.quote(_text(values[m[1]])), template)]
    return [_PLACEHOLDER.sub(lambda m: _text(values[m[1]]), word) for word in shlex.split(template)]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
