"""What `pipeline` asks of `stages`: one JSON file per process.

Every path is as the caller wrote it, resolved against the working directory of the process. `check()` of a
request lists all that is wrong with its numbers; whether files exist and fit each other is for the stage to
say, before work begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from stages.contract.command import template_problems
from stages.contract.events import Phase
from stages.contract.offload import offload_problems

WRITE_ROOT = "STAGES_WRITE_ROOT"
"""Environment variable: the folder outside of which a stage refuses to write. Set by whoever starts it; not
part of the request, which may come from elsewhere. It also marks every process of an attempt as such.
"""


class ComputeDtype(StrEnum):
    """The dtype of activations and matrix products. Masters are BF16 whatever is chosen here.

    `AUTO` is BF16 on a GPU and FP32 on a CPU, where BF16 is slower.
    """

    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class OptimizerStateMode(StrEnum):
    """How `exp_avg` and `exp_avg_sq` are kept: 8 bits block-wise, or float32."""

    INT8 = "int8"
    FP32 = "fp32"


class Rounding(StrEnum):
    """How an updated master becomes BF16. `NEAREST` exists to show what it loses; `FP32` keeps float32
    masters.
    """

    STOCHASTIC = "stochastic"
    NEAREST = "nearest"
    FP32 = "fp32"


class Sampling(StrEnum):
    """The order of rows: a new seeded permutation each epoch, or the file's own order."""

    RANDOM = "random"
    SEQUENTIAL = "sequential"


class Overflow(StrEnum):
    """What happens to a row longer than `seq_len`. The answer is never cut."""

    ERROR = "error"
    CUT_PROMPT = "cut_prompt"


