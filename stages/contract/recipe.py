"""The recipe of a training: all settings but the paths, with the defaults of `conf/train/default.yaml`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from stages.contract.events import Phase
from stages.contract.fields import Affects, bound_problems, setting, setting_of
from stages.contract.offload import offload_problems


class ComputeDtype(StrEnum):
    """The dtype of activations and matrix products. Masters are BF16 whatever is chosen here.

    `AUTO` is BF16 on a GPU and FP32 on a CPU, where BF16 is slower.
    """

    AUTO = "auto"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class OptimizerStateMode(StrEnum):
    """How `exp_avg` and `exp_avg_sq` are stored: 8 bits block-wise, or float32."""

    INT8 = "int8"
    FP32 = "fp32"


class Rounding(StrEnum):
    """How an updated master becomes BF16. `NEAREST` is there for comparison; `FP32` keeps float32 masters."""

    STOCHASTIC = "stochastic"
    NEAREST = "nearest"
    FP32 = "fp32"


class Sampling(StrEnum):
    """The order of rows: a new seeded permutation each epoch, or the order of the file."""

    RANDOM = "random"
    SEQUENTIAL = "sequential"


class Overflow(StrEnum):
    """What happens to a row that is longer than `seq_len`. The answer is never cut."""

    ERROR = "error"
    CUT_PROMPT = "cut_prompt"


class Schedule(StrEnum):
    """The learning rate after warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class LossKind(StrEnum):
    """The loss. `SCALAR`, the mean of the logits, only measures memory and time."""

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


@dataclass(frozen=True)
class DataSource:
    """One TSV of `prompt<TAB>target`."""

    path: str
    repeat: int = setting(1, at_least=1)
    """How many times its rows are in the pool."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a stage trains. Every field has its unit, its bounds, and a mark of what it affects."""

    data: list[DataSource]
    """Training rows. Their content affects the result, their paths do not."""
    steps: int = setting(60, unit="optimizer steps", at_least=0)
    """0 exports the input byte for byte."""
    lr: float = setting(3e-4, at_least=0.0)
    """The highest learning rate."""
    batch_size: int = setting(16, unit="rows", at_least=1)
    """Rows in one forward pass."""
    grad_accum: int = setting(1, unit="forward passes", at_least=1)
    """Forward passes for one optimizer step."""
    seq_len: int = setting(96, unit="tokens", at_least=1)
    """Most tokens of one row, prompt template and `<|im_end|>` included."""
    overflow: Overflow = Overflow.ERROR
    sampling: Sampling = Sampling.RANDOM
    seed: int = setting(0, at_least=0)
    lr_groups: dict[str, float] = setting(factory=dict)
    """Name prefix → factor on `lr`: `{"lm_head": 10.0}`. Adam would cancel a factor on the gradient."""
    warmup_steps: int = setting(5, unit="optimizer steps", at_least=0)
    schedule: Schedule = Schedule.COSINE
    min_lr_ratio: float = setting(0.1, unit="of lr", at_least=0.0, at_most=1.0)
    """Last rate of the schedule, relative to `lr`."""
    weight_decay: float = setting(0.0, unit="of lr", at_least=0.0)
    """Decoupled. Norm weights are not decayed."""
    beta1: float = setting(0.9, at_least=0.0, below=1.0)
    beta2: float = setting(0.99, at_least=0.0, below=1.0)
    eps: float = setting(1e-8, above=0.0, below=1.0)
    clip_norm: float = setting(1.0, at_least=0.0)
    """0 switches clipping off. `stages.optim.clip` says which norm this is."""
    optimizer_state_mode: OptimizerStateMode = OptimizerStateMode.INT8
    rounding: Rounding = Rounding.STOCHASTIC
    step_chunk_rows: int = setting(1024, unit="rows", at_least=1)
    """Rows of a weight that are updated at a time, which limits the size of temporary tensors."""
    compute_dtype: ComputeDtype = setting(ComputeDtype.AUTO, affects=Affects.RESULT_AND_ANSWERS)
    scale_rule: ScaleRule = setting(ScaleRule.SEARCH, affects=Affects.RESULT_AND_ANSWERS)
    """For the training forward and for the export, so that the exported weight is the trained one."""
    train_last_layers: int = setting(0, unit="layers", at_least=0)
    """0 trains every parameter. N > 0 trains the last N layers, the final norm and the head."""
    gradient_checkpointing: bool = False
    offload_weights: bool = False
    """Refused with the reason, like the next three; see `offload_problems`."""
    offload_optimizer: bool = False
    offload_gradients: bool = False
    offload_activations: bool = False
    loss: LossKind = LossKind.CE
    template: Template = setting(Template.QWEN, affects=Affects.RESULT_AND_ANSWERS)
    device: str = setting("auto", affects=Affects.RESULT_AND_ANSWERS)
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    threads: int = setting(0, at_least=0, affects=Affects.RESULT_AND_ANSWERS)
    """CPU threads; 0: the library chooses. The last bits of sums depend on it."""
    memory_limit_gb: float = setting(0.0, unit="GiB", at_least=0.0, affects=Affects.NEITHER)
    """Cap of the CUDA allocator; 0: none. Past it an allocation fails before the guard must act."""
    stop_after: str = ""
    """Name of a `Phase`: the stage stops there and reports, without an export. Empty: it goes to the end."""
    log_every: int = setting(1, unit="optimizer steps", at_least=1, affects=Affects.NEITHER)
    checkpoint_every: int = setting(0, unit="optimizer steps", at_least=0, affects=Affects.NEITHER)
    """Steps between checkpoints, from which an interrupted stage goes on; 0: none."""

    def check(self, unified: bool | None = None) -> list[str]:
        """All impossible values, each as `key: value: remedy`.

        Args:
            unified: whether CPU and GPU share one memory; None if that is not known. See `offload_problems`.
        """
        problems = offload_problems(self, unified) + bound_problems(self)
        if not self.data:
            problems.append("data: empty: name at least one TSV file")
        problems += [
            f"data[{i}].{text}" for i, source in enumerate(self.data) for text in bound_problems(source)
        ]
        if self.lr > 1:
            problems.append(
                f"lr: {self.lr}: more than 1 moves every weight past its own size; 1e-5 to 1e-3 is usual"
            )
        for name, factor in self.lr_groups.items():
            if not math.isfinite(factor) or factor < 0:
                problems.append(f"lr_groups.{name}: {factor}: must be a finite factor, 0 or more")
        if self.warmup_steps > self.steps > 0:
            remedy = f"more than steps ({self.steps}); the full rate is never reached"
            problems.append(f"warmup_steps: {self.warmup_steps}: {remedy}")
        if self.stop_after and self.stop_after not in list(Phase):
            problems.append(f"stop_after: {self.stop_after}: none of {', '.join(Phase)}")
        return problems

    def resolved(self, device: str) -> Recipe:
        """The recipe with `auto` replaced by what it means on a kind of device, `cpu` or `cuda`."""
        return replace(self, device=device, compute_dtype=resolved_dtype(self.compute_dtype, device))

    def values(self, *affecting: Affects) -> dict[str, Any]:
        """Name → value of the fields with one of these marks."""
        return {f.name: getattr(self, f.name) for f in fields(Recipe) if setting_of(f).affects in affecting}


def resolved_dtype(dtype: ComputeDtype, device: str) -> ComputeDtype:
    """The dtype that is computed in on a kind of device, `cpu` or `cuda`; never `auto`."""
    if dtype is not ComputeDtype.AUTO:
        return dtype
    return ComputeDtype.BF16 if device == "cuda" else ComputeDtype.FP32
