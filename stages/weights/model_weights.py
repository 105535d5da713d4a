"""From a weight file to a model: which entries there are, what they hold, and the model built from them.

There are two inference paths, as the user checks weights: `bridge` uses the values as stored, `fp2` builds
BF16 masters and rounds them to NVFP4 in the forward pass, as training does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from stages.contract.recipe import ComputeDtype, ScaleRule, resolved_dtype
from stages.contract.requests import InferencePath
from stages.nvfp4.codec import ScaleFormat
from stages.nvfp4.linear import Linear
from stages.process.errors import InputProblems
from stages.qwen3.config import Qwen3Config
from stages.qwen3.model import Qwen3
from stages.weights.bundles import QDATA, SCALE, SCALE_FORMATS, TWO_LEVEL, bundle_problems, bundle_values
from stages.weights.dat import DatFile
from stages.weights.dat_index import ElemType

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
_DTYPES = {
    ComputeDtype.BF16: torch.bfloat16,
    ComputeDtype.FP16: torch.float16,
    ComputeDtype.FP32: torch.float32,
}
_FLOATS = (ElemType.FLOAT16, ElemType.BFLOAT16, ElemType.FLOAT32, ElemType.FLOAT64)
_CHUNK_ELEMENTS = 1 << 24  # decoded or encoded at a time: bounds the temporaries of loading and export


def torch_dtype(compute_dtype: ComputeDtype, device: torch.device) -> torch.dtype:
    """The dtype that a request means on a device."""
    return _DTYPES[resolved_dtype(compute_dtype, device.type)]


class WeightError(InputProblems):
    """A weight file that does not fit the model. `problems` lists every mismatch."""

    summary = "does not fit the config, "


@dataclass(frozen=True)
class Layout:
    """How a weight file stores a model's parameters."""

    tied: bool
    """True if the file has no head of its own."""
    bundles: dict[str, ScaleFormat]
    """Parameters stored as NVFP4, with the format of their scales."""
    plain: dict[str, ElemType]
    """Parameters stored as numbers."""
    two_level: frozenset[str] = frozenset()
    """The bundles with a tensor scale too. They can be used, not trained."""

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
        WeightError: listing every entry that is missing or of a wrong shape or type. Unknown entries are
            ignored.
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
            problems.append(f"{name}: missing, neither as {name} nor as {name}{QDATA}")
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
    return ScaleFormat.E4M3 if found else SCALE_FORMATS[dat.entries[name + SCALE].elem_type]


def row_slices(rows: int, columns: int) -> Iterator[slice]:
    """Cuts [rows, columns] into row chunks whose temporaries are small."""
    step = max(1, _CHUNK_ELEMENTS // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def stored_values(
    dat: DatFile, layout: Layout, name: str, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The values of a parameter as stored, in `dtype` on `device`. Temporaries are bounded."""
    if name in layout.plain:
        return dat.tensor(name).to(device=device, dtype=dtype)
    entry = name + TWO_LEVEL if name in layout.two_level else name
    rows, half = dat.entries[entry + QDATA].shape
    out = torch.empty(rows, half * 2, dtype=dtype, device=device)
    for chunk in row_slices(rows, half * 2):
        out[chunk] = bundle_values(dat, entry, chunk, dtype, device)
    return out


def master_values(
    dat: DatFile, layout: Layout, name: str, device: torch.device, wide: bool = False
) -> torch.Tensor:
    """A parameter's master: BF16 where that holds its values exactly and not `wide`, else float32.

    BF16 holds NVFP4 with E4M3 scales, and float16 that came from BF16. Rounding any other entry (plain, or
    with float scales) would change the model before step 1.
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
        dat: The weight file.
        config: The model's shape.
        path: `bridge` for the stored values in the compute dtype; `fp2` for masters with NVFP4 rounding by
            `rule`.
        rule: How block scales are chosen in the forward pass of `fp2`.
        compute_dtype: Of the activations; `auto` is BF16 on a GPU and float32 on a CPU.
        device: Where the parameters go.
        wide_masters: Whether all masters of `fp2` are float32.

    Returns:
        The model and how the file stores it.

    Raises:
        WeightError: see `layout_of`; also for `fp2` of a file with two scale levels.
        DatError: if a scale is NaN.
    """
    layout = layout_of(dat, config)
    if layout.two_level and path is InferencePath.FP2:
        what = "two scale levels can be used but not trained"
        remedy = "make a one-level file with `python -m stages.convert`"
        raise WeightError(dat.path, [f"{name}: {what}: {remedy}" for name in sorted(layout.two_level)])
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
