"""Peak memory of a training as arithmetic on the shape of a model. `stages.estimate` is its command line.

No torch. Two paths, as a training takes them (`stages.engine.engine.why_not`):
- engine: on CUDA; the peak itself,
- plain: on a CPU, and on CUDA for `grad_accum` > 1, float32 states and `loss scalar`; a lower bound, what is
  certainly held at one moment: masters, states, rounded weights, and gradients that wait for the last batch
  of a step. Activations come on top.

Components of the engine's peak:
- weights: scale bytes kept between forward and backward, and the memory that all layers share for rounded
  weights and for gradients,
- masters, states: of the optimizer, 8-bit codes with a float32 scale each for 256 elements, and the sums of
  the update ratio,
- gradients: those outside the shared buffer, partial sums included,
- activations: what all layers keep, and the most one layer has besides,
- logits: one piece of the vocabulary, or all of them where they are few, as far as that is more than the
  layers' own peak,
- workspace: cuBLAS and attention.
The allocator's slack is what it has reserved beyond: rounding of blocks.

Of the plain path: without checkpointing every layer's rounded weight, in the compute dtype, waits for the
backward pass; layers that are not trained keep theirs always. On a CPU states take memory from their first
update on: in a first step after the rounded weights have begun to go.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from stages.contract import ComputeDtype, LossKind, OptimizerStateMode, Rounding

GIB = 2**30
_WORKSPACE = 160 << 20
"""cuBLAS's workspaces (:4096:8 is 32 MiB, for each stream that multiplies) and the small tables; measured on
an H200 with torch 2.11.
"""
_ROOM = 3
"""`stages.engine.streams.ROOM`."""
_SLACK = 0.01
"""Reserved beyond allocated, measured on the same: 0.2 to 1.3 %."""
COMPONENTS = ("weights", "masters", "states", "gradients", "activations", "logits", "workspace")


class TrainingPath(StrEnum):
    """Who does a step: `stages.engine`, or autograd."""

    ENGINE = "engine"
    PLAIN = "plain"


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
    steps: int = 2
    """0, 1, or more: all alike from the second on."""
    device: str = "cuda"
    """`cuda` or `cpu`."""
    grad_accum: int = 1
    optimizer_state_mode: OptimizerStateMode = OptimizerStateMode.INT8
    loss: LossKind = LossKind.CE
    compute_dtype: ComputeDtype = ComputeDtype.AUTO
    """Of the plain path; the engine's figures are for 16 bits."""
    rounding: Rounding = Rounding.STOCHASTIC

    @property
    def plain_because(self) -> dict[str, str]:
        """What puts a training on the plain path: recipe key, or `device`, and its value; empty for the
        engine's.
        """
        if self.device == "cpu":
            return {"device": "cpu"}
        asked = {
            "grad_accum": (self.grad_accum, 1),
            "optimizer_state_mode": (self.optimizer_state_mode, OptimizerStateMode.INT8),
        }
        asked |= {"loss": (self.loss, LossKind.CE)}
        return {key: str(value) for key, (value, engine) in asked.items() if value != engine}

    @property
    def master_bytes(self) -> float:
        """Of one parameter's master."""
        return 4.0 if self.rounding is Rounding.FP32 else 2.0

    @property
    def path(self) -> TrainingPath:
        """The one that a training with these options takes."""
        return TrainingPath.PLAIN if self.plain_because else TrainingPath.ENGINE


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
    lower_bound: bool = False
    """True if the peak is at least, not about, that much."""

    @property
    def peak(self) -> float:
        """Most that is allocated at once."""
        return sum(getattr(self, key) for key in COMPONENTS)

    @property
    def slack(self) -> float:
        """What the allocator reserves beyond; none is certain, so a lower bound has none."""
        return 0.0 if self.lower_bound else self.peak * _SLACK

    def report(self) -> dict[str, float]:
        """All figures: bytes a parameter, and GiB by component."""
        out = {f"{key}_gib": getattr(self, key) / GIB for key in COMPONENTS}
        out |= {
            "peak_gib": self.peak / GIB,
            "slack_gib": self.slack / GIB,
            "total_gib": (self.peak + self.slack) / GIB,
        }
        fixed = self.weights + self.masters + self.states
        return {"parameters": float(self.parameters), "bytes_per_parameter": fixed / self.parameters} | out


