"""A Hugging Face Qwen3 folder to a weight file.

Linear weights become NVFP4 bundles, embedding and norms float16. NVFP4 stores the head as its own entry even
where the config ties it to the embedding: quantized it is no longer the embedding. In a float16 file a tied
head stays tied.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TextIO

import torch

from stages.contract.recipe import ScaleRule
from stages.nvfp4.codec import Bundle, encode
from stages.qwen3.config import Qwen3Config, read_config
from stages.weights.bundles import bundle_entries, encode_two_level, tensor_scale
from stages.weights.byte_progress import ByteProgress
from stages.weights.dat import EntryToWrite, WrittenFile, tensor_bytes, write_dat
from stages.weights.dat_index import ElemType, Spec
from stages.weights.hf_folder import DTYPES, FolderError, StoredTensor, read_index, read_rows
from stages.weights.model_weights import EMBEDDING, HEAD, parameter_shapes, row_slices


class Format(StrEnum):
    """What linear weights are stored as."""

    NVFP4 = "nvfp4"
    FLOAT16 = "float16"


def to_dat(
    folder: Path,
    path: Path,
    target: Format,
    rule: ScaleRule = ScaleRule.SEARCH,
    two_level: bool = False,
    stream: TextIO = sys.stderr,
) -> WrittenFile:
    """Converts a folder. Memory is bounded by the largest tensor; the free disk space is checked first.

    Args:
        folder: With `config.json` and safetensors.
        path: The weight file; must not exist.
        target: What linear weights are stored as.
        rule: How block scales are chosen.
        two_level: See `stages.weights.bundles`. Such a file can be used but not trained.
        stream: Where progress is shown.

    Raises:
        ConfigError, FolderError: listing everything that does not fit, before anything is written.
        OutputExistsError, NoSpaceError: see `stages.process.files.new_file`.
    """
    config = read_config(folder / "config.json")
    stored = read_index(folder)
    _check(folder, config, stored)
    tied = config.tie_word_embeddings
    shapes = parameter_shapes(config, tied=tied and target is Format.FLOAT16)
    sources = {name: EMBEDDING if name == HEAD and tied else name for name in shapes}
    linear = [
        name
        for name, shape in shapes.items()
        if target is Format.NVFP4 and len(shape) == 2 and name != EMBEDDING
    ]
    passes = {name: 2 if two_level and name in linear else 1 for name in shapes}
    progress = ByteProgress(sum(stored[sources[name]].nbytes * passes[name] for name in shapes), stream)
    entries: list[EntryToWrite] = []
    for name, shape in shapes.items():
        source = _Source(stored[sources[name]], sources[name], progress)
        if name in linear:
            top = tensor_scale(source.amax()) if two_level else None
            entries += bundle_entries(name, shape, partial(_encoded, source, rule, top), top)
        else:
            entries.append((Spec(name, ElemType.FLOAT16, shape), source.float16_bytes))
    written = write_dat(path, entries)
    progress.close()
    return written


@dataclass(frozen=True)
class _Source:
    """One source tensor, read in row chunks that count as progress."""

    tensor: StoredTensor
    name: str
    progress: ByteProgress

    def chunks(self) -> Iterator[torch.Tensor]:
        """Row chunks [rows, …] in the stored dtype. Raises FolderError for NaN or infinity."""
        columns = self.tensor.shape[1] if len(self.tensor.shape) > 1 else 1
        for chunk in read_rows(self.tensor, self.name, row_slices(self.tensor.shape[0], columns)):
            if not bool(torch.isfinite(chunk).all()):
                raise FolderError(self.tensor.file, [f"{self.name}: holds NaN or infinity"])
            yield chunk
            self.progress.add(chunk.nbytes)

    def amax(self) -> float:
        """Largest absolute value."""
        return max(float(chunk.abs().amax()) for chunk in self.chunks())

    def float16_bytes(self) -> Iterator[memoryview]:
        """The values as float16. Raises FolderError where one is too large for it."""
        for chunk in self.chunks():
            half = chunk.half()
            if not bool(torch.isfinite(half).all()):
                what = f"{float(chunk.abs().max()):g} is more than float16 holds (65504)"
                raise FolderError(self.tensor.file, [f"{self.name}: {what}"])
            yield tensor_bytes(half)


def _encoded(source: _Source, rule: ScaleRule, top: float | None) -> Iterator[Bundle]:
    for chunk in source.chunks():
        yield encode(chunk.float(), rule) if top is None else encode_two_level(chunk, top, rule)


def _check(folder: Path, config: Qwen3Config, stored: dict[str, StoredTensor]) -> None:
    expected = parameter_shapes(config, tied=config.tie_word_embeddings)
    problems = []
    for name, shape in expected.items():
        if name not in stored:
            problems.append(f"{name}: missing")
        elif stored[name].shape != shape:
            problems.append(f"{name}: shape {list(stored[name].shape)}, config.json asks for {list(shape)}")
        elif stored[name].dtype not in DTYPES:
            problems.append(f"{name}: dtype {stored[name].dtype}, one of {', '.join(DTYPES)} is needed")
    # A tied checkpoint may hold its head a second time. Hugging Face reads the embedding then, and so do we.
    unknown = [name for name in stored if name not in expected and name != HEAD]
    problems += [f"{name}: not a tensor of this Qwen3" for name in unknown]
    if problems:
        raise FolderError(folder, problems)
