"""Peak memory of a training as arithmetic on the shape of a model. `stages.estimate` is its command line.

No torch. A training takes one of two paths (`stages.memory.limits.plain_path_settings`):
- engine: on CUDA; the estimate is the peak itself,
- plain: on a CPU, and on CUDA with `grad_accum` > 1, float32 states or `loss scalar`. The estimate is a lower
  bound: masters, states, rounded weights, and gradients that wait for the last batch of a step. Activations
  come on top.

Components of the engine's peak:
- weights: scale bytes that stay between forward and backward, and the ring buffers of rounded weights and of
  gradients, which all layers share,
- masters,
- states: of the optimizer, 8-bit codes with a float32 scale for each 256 elements, and the sums of the update
  ratio,
- gradients: outside the ring buffer, partial sums,
- activations: what all layers save, and the most that one layer has in addition,
- logits: one chunk, or all of them where they are few, as far as that exceeds the layers' own peak,
- workspace: cuBLAS and attention.
Slack is what the allocator reserves in addition, because it rounds blocks up.

The plain path without checkpointing: every layer's rounded weight, in the compute dtype, waits for the
backward pass; layers that are not trained keep theirs. On a CPU states take memory from their first update
on: in the first step that is after the first rounded weights were freed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from stages.contract.recipe import ComputeDtype, LossKind, OptimizerStateMode, Rounding
from stages.memory import limits

GIB = 2**30
_WORKSPACE = 160 << 20
"""cuBLAS workspaces (:4096:8 is 32 MiB, for each stream that multiplies) and the small tables; measured on an
H200 with torch 2.11.
"""
_SLACK = 0.01
"""Share of the peak that is reserved in addition; measured on the same: 0.2 to 1.3 %."""
COMPONENTS = ("weights", "masters", "states", "gradients", "activations", "logits", "workspace")


class TrainingPath(StrEnum):
    """What computes a step: `stages.engine`, or autograd."""

    ENGINE = "engine"
    PLAIN = "plain"


@dataclass(frozen=True)
class Shape:
    """The numbers of a `config.json` that decide memory."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def layer(self) -> int:
        """Elements of one layer's matrices."""
        return self.hidden * (2 * (self.heads + self.kv_heads) * self.head_dim + 3 * self.intermediate)

    @property
    def norms(self) -> int:
        """Elements of one layer's norms."""
        return 2 * self.hidden + 2 * self.head_dim

    @property
    def largest_weight(self) -> int:
        """See `limits.largest_weight`."""
        return limits.largest_weight(self.hidden, self.intermediate, self.heads, self.kv_heads, self.head_dim)


@dataclass(frozen=True)
class Options:
    """The settings of a request that decide memory."""

    batch: int = 16
    seq_len: int = 192
    tied: bool = True
    checkpointing: bool = False
    train_last_layers: int = 0
    steps: int = 2
    """0, 1, or more: the peak is the same from the second step on."""
    device: str = "cuda"
    """`cuda` or `cpu`."""
    grad_accum: int = 1
    optimizer_state_mode: OptimizerStateMode = OptimizerStateMode.INT8
    loss: LossKind = LossKind.CE
    compute_dtype: ComputeDtype = ComputeDtype.AUTO
    """Decides memory on the plain path; the engine's figures are for 16 bits."""
    rounding: Rounding = Rounding.STOCHASTIC

    @property
    def plain_path_settings(self) -> dict[str, str]:
        """See `limits.plain_path_settings`."""
        return limits.plain_path_settings(self.device, self.grad_accum, self.optimizer_state_mode, self.loss)

    @property
    def master_bytes(self) -> float:
        """Bytes of one parameter's master."""
        return 4.0 if self.rounding is Rounding.FP32 else 2.0

    @property
    def path(self) -> TrainingPath:
        """The path that a training with these options takes."""
        return TrainingPath.PLAIN if self.plain_path_settings else TrainingPath.ENGINE


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
    """True if the peak is at least, not about, this much."""

    @property
    def peak(self) -> float:
        """Most bytes that are allocated at once."""
        return sum(getattr(self, key) for key in COMPONENTS)

    @property
    def slack(self) -> float:
        """Bytes that the allocator reserves in addition; 0 for a lower bound, because none are certain."""
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
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads",
    )  # fmt: skip
    missing = [name for name in names if not isinstance(data.get(name), int)]
    if missing:
        raise ValueError(f"{path}: no whole number for {', '.join(missing)}: is this a model's config.json?")
    vocab, hidden, intermediate, layers, heads, kv_heads = (data[name] for name in names)
    head_dim = data.get("head_dim") or hidden // heads
    shape = Shape(vocab, hidden, intermediate, layers, heads, kv_heads, head_dim)
    return shape, bool(data.get("tie_word_embeddings", False))


