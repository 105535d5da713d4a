"""Between a weight file and a model: which entries there are, what they hold, and what is written back.

Two ways in, as the user checks weights: `bridge` uses the values as stored, `fp2` builds BF16 masters and
rounds them to NVFP4 in the forward pass, which is what training does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from stages.contract import ComputeDtype, InferencePath, ScaleRule
from stages.nvfp4.codec import Bundle, ScaleFormat, encode_onto
from stages.nvfp4.linear import Linear
from stages.qwen3.config import Qwen3Config
from stages.qwen3.model import Qwen3
from stages.weights.bundles import (
    QDATA,
    SCALE_FORMATS,
    TWO_LEVEL,
    bundle_problems,
    bundle_values,
    read_bundle,
)
from stages.weights.dat import DatFile, ElemType, Payload, WrittenFile, rewrite, tensor_bytes

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
_DTYPES = {
    ComputeDtype.BF16: torch.bfloat16,
    ComputeDtype.FP16: torch.float16,
    ComputeDtype.FP32: torch.float32,
}
_FLOATS = (ElemType.FLOAT16, ElemType.BFLOAT16, ElemType.FLOAT32, ElemType.FLOAT64)
_DECODED_ELEMENTS = 1 << 24  # decoded or encoded at a time: bounds the temporaries of loading and export


def torch_dtype(compute_dtype: ComputeDtype, device: torch.device) -> torch.dtype:
    """The dtype that a request means on a device."""
    if compute_dtype is ComputeDtype.AUTO:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[compute_dtype]


class WeightError(ValueError):
    """A weight file that does not fit the model. `problems` lists every mismatch."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(
            f"{path}: does not fit the config, {len(problems)} problem(s)\n"
            + "\n".join(f"  - {f}" for f in problems)
        )


@dataclass(frozen=True)
class Layout:
    """Where a model's parameters stand in a weight file."""

    tied: bool
    """True if the file has no head of its own."""
    bundles: dict[str, ScaleFormat]
    """Parameters stored as NVFP4, with the format of their scales."""
    plain: dict[str, ElemType]
    """Parameters stored as numbers."""
    two_level: frozenset[str] = frozenset()
    """Those of `bundles` that have a scale of the tensor too. They can be used, not trained."""

    @property
    def names(self) -> list[str]:
        """All parameter names."""
        return [*self.bundles, *self.plain]


def parameter_shapes(config: Qwen3Config, tied: bool) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in the model's order, without building the model."""
    with torch.device("meta"):
        model = Qwen3(config, tied)
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def layout_of(dat: DatFile, config: Qwen3Config) -> Layout:
    """Finds every parameter of `config` in `dat`.

    Raises:
        WeightError: listing every entry that is missing or of a wrong shape or type. Entries that are not
            known are passed over.
    """
    tied = not any(HEAD + suffix in dat.entries for suffix in ("", QDATA, TWO_LEVEL + QDATA))
    problems: list[str] = []
    bundles: dict[str, ScaleFormat] = {}
    plain: dict[str, ElemType] = {}
    two_level = set()
    if tied and not config.tie_word_embeddings:
        problems.append(f"{HEAD}: missing, and config.json says the head is not tied to the embedding")
    for name, shape in parameter_shapes(config, tied).items():
        if name + QDATA in dat.entries:
            bundles[name] = _check_bundle(dat, name, shape, problems)
        elif name + TWO_LEVEL + QDATA in dat.entries:
            bundles[name] = _check_bundle(dat, name + TWO_LEVEL, shape, problems)
            two_level.add(name)
        elif name in dat.entries:
            plain[name] = _check_plain(dat, name, shape, problems)
        else:
            problems.append(f"{name}: missing, neither as {name} nor as {name}.qdata")
    if problems:
        raise WeightError(dat.path, problems)
    return Layout(tied, bundles, plain, frozenset(two_level))


def _check_plain(dat: DatFile, name: str, shape: tuple[int, ...], problems: list[str]) -> ElemType:
    entry = dat.entries[name]
    if entry.shape != shape:
        problems.append(f"{name}: shape {list(entry.shape)}, config.json asks for {list(shape)}")
    if entry.elem_type not in _FLOATS:
        problems.append(f"{name}: element type {entry.elem_type.name}, a floating-point type is needed")
    return entry.elem_type


def _check_bundle(dat: DatFile, name: str, shape: tuple[int, ...], problems: list[str]) -> ScaleFormat:
    found = bundle_problems(dat, name, shape)
    problems += found
    return ScaleFormat.E4M3 if found else SCALE_FORMATS[dat.entries[f"{name}.scale"].elem_type]