def read_shape(path: Path) -> tuple[Shape, bool]:
    """The shape of a `config.json`, and whether it says that the head is tied.

    Raises:
        ValueError: naming the missing key.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
    missing = [name for name in names if not isinstance(data.get(name), int)]
    if missing:
        raise ValueError(f"{path}: no whole number for {', '.join(missing)}: is this a model's config.json?")
    numbers = [data[name] for name in names]
    vocab, hidden, intermediate, layers, heads, groups = numbers
    return Shape(
        vocab, hidden, intermediate, layers, heads, groups, data.get("head_dim") or hidden // heads
    ), bool(data.get("tie_word_embeddings", False))


def estimate(shape: Shape, options: Options, path: TrainingPath | None = None) -> Estimate:
    """Memory of a training by the path that its options lead to, or by the one named."""
    if (path or options.path) is TrainingPath.PLAIN:
        return _plain(shape, options)
    return _engine(shape, options)


@dataclass(frozen=True)
class _Elements:
    """Elements by what becomes of them."""

    embedding: int
    unrounded: int
    rounded: int
    trained: int
    trained_layers: int


def _elements(shape: Shape, options: Options) -> _Elements:
    embedding = shape.vocab * shape.hidden
    trained_layers = min(options.train_last_layers or shape.layers, shape.layers)
    trained = trained_layers * (shape.layer + shape.norms) + shape.hidden + embedding
    if not options.tied and not options.train_last_layers:
        trained += embedding
    rounded = shape.layers * shape.layer + (0 if options.tied else embedding)
    return _Elements(
        embedding, embedding + shape.layers * shape.norms + shape.hidden, rounded, trained, trained_layers
    )


def _plain(shape: Shape, options: Options) -> Estimate:
    """What autograd's path certainly holds, at the end of a forward pass or of a step, whichever is more."""
    e = _elements(shape, options)
    wide = options.compute_dtype is ComputeDtype.FP32 or (
        options.compute_dtype is ComputeDtype.AUTO and options.device == "cpu"
    )
    width = 4 if wide else 2
    head = (
        width * e.embedding if wide or not options.tied else 0
    )  # a tied head is the master itself where it has the compute dtype
    still = width * (shape.layers - e.trained_layers) * shape.layer
    waiting = still + (
        max(head, width * shape.layer)
        if options.checkpointing
        else width * e.trained_layers * shape.layer + head
    )
    states = e.trained * (8.0 if options.optimizer_state_mode is OptimizerStateMode.FP32 else 2 + 8 / 256)
    early = states if options.device == "cuda" or options.steps > 1 else 0.0
    gradients = options.master_bytes * e.trained if options.grad_accum > 1 else 0.0
    moments = (
        [(float(waiting), early, gradients), (float(still), states, 0.0)]
        if options.steps
        else [(0.0, 0.0, 0.0)]
    )
    weights, states, gradients = max(moments, key=sum)
    masters = options.master_bytes * (e.rounded + e.unrounded)
    return Estimate(
        e.rounded + e.unrounded, weights, masters, states, gradients, 0.0, 0.0, 0.0, lower_bound=True
    )


def _engine(shape: Shape, options: Options) -> Estimate:
    e = _elements(shape, options)
    group = shape.hidden * max((shape.heads + 2 * shape.groups) * shape.head_dim, 2 * shape.intermediate)
    n = options.batch * -(-(options.seq_len - 1) // 32) * 32
    through = shape.layers if options.tied or not options.train_last_layers else e.trained_layers
    kept, one = _activations(shape, n)
    passing = through * 2 * n * shape.hidden + kept if options.checkpointing else through * kept
    piece = min(shape.vocab, group // shape.hidden, 2 * group // (options.batch * options.seq_len)) // 64 * 64
    head = 2 * n * piece + 2 * 4 * n * shape.hidden
    all_logits = 2 * n * shape.vocab if n * shape.vocab <= group else 0  # kept from the loss to the gradients
    if options.tied and not options.train_last_layers:
        one += all_logits
    before_layers = passing - (kept if options.checkpointing else 0)
    peak = max(passing + one, before_layers + head + all_logits)
    return Estimate(
        parameters=e.rounded + e.unrounded,
        weights=e.rounded / 16 + 2 * _ROOM * 2 * group,
        masters=options.master_bytes * (e.rounded + e.unrounded),
        states=e.trained * (2 + 8 / 256 + 8 / 512),
        gradients=min(n, 512) * shape.hidden * 4,
        activations=min(peak, passing + one),
        logits=max(0.0, peak - passing - one),
        workspace=_WORKSPACE,
    )


def _activations(shape: Shape, n: int) -> tuple[float, float]:
    """Bytes that one layer keeps for n positions, and that its backward adds."""
    q, k = shape.heads * shape.head_dim, shape.groups * shape.head_dim
    kept = (
        2 * n * (2 * shape.hidden + (q + 2 * k) + (q + k) + q + 2 * shape.intermediate) + 4 * n * shape.heads
    )
    one = 2 * n * (2 * shape.hidden + 2 * shape.intermediate)
    return kept, one
