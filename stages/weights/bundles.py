"""NVFP4 bundles as entries of a weight file: `<name>.qdata` and `<name>.scale`, or in two levels
`<name>.two_level.*`.

Two levels are NVIDIA's NVFP4 (value = code × E4M3 block scale × one float32 scale a tensor): block scales
keep clear of E4M3's subnormals, which costs small weights less. The names differ on purpose. An extra entry
beside `.qdata` and `.scale` would be skipped by readers that do not know it, and they would then compute with
weights that are wrong by that factor; the block scales cannot mean the right thing with and without it. Under
other names such a reader finds no weight at all, and cannot be mistaken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch

from stages.contract import ScaleRule
from stages.nvfp4.codec import BLOCK, E4M3_LARGEST, Bundle, ScaleFormat, decode, encode
from stages.weights.dat import DatError, DatFile, ElemType, Payload, Spec, tensor_bytes

QDATA, SCALE, TWO_LEVEL, TENSOR_SCALE = ".qdata", ".scale", ".two_level", ".scale_2"
SCALE_FORMATS = {
    ElemType.E4M3: ScaleFormat.E4M3,
    ElemType.FLOAT16: ScaleFormat.FLOAT16,
    ElemType.FLOAT32: ScaleFormat.FLOAT32,
}
Item = tuple[Spec, Payload]


def tensor_scale(amax: float) -> float:
    """The float32 scale of a tensor in two levels: it puts the largest block scale at E4M3's largest value,
    448.
    """
    scale = torch.tensor(amax, dtype=torch.float32) / (6.0 * E4M3_LARGEST)
    return float(scale) if float(scale) >= 2.0**-126 else 1.0


def encode_two_level(weight: torch.Tensor, scale: float, rule: ScaleRule) -> Bundle:
    """Codes and E4M3 block scales of `weight` [out, in] under a tensor scale."""
    return encode(weight.float() / scale, rule)


def bundle_items(
    name: str, shape: tuple[int, ...], pieces: Callable[[], Iterable[Bundle]], two_level: float | None = None
) -> list[Item]:
    """The entries of one weight with E4M3 scales, to be written one after the other.

    Args:
        name: The parameter.
        shape: [out, in] of the weight.
        pieces: Makes the bundles of successive rows; called once. The scales, a ninth of the bytes, wait in
            memory meanwhile.
        two_level: The tensor scale of a weight encoded in two levels.
    """
    rows, columns = shape
    waiting: list[torch.Tensor] = []

    def codes() -> Iterator[memoryview]:
        for bundle in pieces():
            waiting.append(bundle.scales)
            yield tensor_bytes(bundle.codes)

    def scales() -> Iterator[memoryview]:
        while waiting:
            yield tensor_bytes(waiting.pop(0))

    stem = name if two_level is None else name + TWO_LEVEL
    items: list[Item] = [
        (Spec(stem + QDATA, ElemType.UINT8, (rows, columns // 2)), codes),
        (Spec(stem + SCALE, ElemType.E4M3, (rows, columns // BLOCK)), scales),
    ]
    if two_level is not None:
        value = torch.tensor(two_level, dtype=torch.float32)
        items.append((Spec(stem + TENSOR_SCALE, ElemType.FLOAT32, ()), lambda: [tensor_bytes(value)]))
    return items


def bundle_problems(dat: DatFile, name: str, shape: tuple[int, ...] | None = None) -> list[str]:
    """What is wrong with the types and shapes of the bundle `name`, whose `.qdata` exists.

    Args:
        shape: What the config asks for; None checks the entries against each other only.
    """
    codes, scales = dat.entries[name + QDATA], dat.entries.get(name + SCALE)
    if shape is None:
        if len(codes.shape) != 2 or codes.shape[1] * 2 % BLOCK:
            return [
                f"{name}{QDATA}: shape {list(codes.shape)}, needs [out, in/2] with in a multiple of {BLOCK}"
            ]
        rows, columns, who = codes.shape[0], codes.shape[1] * 2, "its codes ask"
    elif len(shape) != 2:
        return [
            f"{name}{QDATA}: a bundle for a parameter of shape {list(shape)}; only linear weights can be NVFP4"
        ]
    else:
        (rows, columns), who = shape, "config.json asks"
    problems = []
    if codes.shape != (rows, columns // 2) or codes.elem_type not in (ElemType.UINT8, ElemType.RAW):
        problems.append(
            f"{name}{QDATA}: {codes.elem_type.name} {list(codes.shape)}, {who} for UINT8 {[rows, columns // 2]}"
        )
    if scales is None:
        problems.append(f"{name}{SCALE}: missing beside {name}{QDATA}")
    elif scales.shape != (rows, columns // BLOCK) or scales.elem_type not in SCALE_FORMATS:
        problems.append(
            f"{name}{SCALE}: {scales.elem_type.name} {list(scales.shape)}, {who} for E4M3 {[rows, columns // BLOCK]}"
        )
    if name.endswith(TWO_LEVEL):
        top = dat.entries.get(name + TENSOR_SCALE)
        if top is None or top.elem_type is not ElemType.FLOAT32 or math.prod(top.shape) != 1:
            problems.append(
                f"{name}{TENSOR_SCALE}: {'missing' if top is None else top.elem_type.name}, one FLOAT32 number is needed"
            )
    return problems


def read_bundle(dat: DatFile, name: str, rows: slice | None = None) -> Bundle:
    """Codes and scales of a parameter as stored.

    Raises:
        DatError: if a scale is NaN or infinite, naming its row, block and offset: no value follows from it.
    """
    bundle = Bundle(dat.tensor(name + QDATA, rows), dat.tensor(name + SCALE, rows))
    finite = torch.isfinite(bundle.scales.float())
    if not bool(finite.all()):
        row, block = (int(i) for i in (~finite).nonzero()[0])
        row += rows.start or 0 if rows else 0
        entry = dat.entries[name + SCALE]
        offset = entry.offset + (row * entry.shape[1] + block) * bundle.scales.itemsize
        raise DatError(
            dat.path, offset, f"entry {entry.name!r}", f"scale of row {row}, block {block} is not finite"
        )
    return bundle


def bundle_values(
    dat: DatFile, name: str, rows: slice, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Values of rows of a bundle (`name` ends in `.two_level` where it is one), in `dtype` on `device`."""
    bundle = read_bundle(dat, name, rows)
    bundle = Bundle(bundle.codes.to(device), bundle.scales.to(device))
    if not name.endswith(TWO_LEVEL):
        return decode(bundle, dtype)
    return (decode(bundle) * dat.tensor(name + TENSOR_SCALE).view(()).to(device)).to(dtype)