def row_slices(rows: int, columns: int) -> Iterator[slice]:
    """Cuts [rows, columns] into pieces whose temporaries are small."""
    step = max(1, _DECODED_ELEMENTS // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def stored_values(
    dat: DatFile, layout: Layout, name: str, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The values of a parameter as the file has them, in `dtype` on `device`. Temporaries are bounded."""
    if name in layout.plain:
        return dat.tensor(name).to(device=device, dtype=dtype)
    entry = name + TWO_LEVEL if name in layout.two_level else name
    rows, half = dat.entries[entry + QDATA].shape
    out = torch.empty(rows, half * 2, dtype=dtype, device=device)
    for piece in row_slices(rows, half * 2):
        out[piece] = bundle_values(dat, entry, piece, dtype, device)
    return out


def master_values(
    dat: DatFile, layout: Layout, name: str, device: torch.device, wide: bool = False
) -> torch.Tensor:
    """A parameter's master: float32 if `wide`, else BF16, which holds NVFP4 with E4M3 scales and float16 that
    came from BF16.

    An entry that BF16 cannot hold exactly (plain, or with float scales) gets a float32 master, because
    rounding it would change the model before step 1.
    """
    if layout.bundles.get(name) is ScaleFormat.E4M3 and not wide:
        return stored_values(dat, layout, name, torch.bfloat16, device)
    values = stored_values(dat, layout, name, torch.float32, device)
    rounded = values.bfloat16()
    return rounded if not wide and torch.equal(rounded.float(), values) else values


def load_model(
    dat: DatFile,
    config: Qwen3Config,
    *,
    path: InferencePath,
    rule: ScaleRule,
    compute_dtype: ComputeDtype,
    device: torch.device,
    wide_masters: bool = False,
) -> tuple[Qwen3, Layout]:
    """Builds the model of a weight file.

    Args:
        path: `bridge` for the stored values in the compute dtype; `fp2` for masters with NVFP4 rounding by
            `rule`.
        wide_masters: Whether all masters of `fp2` are float32.

    Raises:
        WeightError: see `layout_of`; also for `fp2` of a file in two levels.
        DatError: if a scale is NaN.
    """
    layout = layout_of(dat, config)
    if layout.two_level and path is InferencePath.FP2:
        remedy = "two scale levels can be used but not trained: make a one-level file with `python -m stages.convert`"
        raise WeightError(dat.path, [f"{name}: {remedy}" for name in sorted(layout.two_level)])
    with torch.device("meta"):
        model = Qwen3(config, layout.tied)
    model.compute_dtype = torch_dtype(compute_dtype, device)
    for name in dict(model.named_parameters()):
        if path is InferencePath.FP2:
            values = master_values(dat, layout, name, device, wide_masters)
        else:
            values = stored_values(dat, layout, name, model.compute_dtype, device)
        owner = model.get_submodule(name.rpartition(".")[0])
        owner.weight = torch.nn.Parameter(values, requires_grad=path is InferencePath.FP2)
        if path is InferencePath.FP2 and name in layout.bundles:
            assert isinstance(owner, Linear)
            owner.rule, owner.scale_format = rule, layout.bundles[name]
    return model, layout


def export(
    source: DatFile, layout: Layout, masters: dict[str, torch.Tensor], rule: ScaleRule, path: Path
) -> WrittenFile:
    """Writes `source` again with trained masters in place of their entries; see `stages.weights.dat.rewrite`.

    Blocks and values that training left as they were keep the source's very bytes, so an export after 0 steps
    is the source. Memory is bounded by one entry.

    Args:
        masters: Trained parameters by name.
    """
    replaced: dict[str, Payload] = {}
    for name, master in masters.items():
        if name in layout.bundles:
            pair = _Pair(source, name, master, rule)
            replaced[f"{name}.qdata"], replaced[f"{name}.scale"] = pair.codes, pair.scales
        else:
            replaced[name] = partial(_plain, source, name, master)
    return rewrite(source, path, replaced)


@dataclass
class _Pair:
    """Codes and scales of one weight, two entries of the file. The scales, an eighth of the codes, wait from
    one to the other.
    """

    source: DatFile
    name: str
    master: torch.Tensor
    rule: ScaleRule
    _scales: list[torch.Tensor] = field(default_factory=list)

    def codes(self) -> Iterator[memoryview]:
        self._scales = []
        for bundle in self._encoded():
            self._scales.append(bundle.scales.cpu())
            yield tensor_bytes(bundle.codes)

    def scales(self) -> Iterator[memoryview]:
        found, self._scales = self._scales, []
        return map(tensor_bytes, found or (bundle.scales for bundle in self._encoded()))

    def _encoded(self) -> Iterator[Bundle]:
        device, pieces = self.master.device, list(row_slices(*self.master.shape))
        for piece, stored in zip(
            pieces, _read_ahead(partial(read_bundle, self.source, self.name), pieces), strict=True
        ):
            yield encode_onto(
                Bundle(stored.codes.to(device), stored.scales.to(device)), self.master[piece], self.rule
            )


def _read_ahead(read: Callable[[slice], Bundle], pieces: list[slice]) -> Iterator[Bundle]:
    """Reads each piece while the one before it is worked on."""
    with ThreadPoolExecutor(1) as beside:
        before: Future[Bundle] | None = None
        for piece in pieces:
            reading = beside.submit(read, piece)
            if before is not None:
                yield before.result()
            before = reading
        if before is not None:
            yield before.result()


def _plain(source: DatFile, name: str, master: torch.Tensor) -> Iterator[memoryview]:
    stored = source.tensor(name).to(master.device)
    kept = stored.to(master.dtype) == master
    yield tensor_bytes(torch.where(kept, stored, master.to(stored.dtype)))
