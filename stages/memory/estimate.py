"""The command `python -m stages.estimate CONFIG --batch 8 …`: peak memory of a training, what fits a limit.

`stages.memory.memory_model` says what is counted. No torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stages.contract.recipe import ComputeDtype, LossKind, OptimizerStateMode, Rounding
from stages.memory.memory_model import GIB, Estimate, Options, Shape, TrainingPath, estimate, read_shape
from stages.weights.dat_index import read_index

_HEAD = "lm_head.weight"


def fitting(shape: Shape, options: Options, limit_gb: float) -> list[tuple[str, Options, Estimate]]:
    """Changes of the options that stay under a limit (GiB), the mildest first.

    In this order: checkpointing; settings that allow the engine (CUDA) or lighten the plain path; smaller
    batches (engine); fewer layers. Each is named by its recipe settings, `gradient_checkpointing=true
    batch_size=4`, or `as asked` if nothing changes.
    """
    out: list[tuple[str, Options, Estimate]] = []
    for change in _candidates(shape, options):
        changed = replace(options, **change.options)
        found = estimate(shape, changed)
        if found.peak + found.slack <= limit_gb * GIB:
            out.append((" ".join(change.settings) or "as asked", changed, found))
    return out


@dataclass(frozen=True)
class _Change:
    """Options that change, and the recipe settings that change them."""

    options: dict[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()

    def with_option(self, setting: str, **options: Any) -> _Change:
        return _Change(self.options | options, (*self.settings, setting))


def _candidates(shape: Shape, options: Options) -> list[_Change]:
    as_asked = light = _Change()
    if options.grad_accum > 1:
        light = light.with_option("grad_accum=1", grad_accum=1)
    if options.optimizer_state_mode is not OptimizerStateMode.INT8:
        light = light.with_option("optimizer_state_mode=int8", optimizer_state_mode=OptimizerStateMode.INT8)
    if options.loss is not LossKind.CE and options.device == "cuda":
        light = light.with_option("loss=ce", loss=LossKind.CE)
    out = [as_asked] + ([light] if light.settings else [])
    smallest = light
    if not options.checkpointing:
        out += [c.with_option("gradient_checkpointing=true", checkpointing=True) for c in out]
        smallest = out[-1]
    engine = replace(options, **smallest.options).path is TrainingPath.ENGINE
    batch = options.batch // 2
    while batch and engine:
        out.append(smallest.with_option(f"batch_size={batch}", batch=batch))
        batch //= 2
    if engine and options.batch > 1:
        smallest = out[-1]
    most = options.train_last_layers or shape.layers
    fewer = dict.fromkeys(n for n in (shape.layers // 2, shape.layers // 4, 1) if 0 < n < most)
    return out + [smallest.with_option(f"train_last_layers={n}", train_last_layers=n) for n in fewer]


def table(found: Estimate) -> str:
    """The figures as aligned text."""
    report = found.report()
    lines = ["at least 至少:"] if found.lower_bound else []
    lines.append(f"{'parameters':<22}{found.parameters:>14,}")
    lines.append(f"{'bytes a parameter':<22}{report['bytes_per_parameter']:>14.3f}")
    for key, value in report.items():
        if key.endswith("_gib"):
            lines.append(f"{key.removesuffix('_gib'):<22}{value:>10.3f} GiB")
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Peak memory of a training, before anything is loaded.")
    add = parser.add_argument
    add("config", type=Path, help="a config.json or its folder")
    add("--batch", type=int, default=16)
    add("--seq-len", type=int, default=192)
    add("--train-last-layers", type=int, default=0)
    add("--checkpointing", action="store_true")
    add("--steps", type=int, default=2, help="optimizer steps; a single one may need less on a CPU")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--grad-accum", type=int, default=1)
    add("--optimizer-state-mode", type=OptimizerStateMode, choices=list(OptimizerStateMode), default="int8")
    add("--loss", type=LossKind, choices=list(LossKind), default="ce")
    add("--compute-dtype", type=ComputeDtype, choices=list(ComputeDtype), default="auto")
    rounding_help = "fp32 doubles the masters"
    add("--rounding", type=Rounding, choices=list(Rounding), default="stochastic", help=rounding_help)
    path_help = "auto: the one that these options lead to"
    add("--path", choices=("auto", *TrainingPath), default="auto", help=path_help)
    head_help = "whether the weight file has a head of its own"
    add("--head", choices=("config", "tied", "own"), default="config", help=head_help)
    add("--weight", type=Path, help="the weight file itself: it says whether it has a head of its own")
    add("--limit-gb", type=float, default=0.0, help="name the mildest recipe that fits (GiB)")
    add("--json", action="store_true")
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command line.

    Returns:
        1 if a limit is given and nothing fits it, 2 if the model cannot be read, else 0.
    """
    a = _parser().parse_args(argv)
    path = a.config / "config.json" if a.config.is_dir() else a.config
    try:
        shape, tied = read_shape(path)
        if a.weight:
            tied = not any(name.startswith(_HEAD) for name in read_index(a.weight))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    tied = tied if a.head == "config" else a.head == "tied"
    options = Options(
        a.batch, a.seq_len, tied, a.checkpointing, a.train_last_layers, a.steps, a.device, a.grad_accum,
        a.optimizer_state_mode, a.loss, a.compute_dtype, a.rounding,
    )  # fmt: skip
    chosen = options.path if a.path == "auto" else TrainingPath(a.path)
    found = estimate(shape, options, chosen)
    fits = fitting(shape, options, a.limit_gb) if a.limit_gb else []
    if a.json:
        record: dict[str, object] = {"options": asdict(options), "path": chosen}
        record |= {"plain_because": options.plain_path_settings, "lower_bound": found.lower_bound}
        record |= found.report()
        if a.limit_gb:
            record |= {"limit_gib": a.limit_gb, "fits": fits[0][0] if fits else None}
        sys.stdout.write(json.dumps(record, indent=1) + "\n")
    else:
        sys.stdout.write(table(found))
        if a.limit_gb:
            fit = fits[0][0] if fits else "nothing that this model can be trained with"
            sys.stdout.write(f"under {a.limit_gb:g} GiB: {fit}\n")
    return 1 if a.limit_gb and not fits else 0
