"""How much memory a training stage will need: asked of `python -m stages.estimate` before anything starts,
held against the limit.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pipeline.guard.machine import Machine
from pipeline.processes.stage_process import StageCommands
from stages.contract.recipe import Recipe

TIMEOUT_SECS = 30.0
COMPONENTS = ("weights", "masters", "states", "gradients", "activations", "logits", "workspace", "slack")
LEAST_SHOWN_GB = 0.0005
"""Components below it are not shown."""


class EstimateError(RuntimeError):
    """There is no estimate; the message says why."""


@dataclass(frozen=True)
class MemoryCap:
    """What a stage may take, in GB of 1024 MiB."""

    limit_gb: float
    """The guard's."""
    stage_gb: float
    """The stage's own cap, below it: an allocation beyond fails."""


@dataclass(frozen=True)
class MemoryNeed:
    """The estimate of one stage's training, with what it is held against. GB are 1024 MiB."""

    stage: str
    peak_gb: float
    lower_bound: bool
    """True if it is at least, not about, that much; activations and the libraries come on top."""
    bytes_per_parameter: float
    components: dict[str, float]
    """GB by name, in the order of `COMPONENTS`."""
    where: str
    """Who computes where, and why so, in a few words."""
    cap: MemoryCap
    free_gb: float | None
    """Now; None if nobody says."""
    fits: str | None
    """The mildest change that stays below the cap, as recipe settings; None if there is none."""

    @property
    def over(self) -> bool:
        """Whether it passes what the stage may take."""
        return self.peak_gb > self.cap.stage_gb

    @property
    def amount(self) -> str:
        """The peak in words."""
        return f"{'at least ' if self.lower_bound else ''}{_short(self.peak_gb)} GB"

    def lines(self) -> list[str]:
        """For the plan: peak and bytes a parameter, the components, and what stands against it."""
        parts = [f"{name} {_short(gb)}" for name, gb in self.components.items() if gb >= LEAST_SHOWN_GB]
        held = f"a stage may take {self.cap.stage_gb:g} of {self.cap.limit_gb:g} GB"
        first = f"{self.amount} · {self.bytes_per_parameter:.2f} bytes a parameter · {held} · {self.where}"
        second = [f"GB by component: {' · '.join(parts)}"] if parts else []
        return [first, *second]

    def refusal(self) -> str:
        """Why the run is not begun, as `key: value: remedy`; empty if it is."""
        if not self.over:
            return ""
        free = "" if self.free_gb is None else f", {_short(self.free_gb)} GB are free now"
        cap = f"it may take {self.cap.stage_gb:g} GB of guard.gpu_limit_gb {self.cap.limit_gb:g}{free}"
        if self.fits is None:
            remedy = "no setting of this recipe fits: raise guard.gpu_limit_gb, or take a smaller model"
        else:
            chosen = " ".join(f"stages.{self.stage}.{word}" for word in self.fits.split())
            remedy = (
                f"{'may fit' if self.lower_bound else 'fits'} 可行: {chosen}; or raise guard.gpu_limit_gb"
            )
        return f"stages.{self.stage}: needs {self.amount} ({self.where}): {cap}: {remedy}"

    def warning(self) -> str:
        """That less is free now than will be needed; empty if it is not so, or nobody says."""
        if self.free_gb is None or self.peak_gb <= self.free_gb:
            return ""
        return f"{self.stage}: needs {self.amount}, {_short(self.free_gb)} GB are free now 可用記憶體不足: end what holds the rest first"


def _short(gb: float) -> str:
    return f"{gb:.2f}" if gb >= 1 else f"{gb:.3f}"


@dataclass(frozen=True)
class ModelFiles:
    """What decides the shape of a model."""

    config: str
    """A `config.json`, from the root."""
    weight: str = ""
    """A weight file that exists and has the entries that will be trained; empty: the config alone says."""


def ask(
    stage: str,
    recipe: Recipe,
    model: ModelFiles,
    cap: MemoryCap,
    machine: Machine,
    commands: StageCommands,
    root: Path,
) -> MemoryNeed:
    """Asks for the estimate of one stage.

    Args:
        stage: its name.
        recipe: its own; see `stages.contract.Recipe`.
        model: what it trains.
        cap: what it may take.
        machine: where it would run.
        commands: how stage processes are started.
        root: working directory of the process; what relative paths are relative to.

    Raises:
        EstimateError: if there is none.
    """
    device = machine.trains_on(recipe.device)
    words = [
        *commands.estimate,
        *_arguments(recipe, model, device),
        "--limit-gb",
        str(cap.stage_gb),
        "--json",
    ]
    try:
        done = subprocess.run(
            words,
            cwd=root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECS,
            check=False,
        )
        found = json.loads(done.stdout)
        components = {name: found[f"{name}_gib"] for name in COMPONENTS}
        because = "".join(
            f" {key} {value}" for key, value in found["plain_because"].items() if key != "device"
        )
        return MemoryNeed(
            stage=stage,
            peak_gb=found["total_gib"],
            lower_bound=found["lower_bound"],
            bytes_per_parameter=found["bytes_per_parameter"],
            components=components,
            where=f"{device}, {found['path']} path{' for' + because if because else ''}",
            cap=cap,
            free_gb=machine.free_gb(recipe.device),
            fits=found["fits"],
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EstimateError(str(error)) from error
    except (ValueError, KeyError) as error:
        raise EstimateError(
            (done.stderr.strip().splitlines() or [f"{words[0]}: no estimate: {error!r}"])[-1]
        ) from error


def _arguments(recipe: Recipe, model: ModelFiles, device: str) -> list[str]:
    given = {
        "--batch": recipe.batch_size,
        "--seq-len": recipe.seq_len,
        "--train-last-layers": recipe.train_last_layers,
        "--steps": recipe.steps,
        "--grad-accum": recipe.grad_accum,
        "--optimizer-state-mode": recipe.optimizer_state_mode,
        "--loss": recipe.loss,
        "--compute-dtype": recipe.compute_dtype,
        "--rounding": recipe.rounding,
        "--device": device,
    }
    if model.weight:
        given["--weight"] = model.weight
    words = [model.config, *(str(word) for pair in given.items() for word in pair)]
    return [*words, "--checkpointing"] if recipe.gradient_checkpointing else words
