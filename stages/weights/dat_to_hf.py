"""A weight file to a Hugging Face folder.

NVFP4 weights become BF16 where that is exact (E4M3 scales, one level) and float32 otherwise; the rest keeps
its type.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import torch

from stages.nvfp4.codec import ScaleFormat
from stages.process.files import require_new, require_space, write_new_text
from stages.qwen3.config import read_config
from stages.weights.bundles import TWO_LEVEL, bundle_values
from stages.weights.byte_progress import ByteProgress
from stages.weights.dat import TORCH_DTYPES, DatFile, tensor_bytes
from stages.weights.hf_folder import TensorToWrite, write_shards
from stages.weights.model_weights import Layout, layout_of, parameter_shapes, row_slices

_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "generation_config.json",
)


def to_hf(
    path: Path, folder: Path, model_dir: Path, shard_bytes: int = 4 << 30, stream: TextIO = sys.stderr
) -> None:
    """Converts a weight file. The folder appears whole or not at all.

    Args:
        path: The weight file.
        folder: The folder to make; must not exist.
        model_dir: Folder with `config.json`; tokenizer files there are copied.
        shard_bytes: Largest safetensors file; see `stages.weights.hf_folder.write_shards`.
        stream: Where progress is shown.

    Raises:
        ConfigError, DatError, WeightError, OutputExistsError, NoSpaceError.
    """
    config = read_config(model_dir / "config.json")
    require_new(folder)
    with DatFile(path) as dat:
        layout = layout_of(dat, config)
        shapes = parameter_shapes(config, layout.tied)
        progress = ByteProgress(sum(e.nbytes for e in dat.entries.values()), stream)
        tensors = [_tensor(dat, layout, name, shape, progress) for name, shape in shapes.items()]
        folder.parent.mkdir(parents=True, exist_ok=True)
        require_space(folder, sum(t.nbytes for t in tensors))
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        try:
            write_shards(partial, tensors, shard_bytes)
            _write_settings(model_dir, partial, layout.tied)
            partial.chmod(0o755)
            require_new(folder)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        progress.close()


def _write_settings(model_dir: Path, folder: Path, tied: bool) -> None:
    settings = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    settings |= {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": tied}
    write_new_text(folder / "config.json", json.dumps(settings, indent=2, ensure_ascii=False))
    for name in _COPIED:
        if (model_dir / name).is_file():
            shutil.copyfile(model_dir / name, folder / name)


def _tensor(
    dat: DatFile, layout: Layout, name: str, shape: tuple[int, ...], progress: ByteProgress
) -> TensorToWrite:
    if name in layout.plain:
        dtype = TORCH_DTYPES[layout.plain[name]]
    else:
        exact = layout.bundles[name] is ScaleFormat.E4M3 and name not in layout.two_level
        dtype = torch.bfloat16 if exact else torch.float32

    def chunks() -> Iterator[memoryview]:
        entry = name + TWO_LEVEL if name in layout.two_level else name
        for rows in row_slices(shape[0], shape[1] if len(shape) > 1 else 1):
            if name in layout.plain:
                values = dat.tensor(name, rows)
                progress.add(values.nbytes)
            else:
                values = bundle_values(dat, entry, rows, dtype, torch.device("cpu"))
                progress.add(values.numel() * 9 // 16)  # half a byte a code, a sixteenth a scale
            yield tensor_bytes(values)

    return TensorToWrite(name, shape, dtype, chunks)
