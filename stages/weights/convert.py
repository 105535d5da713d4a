"""Hugging Face folders to weight files and back.

`python -m stages.convert to-dat HF_FOLDER FILE --format nvfp4|float16` and `python -m stages.convert to-hf
FILE HF_FOLDER`. Linear weights become NVFP4 bundles, embedding and norms float16. The head is written apart,
also where the config ties it to the embedding: quantized it is no longer the embedding. With `--format
float16` a tied head stays tied.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TextIO

import torch

from stages.contract import ExitCode, ScaleRule
from stages.nvfp4.codec import Bundle, ScaleFormat, encode
from stages.process.files import NoSpaceError, require_new, require_space, write_new_text
from stages.qwen3.config import ConfigError, Qwen3Config, read_config
from stages.weights.bundles import (
    TWO_LEVEL,
    Item,
    bundle_items,
    bundle_values,
    encode_two_level,
    tensor_scale,
)
from stages.weights.dat import (
    TORCH_DTYPES,
    DatError,
    DatFile,
    ElemType,
    Spec,
    WrittenFile,
    tensor_bytes,
    write_dat,
)
from stages.weights.hf_folder import (
    DTYPES,
    FolderError,
    StoredTensor,
    TensorToWrite,
    read_index,
    read_rows,
    write_shards,
)
from stages.weights.model_weights import (
    EMBEDDING,
    HEAD,
    Layout,
    WeightError,
    layout_of,
    parameter_shapes,
    row_slices,
)

_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "generation_config.json",
)


class Format(StrEnum):
    """What linear weights are stored as."""

    NVFP4 = "nvfp4"
    FLOAT16 = "float16"


class ByteProgress:
    """A bar with MB/s on a stream: redrawn on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total, self.done, self.stream = max(1, total), 0, stream
        self.start = time.monotonic()
        self.every = 0.2 if stream.isatty() else 10.0
        self.next = self.start + self.every

    def add(self, nbytes: int) -> None:
        """Counts bytes that are done."""
        self.done += nbytes
        if time.monotonic() >= self.next:
            self._draw("\r" if self.stream.isatty() else "\n")
            self.next = time.monotonic() + self.every

    def close(self) -> None:
        """Draws the last state."""
        self._draw("\n")

    def _draw(self, end: str) -> None:
        share = min(1.0, self.done / self.total)
        rate = self.done / 1e6 / max(1e-9, time.monotonic() - self.start)
        bar = "#" * int(30 * share)
        self.stream.write(
            f"[{bar:<30}] {share:4.0%} {self.done / 1e6:.0f} of {self.total / 1e6:.0f} MB, {rate:.0f} MB/s{end}"
        )
        self.stream.flush()


def to_dat(
    folder: Path,
    path: Path,
    target: Format,
    rule: ScaleRule = ScaleRule.SEARCH,
    two_level: bool = False,
    stream: TextIO = sys.stderr,
) -> WrittenFile:
    """Converts a Hugging Face Qwen3 folder. Memory is bounded by the largest tensor; the free disk is checked
    first.

    Args:
        two_level: See `stages.weights.bundles`. Such a file can be used but not trained.

    Raises:
        ConfigError, FolderError: listing everything that does not fit, before anything is written.
        OutputExistsError, NoSpaceError: see `stages.process.files.new_file`.
    """
    config = read_config(folder / "config.json")
    stored = read_index(folder)
    tied_head = config.tie_word_embeddings
    shapes = parameter_shapes(config, tied=tied_head and target is Format.FLOAT16)
    _check(folder, config, stored)
    sources = {name: EMBEDDING if name == HEAD and tied_head else name for name in shapes}
    linear = [
        name
        for name, shape in shapes.items()
        if target is Format.NVFP4 and len(shape) == 2 and name != EMBEDDING
    ]
    passes = {name: 2 if two_level and name in linear else 1 for name in shapes}
    progress = ByteProgress(sum(stored[sources[name]].nbytes * passes[name] for name in shapes), stream)
    items: list[Item] = []
    for name, shape in shapes.items():
        rows = _Rows(stored[sources[name]], sources[name], progress)
        if name in linear:
            top = (
                tensor_scale(max(float(piece.abs().amax()) for piece in rows.finite())) if two_level else None
            )
            items += bundle_items(name, (shape[0], shape[1]), _Encoder(rows, rule, top), top)
        else:
            items.append((Spec(name, ElemType.FLOAT16, shape), rows.half))
    written = write_dat(path, items)
    progress.close()
    return written


class _Rows:
    """The rows of one source tensor, counted while they are read."""

    def __init__(self, tensor: StoredTensor, name: str, progress: ByteProgress) -> None:
        self.tensor, self.name, self.progress = tensor, name, progress

    def finite(self) -> Iterator[torch.Tensor]:
        """Pieces [rows, …] in the dtype of the file."""
        columns = self.tensor.shape[1] if len(self.tensor.shape) > 1 else 1
        for piece in read_rows(self.tensor, self.name, row_slices(self.tensor.shape[0], columns)):
            if not bool(torch.isfinite(piece).all()):
                raise FolderError(self.tensor.file, [f"{self.name}: holds NaN or infinity"])
            yield piece
            self.progress.add(piece.nbytes)

    def half(self) -> Iterator[memoryview]:
        """The bytes as float16."""
        for piece in self.finite():
            half = piece.half()
            if not bool(torch.isfinite(half).all()):
                raise FolderError(
                    self.tensor.file,
                    [f"{self.name}: {float(piece.abs().max()):g} is more than float16 holds (65504)"],
                )
            yield tensor_bytes(half)


