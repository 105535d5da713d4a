"""Peak memory of a training before anything is loaded. `python -m stages.estimate CONFIG --batch 8 --seq-len 512 …`

Pure arithmetic on a `config.json` for the CUDA engine (`stages.engine`); no torch. Components:
- weights: scale bytes kept between forward and backward, and the four buffers that all layers share (two weights, two gradients),
- masters, states: of the optimizer, 8-bit codes with a float32 scale each for 256 elements, and the sums of the update ratio,
- gradients: those outside the shared buffer, partial sums included,
- activations: what all layers keep, and the most one layer has besides,
- logits: one piece of the vocabulary, where that is more than the layers' own peak,
- workspace: cuBLAS and attention.
The allocator's slack is what it has reserved beyond: rounding of blocks.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

GIB = 2**30
_WORKSPACE = 40 << 20
"""cuBLAS's workspace (:4096:8 is 32 MiB) and the small tables; measured on an H200 with torch 2.11."""
_SLACK = 0.01
"""Reserved beyond allocated, measured on the same: 0.2 to 1.3 %."""


@dataclass(frozen=True)
class Shape:
    """What of a `config.json` decides memory."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    groups: int
    head_dim: int

    @property
    def layer(self) -> int:
        """Elements of one layer's matrices."""
        return self.hidden * (2 * (self.heads + self.groups) * self.head_dim + 3 * self.intermediate)

    @property
    def norms(self) -> int:
        """Elements of one layer's norms."""
        return 2 * self.hidden + 2 * self.head_dim


@dataclass(frozen=True)
class Options:
    """What of a request decides memory."""

    batch: int = 16
    seq_len: int = 192
    tied: bool = True
    checkpointing: bool = False
    train_last_layers: int = 0


@dataclass(frozen=True)
class Estimate:
    """Bytes by component."""

    parameters: int
    weights: float
    masters: float
    states: float
    gradients: float
    activations: float
    logits: float
    workspace: float

    @property
    def peak(self) -> float:
        """Most that is allocated at once."""
        return sum(value for key, value in asdict(self).items() if key != "parameters")

    @property
    def slack(self) -> float:
        """What the allocator reserves beyond."""
        return self.peak * _SLACK

    def report(self) -> dict[str, float]:
        """All figures: bytes a parameter, and GiB by component."""
        out = {f"{key}_gib": value / GIB for key, value in asdict(self).items() if key != "parameters"}
        out |= {"peak_gib": self.peak / GIB, "slack_gib": self.slack / GIB, "total_gib": (self.peak + self.slack) / GIB}
        fixed = self.weights + self.masters + self.states
        return {"parameters": float(self.parameters), "bytes_per_parameter": fixed / self.parameters} | out


