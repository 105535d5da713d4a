"""A new model: a tokenizer trained on rows, and random NVFP4 weights: `python -m stages.init REQUEST`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from stages.contract.events import Phase, StageResult
from stages.contract.recipe import ScaleRule
from stages.contract.requests import InitRequest
from stages.contract.rows import RowFileError, read_rows
from stages.nvfp4.codec import encode
from stages.process.files import require_new, write_new_text
from stages.process.process import Reporter, make_deterministic, run_process, versions
from stages.qwen3.config import read_config
from stages.train.tokenizer import train_tokenizer
from stages.weights.bundles import bundle_entries
from stages.weights.dat import EntryToWrite, tensor_bytes, write_dat
from stages.weights.dat_index import ElemType, Spec
from stages.weights.model_weights import EMBEDDING, parameter_shapes

_STD = 0.02  # Qwen3's own `initializer_range`


def init(request: InitRequest) -> StageResult:
    """Writes `config.json`, `tokenizer.json` and the first weight of a model.

    The head is stored apart from the embedding, as in the user's files, and starts as a copy of it.

    Raises:
        OutputExistsError: if any of the three is there already.
        RowFileError: for bad rows.
    """
    make_deterministic(0)
    reporter = Reporter(Path(request.events), torch.device("cpu"))
    reporter.phase(Phase.START)
    folder, weight = Path(request.output_dir), Path(request.output_weight)
    config_path, tokenizer_path = folder / "config.json", folder / "tokenizer.json"
    for path in (config_path, tokenizer_path, weight):
        require_new(path)
    config = read_config(Path(request.config))
    texts = _texts([Path(s.path) for s in request.data])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(texts, config.vocab_size)
    write_new_text(config_path, Path(request.config).read_text(encoding="utf-8"))
    write_new_text(tokenizer_path, tokenizer.to_str(pretty=False))
    generator = torch.Generator().manual_seed(request.seed)
    entries: list[EntryToWrite] = []
    values: dict[str, torch.Tensor] = {}
    for name, shape in parameter_shapes(config, tied=False).items():
        value = (
            torch.empty(shape).normal_(0, _STD, generator=generator) if len(shape) > 1 else torch.ones(shape)
        )
        value = value.bfloat16()
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            value /= (2 * config.num_hidden_layers) ** 0.5
        values[name] = value
    values["lm_head.weight"] = values[EMBEDDING]
    for name, value in values.items():
        entries += _entries(name, value, request.scale_rule)
    written = write_dat(weight, entries)
    reporter.phase(Phase.EXPORTED)
    return StageResult(
        0,
        output=request.output_weight,
        sha256=written.sha256,
        output_bytes=written.nbytes,
        notes=reporter.notes,
        versions=versions(),
    )


def _entries(name: str, value: torch.Tensor, rule: ScaleRule) -> list[EntryToWrite]:
    shape = tuple(value.shape)
    if value.ndim == 2 and name != EMBEDDING:
        return bundle_entries(name, shape, lambda: [encode(value, rule)])
    return [(Spec(name, ElemType.FLOAT16, shape), lambda: [tensor_bytes(value.half())])]


def _texts(paths: list[Path]) -> list[str]:
    texts, problems = [], []
    for path in paths:
        try:
            texts += [text for row in read_rows(path) for text in (row.prompt, row.target)]
        except RowFileError as error:
            problems += error.problems
    if problems:
        raise RowFileError(paths[0], problems)
    return texts


def main(argv: list[str] | None = None) -> int:
    """The command line; see `run_process`."""
    return run_process(
        InitRequest, init, sys.argv[1:] if argv is None else argv, "Make a model from nothing."
    )
