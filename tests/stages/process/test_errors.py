"""Errors about input files: those of all rooms are the one that `process` catches; all problems are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.process.errors import InputError, InputProblems
from stages.qwen3.config import ConfigError
from stages.weights.dat_index import DatError
from stages.weights.hf_folder import FolderError
from stages.weights.model_weights import WeightError


@pytest.mark.parametrize("error", [ConfigError, FolderError, WeightError])
def test_every_problem_stands_in_the_text(error: type[InputProblems]) -> None:
    made = error(Path("a"), ["one", "two"])
    assert isinstance(made, InputError) and made.problems == ["one", "two"]
    assert str(made).startswith("a: ") and str(made).endswith("2 problem(s)\n  - one\n  - two")


def test_a_damaged_weight_file_is_bad_input() -> None:
    assert issubclass(DatError, InputError)
