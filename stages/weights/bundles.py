"""NVFP4 bundles as entries of a weight file: `<name>.qdata` and `<name>.scale`, or `<name>.two_level.*`.

Two levels are NVIDIA's NVFP4 (value = code × E4M3 block scale × one float32 scale per tensor): block scales
stay clear of E4M3's subnormals, so small weights lose less. The names differ on purpose. A reader that does
not know two levels would skip an extra entry beside `.qdata` and `.scale` and compute with weights that are
wrong by that factor. Under other names it finds no weight at all, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch

from stages.contract.recipe import ScaleRule
from stages.nvfp4.codec import BLOCK, E4M3_LARGEST, Bundle, ScaleFormat, decode, encode
from stages.weights.dat import DatFile, EntryToWrite, Payload, tensor_bytes
from stages.weights.dat_index import DatError, ElemType, Entry, Spec

QDATA, SCALE, TWO_LEVEL, TENSOR_SCALE = ".qdata", ".scale", ".two_level", ".scale_2"
SCALE_FORMATS = {
    ElemType.E4M3: ScaleFormat.E4M3,
    ElemType.FLOAT16: ScaleFormat.FLOAT16,
    ElemType.FLOAT32: ScaleFormat.FLOAT32,
}


def tensor_scale(amax: float) -> float:
    """The float32 tensor scale of two levels: it puts the largest block scale at E4M3's largest value, 448.

    Args:
        amax: Largest absolute value of the tensor.
    """
    scale = torch.tensor(amax, dtype=torch.float32) / (6.0 * E4M3_LARGEST)
    return float(scale) if float(scale) >= 2.0**-126 else 1.0


def encode_two_level(weight: torch.Tensor, scale: float, rule: ScaleRule) -> Bundle:
    """Codes and E4M3 block scales of `weight` [out, in] under a tensor scale."""
    return encode(weight.float() / scale, rule)


def bundle_payloads(chunks: Callable[[], Iterable[Bundle]]) -> tuple[Payload, Payload]:
    """Payloads of the codes and of the scales of one weight.

    Scales are a ninth of the bytes: they wait in memory from one payload to the other. Where the scales are
    written first, the weight is encoded twice.

    Args:
        chunks: Makes the bundles of successive rows.
    """
    waiting: list[torch.Tensor] = []

    def codes() -> Iterator[memoryview]:
        waiting.clear()
        for bundle in chunks():
            waiting.append(bundle.scales.cpu())
            yield tensor_bytes(bundle.codes)

    def scales() -> Iterator[memoryview]:
        if not waiting:
            yield from (tensor_bytes(bundle.scales) for bundle in chunks())
        while waiting:
            yield tensor_bytes(waiting.pop(0))

    return codes, scales


def bundle_entries(
    name: str,
    shape: tuple[int, ...],
    chunks: Callable[[], Iterable[Bundle]],
    two_level: float | None = None,
) -> list[EntryToWrite]:
    """The entries of one weight with E4M3 scales, in file order.

    Args:
        name: The parameter.
        shape: [out, in] of the weight.
        chunks: Makes the bundles of successive rows.
        two_level: The tensor scale of a weight that is encoded in two levels.
    """
    rows, columns = shape
    codes, scales = bundle_payloads(chunks)
    stem = name if two_level is None else name + TWO_LEVEL
    entries: list[EntryToWrite] = [
        (Spec(stem + QDATA, ElemType.UINT8, (rows, columns // 2)), codes),
        (Spec(stem + SCALE, ElemType.E4M3, (rows, columns // BLOCK)), scales),
    ]
    if two_level is not None:
        value = torch.tensor(two_level, dtype=torch.float32)
        entries.append((Spec(stem + TENSOR_SCALE, ElemType.FLOAT32, ()), lambda: [tensor_bytes(value)]))
    return entries


def bundle_problems(dat: DatFile, name: str, shape: tuple[int, ...] | None = None) -> list[str]:
    """What is wrong with the types and shapes of the bundle `name`, whose `.qdata` exists.

    Args:
        dat: The weight file.
        name: The entry's name without `.qdata`.
        shape: [out, in] by the config; None checks the entries against each other only.
    """
    codes, scales = dat.entries[name + QDATA], dat.entries.get(name + SCALE)
    if shape is None:
        if len(codes.shape) != 2 or codes.shape[1] * 2 % BLOCK:
            needed = f"needs [out, in/2] with in a multiple of {BLOCK}"
            return [f"{name}{QDATA}: shape {list(codes.shape)}, {needed}"]
        shape, source = (codes.shape[0], codes.shape[1] * 2), "its codes ask"
    elif len(shape) != 2:
        wrong = f"a bundle for a parameter of shape {list(shape)}"
        return [f"{name}{QDATA}: {wrong}; only linear weights can be NVFP4"]
    else:
        source = "config.json asks"
    rows, columns = shape

    def problem(entry: Entry, right: ElemType, width: int) -> str:
        found = f"{entry.elem_type.name} {list(entry.shape)}"
        return f"{entry.name}: {found}, {source} for {right.name} {[rows, width]}"

    problems = []
    if codes.shape != (rows, columns // 2) or codes.elem_type not in (ElemType.UINT8, ElemType.RAW):
        problems.append(problem(codes, ElemType.UINT8, columns // 2))
    if scales is None:
        problems.append(f"{name}{SCALE}: missing beside {name}{QDATA}")
    elif scales.shape != (rows, columns // BLOCK) or scales.elem_type not in SCALE_FORMATS:
        problems.append(problem(scales, ElemType.E4M3, columns // BLOCK))
    if name.endswith(TWO_LEVEL):
        top = dat.entries.get(name + TENSOR_SCALE)
        if top is None or top.elem_type is not ElemType.FLOAT32 or math.prod(top.shape) != 1:
            found = "missing" if top is None else top.elem_type.name
            problems.append(f"{name}{TENSOR_SCALE}: {found}, one FLOAT32 number is needed")
    return problems


def read_bundle(dat: DatFile, name: str, rows: slice | None = None) -> Bundle:
    """Codes and scales of a parameter as stored.

    Args:
        dat: The weight file.
        name: The parameter, with `.two_level` where it has two levels.
        rows: Only these rows (step 1).

    Raises:
        DatError: if a scale is NaN or infinite, naming its row, block and offset.
    """
    bundle = Bundle(dat.tensor(name + QDATA, rows), dat.tensor(name + SCALE, rows))
    finite = torch.isfinite(bundle.scales.float())
    if not bool(finite.all()):
        row, block = (int(i) for i in (~finite).nonzero()[0])
        row += rows.start or 0 if rows else 0
        entry = dat.entries[name + SCALE]
        offset = entry.offset + (row * entry.shape[1] + block) * bundle.scales.itemsize
        what = f"scale of row {row}, block {block} is not finite"
        raise DatError(dat.path, offset, f"entry {entry.name!r}", what)
    return bundle


def bundle_values(
    dat: DatFile, name: str, rows: slice, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Values [rows, in] of a bundle, in `dtype` on `device`; for `name` see `read_bundle`."""
    bundle = read_bundle(dat, name, rows)
    bundle = Bundle(bundle.codes.to(device), bundle.scales.to(device))
    if not name.endswith(TWO_LEVEL):
        return decode(bundle, dtype)
    return (decode(bundle) * dat.tensor(name + TENSOR_SCALE).view(()).to(device)).to(dtype)