class Schedule(StrEnum):
    """The learning rate after warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class LossKind(StrEnum):
    """`CE` trains. `SCALAR` is the mean of the logits: it measures memory and time without a data-dependent
    loss.
    """

    CE = "ce"
    SCALAR = "scalar"


class Template(StrEnum):
    """The prompt template: Qwen's own, or the F# runners' with one more newline before `<|im_end|>`."""

    QWEN = "qwen"
    FSHARP = "fsharp"


class ScaleRule(StrEnum):
    """How an NVFP4 block scale is chosen; see `stages.nvfp4.codec`."""

    SEARCH = "search"
    AMAX = "amax"
    FSHARP = "fsharp"


class InferencePath(StrEnum):
    """`BRIDGE` reads the weights as stored; `FP2` runs the training forward, straight-through estimator
    included.
    """

    BRIDGE = "bridge"
    FP2 = "fp2"


@dataclass(frozen=True)
class DataSource:
    """One TSV of `prompt<TAB>target`. `repeat` is how many times its rows stand in the pool (at least 1)."""

    path: str
    repeat: int = 1


@dataclass(frozen=True)
class TrainRequest:
    """One attempt of one stage: input weight and rows in, output weight out."""

    model_dir: str
    """Folder with `config.json` and `tokenizer.json`."""
    input_weight: str
    output_weight: str
    """Must not exist. It appears whole, or not at all."""
    events: str
    """JSON lines are appended here while the stage runs."""
    result: str
    """The `StageResult` JSON, written last."""
    data: list[DataSource]
    steps: int
    """Optimizer steps; 0 exports the input byte for byte."""
    lr: float
    batch_size: int = 16
    """Rows in one forward pass."""
    grad_accum: int = 1
    """Forward passes for one optimizer step."""
    seq_len: int = 192
    """Most tokens of one row, prompt template and `<|im_end|>` included."""
    overflow: Overflow = Overflow.ERROR
    sampling: Sampling = Sampling.RANDOM
    seed: int = 0
    lr_groups: dict[str, float] = field(default_factory=dict)
    """Name prefix → factor on `lr`. `{"lm_head": 10.0}` is ten times the rate: Adam would divide a gradient
    factor out.
    """
    warmup_steps: int = 0
    schedule: Schedule = Schedule.CONSTANT
    min_lr_ratio: float = 0.0
    """The schedule's last rate over `lr`."""
    weight_decay: float = 0.0
    """Decoupled. Norm weights are not decayed."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip_norm: float = 1.0
    """0 switches clipping off. See `stages.optim.clip` for what the norm means when the update runs inside
    backward.
    """
    optimizer_state_mode: OptimizerStateMode = OptimizerStateMode.INT8
    rounding: Rounding = Rounding.STOCHASTIC
    step_chunk_rows: int = 1024
    """Rows of a weight that one update works on at a time: bounds its temporaries."""
    compute_dtype: ComputeDtype = ComputeDtype.AUTO
    scale_rule: ScaleRule = ScaleRule.SEARCH
    """Of the training forward and of the export alike, so that what is exported is what was trained."""
    train_last_layers: int = 0
    """0 trains every parameter. N > 0 trains the last N layers, the final norm and the head."""
    gradient_checkpointing: bool = False
    offload_weights: bool = False
    """Never taken, like the three below: they are known so that asking for them is answered with the reason.
    See `offload_problems`.
    """
    offload_optimizer: bool = False
    offload_gradients: bool = False
    offload_activations: bool = False
    loss: LossKind = LossKind.CE
    template: Template = Template.QWEN
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    threads: int = 0
    """CPU threads; 0 leaves the library's choice. Part of the recipe: sums depend on it in their last bits.
    """
    memory_limit_gb: float = 0.0
    """The CUDA allocator's own cap (0: none), so that too much is an error that can be caught before the
    guard must act.
    """
    stop_after: str = ""
    """A phase name (see `Phase`): stop there and report, without an export."""
    log_every: int = 1
    checkpoint_every: int = 0
    """Steps between saved states, so that a stage that was ended can go on; 0: none. Changes no result."""
    checkpoints: str = ""
    """Folder that receives the saved states; they are removed once the weight is exported."""
    resume: str = ""
    """A saved state to go on from; empty: from the input weight."""

    def check(self, unified: bool | None = None) -> list[str]:
        """All impossible numbers of this request, each as `key: value: remedy`.

        Args:
            unified: Whether CPU and GPU share one memory, for the words of `offload_problems`; None where
                nobody has looked.
        """
        problems = offload_problems(self, unified)
        if not self.data:
            problems.append("data: empty: name at least one TSV file")
        problems += [
            f"data[{i}].repeat: {s.repeat}: must be 1 or more"
            for i, s in enumerate(self.data)
            if s.repeat < 1
        ]
        for key in ("batch_size", "grad_accum", "seq_len", "step_chunk_rows", "log_every"):
            if getattr(self, key) < 1:
                problems.append(f"{key}: {getattr(self, key)}: must be 1 or more")
        for key in ("steps", "warmup_steps", "train_last_layers", "threads", "seed", "checkpoint_every"):
            if getattr(self, key) < 0:
                problems.append(f"{key}: {getattr(self, key)}: must be 0 or more")
        for key in ("lr", "weight_decay", "clip_norm", "memory_limit_gb"):
            value = getattr(self, key)
            if not math.isfinite(value) or value < 0:
                problems.append(f"{key}: {value}: must be a finite number, 0 or more")
        if self.lr > 1:
            problems.append(
                f"lr: {self.lr}: more than 1 moves every weight past its own size; 1e-5 to 1e-3 is usual"
            )
        for key in ("beta1", "beta2"):
            if not 0 <= getattr(self, key) < 1:
                problems.append(f"{key}: {getattr(self, key)}: must lie in [0, 1)")
        if not 0 < self.eps < 1:
            problems.append(f"eps: {self.eps}: must lie in (0, 1)")
        if not 0 <= self.min_lr_ratio <= 1:
            problems.append(f"min_lr_ratio: {self.min_lr_ratio}: must lie in [0, 1]")
        for name, factor in self.lr_groups.items():
            if not math.isfinite(factor) or factor < 0:
                problems.append(f"lr_groups.{name}: {factor}: must be a finite factor, 0 or more")
        if self.warmup_steps > self.steps > 0:
            problems.append(
                f"warmup_steps: {self.warmup_steps}: more than steps ({self.steps}); the full rate is never reached"
            )
        if self.stop_after and self.stop_after not in list(Phase):
            problems.append(f"stop_after: {self.stop_after}: none of {', '.join(Phase)}")
        if self.checkpoint_every > 0 and not self.checkpoints:
            problems.append(
                f"checkpoint_every: {self.checkpoint_every}: needs checkpoints: name a folder for the saved states"
            )
        if self.output_weight == self.input_weight:
            problems.append(
                f"output_weight: {self.output_weight}: is the input weight; nothing is ever overwritten"
            )
        return problems


@dataclass(frozen=True)
class ExternalRequest:
    """One attempt of one stage by another program. What it is given and where its weight goes stands in
    `train`.
    """

    train: TrainRequest
    command: str
    """Template of the command; see `stages.contract.command`."""
    shell: bool = False
    """Hand the command to `/bin/sh`; else it is an argument list that no shell sees."""

    @property
    def events(self) -> str:
        """Of `train`."""
        return self.train.events

    @property
    def result(self) -> str:
        """Of `train`."""
        return self.train.result

    def check(self) -> list[str]:
        """All impossible numbers of `train`, and what is wrong with the template."""
        return self.train.check() + [f"command: {problem}" for problem in template_problems(self.command)]


@dataclass(frozen=True)
class ProbeRequest:
    """Answers of one weight to probe files."""

    model_dir: str
    weight: str
    probes: list[str]
    """Probe TSV files, answered in this order."""
    answers: str
    """JSON lines of `Answer`, one a probe, in order. Must not exist."""
    events: str
    result: str
    max_tokens: int = 64
    batch_size: int = 64
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int = 0
    template: Template = Template.QWEN
    path: InferencePath = InferencePath.BRIDGE
    scale_rule: ScaleRule = ScaleRule.SEARCH
    """Only for `path: fp2`."""
    compute_dtype: ComputeDtype = ComputeDtype.AUTO
    device: str = "auto"
    threads: int = 0

    def check(self) -> list[str]:
        """All impossible numbers of this request."""
        problems: list[str] = []
        if not self.probes:
            problems.append("probes: empty: name at least one probe TSV file")
        for key in ("max_tokens", "batch_size"):
            if getattr(self, key) < 1:
                problems.append(f"{key}: {getattr(self, key)}: must be 1 or more")
        if not 0 <= self.temperature < 100:
            problems.append(f"temperature: {self.temperature}: must lie in [0, 100)")
        if not 0 < self.top_p <= 1:
            problems.append(f"top_p: {self.top_p}: must lie in (0, 1]")
        return problems


@dataclass(frozen=True)
class InitRequest:
    """A model from nothing: a tokenizer trained on rows, and random weights exported as NVFP4."""

    config: str
    """A Qwen3 `config.json`; its `vocab_size` is the size of the tokenizer to train."""
    data: list[DataSource]
    output_dir: str
    """Receives `config.json`, `tokenizer.json` and the weight. Must not hold them yet."""
    output_weight: str
    events: str
    result: str
    seed: int = 0
    scale_rule: ScaleRule = ScaleRule.SEARCH

    def check(self) -> list[str]:
        """All impossible numbers of this request."""
        return [] if self.data else ["data: empty: name at least one TSV file to train the tokenizer on"]