def estimate(shape: Shape, options: Options, path: TrainingPath | None = None) -> Estimate:
    """Memory of a training on the given path, or on the one that its options lead to."""
    if (path or options.path) is TrainingPath.PLAIN:
        return _plain(shape, options)
    return _engine(shape, options)


@dataclass(frozen=True)
class _Elements:
    """Numbers of elements."""

    embedding: int
    unrounded: int
    rounded: int
    trained: int
    trained_layers: int

    @property
    def all(self) -> int:
        """Parameters of the model."""
        return self.unrounded + self.rounded


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
    float32 = options.compute_dtype is ComputeDtype.FP32 or (
        options.compute_dtype is ComputeDtype.AUTO and options.device == "cpu"
    )
    width = 4 if float32 else 2
    # A tied head is the master itself if it has the compute dtype.
    head = width * e.embedding if float32 or not options.tied else 0
    frozen = width * (shape.layers - e.trained_layers) * shape.layer
    if options.checkpointing:
        forward = frozen + max(head, width * shape.layer)
    else:
        forward = frozen + width * e.trained_layers * shape.layer + head
    state_bytes = 8.0 if options.optimizer_state_mode is OptimizerStateMode.FP32 else _state_bytes()
    states = e.trained * state_bytes
    states_in_forward = states if options.device == "cuda" or options.steps > 1 else 0.0
    gradients = options.master_bytes * e.trained if options.grad_accum > 1 else 0.0
    moments = [(0.0, 0.0, 0.0)]
    if options.steps:
        moments = [(float(forward), states_in_forward, gradients), (float(frozen), states, 0.0)]
    weights, states, gradients = max(moments, key=sum)
    masters = options.master_bytes * e.all
    return Estimate(e.all, weights, masters, states, gradients, 0.0, 0.0, 0.0, lower_bound=True)


def _state_bytes() -> float:
    """Of one parameter in 8-bit states: two codes, and its share of two float32 scales."""
    return 2 + 8 / limits.STATE_BLOCK


def _engine(shape: Shape, options: Options) -> Estimate:
    e, buffer = _elements(shape, options), shape.largest_weight
    n = options.batch * limits.padded_length(options.seq_len - 1)  # the last token of a row is only a target
    saving_layers = shape.layers if options.tied or not options.train_last_layers else e.trained_layers
    saved, extra = _activations(shape, n)
    all_saved = saving_layers * saved
    if options.checkpointing:
        all_saved = saving_layers * 2 * n * shape.hidden + saved
    rows = limits.head_chunk_rows(shape.vocab, shape.hidden, buffer, options.batch * options.seq_len)
    head = 2 * n * rows + 2 * 4 * n * shape.hidden
    all_logits = 2 * n * shape.vocab if limits.caches_logits(n, shape.vocab, buffer) else 0
    if options.tied and not options.train_last_layers:
        extra += all_logits  # they wait for the embedding's gradient
    before_layers = all_saved - (saved if options.checkpointing else 0)
    peak = max(all_saved + extra, before_layers + head + all_logits)
    rings = 2 * limits.RING_SLOTS * 2 * buffer
    return Estimate(
        parameters=e.all,
        weights=e.rounded / limits.NVFP4_BLOCK + rings,
        masters=options.master_bytes * e.all,
        states=e.trained * (_state_bytes() + 8 / limits.UPDATE_CHUNK),
        gradients=min(n, limits.MAX_PARTIAL_SUMS) * shape.hidden * 4,
        activations=min(peak, all_saved + extra),
        logits=max(0.0, peak - all_saved - extra),
        workspace=_WORKSPACE,
    )


def _activations(shape: Shape, n: int) -> tuple[float, float]:
    """Bytes that one layer saves for n positions, and that its backward pass adds."""
    q, k = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    saved = 2 * n * (2 * shape.hidden + (q + 2 * k) + (q + k) + q + 2 * shape.intermediate)
    saved += 4 * n * shape.heads
    extra = 2 * n * (2 * shape.hidden + 2 * shape.intermediate)
    return saved, extra