def read_shape(path: Path) -> tuple[Shape, bool]:
    """The shape of a `config.json`, and whether it says that the head is tied.

    Raises:
        ValueError: naming the missing key.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    missing = [name for name in names if not isinstance(data.get(name), int)]
    if missing:
        raise ValueError(f"{path}: no whole number for {', '.join(missing)}: is this a model's config.json?")
    numbers = [data[name] for name in names]
    vocab, hidden, intermediate, layers, heads, groups = numbers
    return Shape(vocab, hidden, intermediate, layers, heads, groups, data.get("head_dim") or hidden // heads), bool(
        data.get("tie_word_embeddings", False)
    )


def estimate(shape: Shape, options: Options) -> Estimate:
    """Memory of a training step by the engine."""
    embedding = shape.vocab * shape.hidden
    plain = embedding + shape.layers * shape.norms + shape.hidden
    rounded = shape.layers * shape.layer + (0 if options.tied else embedding)
    trained_layers = min(options.train_last_layers or shape.layers, shape.layers)
    trained = trained_layers * (shape.layer + shape.norms) + shape.hidden + embedding
    if not options.tied and not options.train_last_layers:
        trained += embedding
    group = shape.hidden * max((shape.heads + 2 * shape.groups) * shape.head_dim, 2 * shape.intermediate)
    n = options.batch * -(-(options.seq_len - 1) // 32) * 32
    through = shape.layers if options.tied or not options.train_last_layers else trained_layers
    kept, one = _activations(shape, n)
    passing = through * 2 * n * shape.hidden + kept if options.checkpointing else through * kept
    piece = min(shape.vocab, group // shape.hidden, 2 * group // (options.batch * options.seq_len)) // 64 * 64
    head = 2 * n * piece + 2 * 4 * n * shape.hidden
    before_layers = passing - (kept if options.checkpointing else 0)
    peak = max(passing + one, before_layers + head)
    return Estimate(
        parameters=rounded + plain,
        weights=rounded / 16 + 4 * 2 * group,
        masters=2.0 * (rounded + plain),
        states=trained * (2 + 8 / 256 + 8 / 1024),
        gradients=min(n, 512) * shape.hidden * 4,
        activations=min(peak, passing + one),
        logits=max(0.0, peak - passing - one),
        workspace=_WORKSPACE,
    )


def _activations(shape: Shape, n: int) -> tuple[float, float]:
    """Bytes that one layer keeps for n positions, and that its backward adds."""
    q, k = shape.heads * shape.head_dim, shape.groups * shape.head_dim
    kept = 2 * n * (2 * shape.hidden + (q + 2 * k) + (q + k) + q + 2 * shape.intermediate) + 4 * n * shape.heads
    one = 2 * n * (2 * shape.hidden + 2 * shape.intermediate)
    return kept, one


def fitting(shape: Shape, options: Options, limit_gb: float) -> list[tuple[str, Options, Estimate]]:
    """Changes of the options that stay under a limit (GiB), the mildest first: checkpointing, smaller batches, fewer layers."""
    out: list[tuple[str, Options, Estimate]] = []
    candidates = [("as asked", options), ("gradient_checkpointing=true", replace(options, checkpointing=True))]
    batch = options.batch // 2
    while batch:
        candidates.append((f"gradient_checkpointing=true batch_size={batch}", replace(options, checkpointing=True, batch=batch)))
        batch //= 2
    for layers in (shape.layers // 2, shape.layers // 4, 1):
        if layers:
            changed = replace(options, checkpointing=True, batch=1, train_last_layers=layers)
            candidates.append((f"gradient_checkpointing=true batch_size=1 train_last_layers={layers}", changed))
    for words, changed in candidates:
        found = estimate(shape, changed)
        if found.peak + found.slack <= limit_gb * GIB:
            out.append((words, changed, found))
    return out


def table(found: Estimate) -> str:
    """The figures as aligned text."""
    report = found.report()
    lines = [f"{'parameters':<22}{found.parameters:>14,}", f"{'bytes a parameter':<22}{report['bytes_per_parameter']:>14.3f}"]
    lines += [f"{key.removesuffix('_gib'):<22}{value:>10.3f} GiB" for key, value in report.items() if key.endswith("_gib")]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """The command line; exit code 1 if a limit is given and nothing fits it."""
    parser = argparse.ArgumentParser(description="Peak memory of a training, before anything is loaded.")
    parser.add_argument("config", type=Path, help="a config.json or its folder")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=192)
    parser.add_argument("--train-last-layers", type=int, default=0)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--head", choices=("config", "tied", "own"), default="config", help="whether the weight file has a head of its own")
    parser.add_argument("--limit-gb", type=float, default=0.0, help="name the mildest recipe that fits (GiB)")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args(argv)
    path = a.config / "config.json" if a.config.is_dir() else a.config
    try:
        shape, says_tied = read_shape(path)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    tied = says_tied if a.head == "config" else a.head == "tied"
    options = Options(a.batch, a.seq_len, tied, a.checkpointing, a.train_last_layers)
    found = estimate(shape, options)
    fits = fitting(shape, options, a.limit_gb) if a.limit_gb else []
    if a.json:
        record: dict[str, object] = {"options": asdict(options), **found.report()}
        if a.limit_gb:
            record |= {"limit_gib": a.limit_gb, "fits": fits[0][0] if fits else None}
        sys.stdout.write(json.dumps(record, indent=1) + "\n")
    else:
        sys.stdout.write(table(found))
        if a.limit_gb:
            sys.stdout.write(f"under {a.limit_gb:g} GiB: {fits[0][0] if fits else 'nothing that this model can be trained with'}\n")
    return 1 if a.limit_gb and not fits else 0


if __name__ == "__main__":
    sys.exit(main())