class _Encoder:
    """Encodes the rows of a tensor when its turn comes."""

    def __init__(self, rows: _Rows, rule: ScaleRule, top: float | None) -> None:
        self.rows, self.rule, self.top = rows, rule, top

    def __call__(self) -> Iterator[Bundle]:
        for piece in self.rows.finite():
            yield (
                encode(piece.float(), self.rule)
                if self.top is None
                else encode_two_level(piece, self.top, self.rule)
            )


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
    # A tied checkpoint may hold its head a second time; Hugging Face reads the embedding then, and so does
    # this.
    problems += [
        f"{name}: not a tensor of this Qwen3" for name in stored if name not in expected and name != HEAD
    ]
    if problems:
        raise FolderError(folder, problems)


def to_hf(
    path: Path, folder: Path, model_dir: Path, shard_bytes: int = 4 << 30, stream: TextIO = sys.stderr
) -> None:
    """Converts a weight file to a Hugging Face folder, which appears whole or not at all.

    NVFP4 weights become BF16 where that is exact (E4M3 scales, one level) and float32 otherwise; the rest
    keeps its type.

    Args:
        model_dir: Folder with `config.json`; tokenizer files there are copied.

    Raises:
        ConfigError, DatError, WeightError, OutputExistsError, NoSpaceError.
    """
    config = read_config(model_dir / "config.json")
    require_new(folder)
    with DatFile(path) as dat:
        layout = layout_of(dat, config)
        shapes = parameter_shapes(config, layout.tied)
        progress = ByteProgress(sum(e.nbytes for e in dat.entries.values()), stream)
        tensors = [_to_write(dat, layout, name, shape, progress) for name, shape in shapes.items()]
        folder.parent.mkdir(parents=True, exist_ok=True)
        require_space(folder, sum(t.nbytes for t in tensors))
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        try:
            write_shards(aside, tensors, shard_bytes)
            _write_settings(model_dir, aside, layout.tied)
            aside.chmod(0o755)
            require_new(folder)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        progress.close()


def _write_settings(model_dir: Path, folder: Path, tied: bool) -> None:
    settings = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    settings |= {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": tied}
    write_new_text(folder / "config.json", json.dumps(settings, indent=2, ensure_ascii=False))
    for name in _COPIED:
        if (model_dir / name).is_file():
            shutil.copyfile(model_dir / name, folder / name)


def _to_write(
    dat: DatFile, layout: Layout, name: str, shape: tuple[int, ...], progress: ByteProgress
) -> TensorToWrite:
    if name in layout.plain:
        dtype = TORCH_DTYPES[layout.plain[name]]
    else:
        exact = layout.bundles[name] is ScaleFormat.E4M3 and name not in layout.two_level
        dtype = torch.bfloat16 if exact else torch.float32

    def pieces() -> Iterator[memoryview]:
        entry = name + TWO_LEVEL if name in layout.two_level else name
        for rows in row_slices(shape[0], shape[1] if len(shape) > 1 else 1):
            if name in layout.plain:
                values = dat.tensor(name, rows)
                progress.add(values.nbytes)
            else:
                values = bundle_values(dat, entry, rows, dtype, torch.device("cpu"))
                progress.add(values.numel() * 9 // 16)  # half a byte a code, a sixteenth a scale
            yield tensor_bytes(values)

    return TensorToWrite(name, shape, dtype, pieces)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stages.convert", description="Hugging Face folders to weight files and back."
    )
    ways = parser.add_subparsers(dest="way", required=True)
    one = ways.add_parser("to-dat", help="safetensors to a weight file")
    one.add_argument("folder", type=Path, help="folder with config.json and safetensors")
    one.add_argument("file", type=Path, help="the .dat file to write")
    one.add_argument("--format", type=Format, choices=list(Format), default=Format.NVFP4)
    one.add_argument("--scale-rule", type=ScaleRule, choices=list(ScaleRule), default=ScaleRule.SEARCH)
    one.add_argument(
        "--two-level",
        action="store_true",
        help="a scale of each tensor too; F# programs cannot read such a file",
    )
    two = ways.add_parser("to-hf", help="a weight file to safetensors")
    two.add_argument("file", type=Path, help="the .dat file")
    two.add_argument("folder", type=Path, help="the folder to make")
    two.add_argument(
        "--model-dir", type=Path, help="folder with config.json and tokenizer (default: that of the file)"
    )
    two.add_argument("--shard-gb", type=float, default=4.0, help="most GB of one safetensors file")
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.way == "to-dat":
            written = to_dat(
                arguments.folder, arguments.file, arguments.format, arguments.scale_rule, arguments.two_level
            )
            sys.stdout.write(f"{arguments.file}: {written.nbytes} bytes, SHA-256 {written.sha256}\n")
        else:
            to_hf(
                arguments.file,
                arguments.folder,
                arguments.model_dir or arguments.file.parent,
                int(arguments.shard_gb * 1e9),
            )
            sys.stdout.write(f"{arguments.folder}: written\n")
    except NoSpaceError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.NO_SPACE
    except (ConfigError, DatError, FolderError, WeightError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_INPUT
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
