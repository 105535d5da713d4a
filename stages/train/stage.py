"""One stage: load a weight, train it on rows, export it. `python -m stages.train REQUEST.json`.

Refuses before step 1 if the training forward and the file's inference disagree, or if what is trained is not
what is exported.
"""

from __future__ import annotations

import itertools
import sys
import time
from functools import partial
from pathlib import Path

import torch

from stages.contract.events import ExitCode, Phase, StageResult
from stages.contract.recipe import Rounding
from stages.contract.requests import InferencePath, TrainRequest
from stages.contract.signals import StopSignals
from stages.optim.schedule import unmatched_groups
from stages.parity import table as parity_table
from stages.parity.check import check_parity
from stages.process.files import require_new, require_space
from stages.process.memory_cap import cap_memory
from stages.process.process import (
    Reporter,
    StageError,
    convert_out_of_memory,
    make_deterministic,
    pick_device,
    run_process,
    versions,
)
from stages.qwen3.batches import encode_rows
from stages.qwen3.config import read_config
from stages.qwen3.model import Qwen3
from stages.qwen3.template import ChatTokenizer, load_tokenizer
from stages.train.checkpoint import Checkpoints
from stages.train.trainer import Trainer, TrainResult, trainable_names
from stages.weights.dat import DatFile
from stages.weights.export import export
from stages.weights.model_weights import Layout, load_model

_PARITY_PROMPT = "談談UFO"


def train(request: TrainRequest, stop: StopSignals | None = None) -> StageResult:
    """Runs one stage.

    Args:
        request: weight, rows, recipe and output.
        stop: entered; its first signal ends the training after its step. None: nothing does.

    Raises:
        StageError: and the errors of reading its inputs; each names the file or key and the remedy.
    """
    clock = {"start": time.perf_counter()}
    device = pick_device(request.device)
    make_deterministic(request.threads)
    cap_memory(request.memory_limit_gb, device)
    reporter = Reporter(Path(request.events), device)
    with convert_out_of_memory(reporter):
        return _train(request, device, reporter, clock, stop or StopSignals())


def _train(
    request: TrainRequest,
    device: torch.device,
    reporter: Reporter,
    clock: dict[str, float],
    stop: StopSignals,
) -> StageResult:
    reporter.phase(Phase.START)
    output = Path(request.output_weight)
    require_new(output)
    config = read_config(Path(request.model_dir) / "config.json")
    tokenizer = load_tokenizer(Path(request.model_dir), config, request.template)
    rows = encode_rows(request.data, tokenizer, request.seq_len, request.overflow)
    with DatFile(Path(request.input_weight)) as dat:
        output.parent.mkdir(parents=True, exist_ok=True)
        require_space(output, dat.nbytes)
        model, layout = load_model(
            dat,
            config,
            path=InferencePath.FP2,
            rule=request.scale_rule,
            compute_dtype=request.compute_dtype,
            device=device,
            wide_masters=request.rounding is Rounding.FP32,
        )
        names = trainable_names(model, request.train_last_layers)
        _check_names(names, layout, request)
        reporter.phase(Phase.MODEL_LOADED)
        _require_parity(dat, layout, model, tokenizer, Path(request.result), reporter)
        clock["loaded"] = time.perf_counter()
        result, checkpoints = TrainResult(), Checkpoints(request, rows, reporter)
        if request.steps and request.stop_after not in (Phase.START, Phase.MODEL_LOADED):
            result = Trainer(model, names, rows, request, reporter, checkpoints).run(stop)
        clock["trained"] = time.perf_counter()
        figures = result.figures | _counts(model, names, layout)
        if device.type == "cuda":
            figures["peak_allocated_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
        if request.stop_after and request.stop_after != Phase.EXPORTED:
            return StageResult(
                0, steps=result.steps, figures=figures, notes=reporter.notes, versions=versions()
            )
        parameters = dict(model.named_parameters())
        written = export(dat, layout, {n: parameters[n].detach() for n in names}, request.scale_rule, output)
        reporter.phase(Phase.EXPORTED)
        checkpoints.discard()
    clock["exported"] = time.perf_counter()
    figures |= {f"seconds_{b}": clock[b] - clock[a] for a, b in itertools.pairwise(clock)}
    return StageResult(
        0,
        output=request.output_weight,
        sha256=written.sha256,
        output_bytes=written.nbytes,
        steps=result.steps,
        figures=figures,
        notes=reporter.notes,
        versions=versions(),
    )


def _check_names(names: list[str], layout: Layout, request: TrainRequest) -> None:
    """What is trained must be what is exported, by name."""
    lost = sorted(set(names) - set(layout.names))
    if lost:
        raise StageError(ExitCode.DISAGREE, f"trained but not exported: {', '.join(lost)}")
    still = sorted(set(layout.names) - set(names))
    if still and not request.train_last_layers:
        raise StageError(ExitCode.DISAGREE, f"exported but not trained: {', '.join(still)}")
    idle = unmatched_groups(names, request.lr_groups)
    if idle:
        known = ", ".join(
            sorted(
                {n.split(".")[0] if n.startswith("lm_head") else ".".join(n.split(".")[:2]) for n in names}
            )
        )
        raise StageError(
            ExitCode.BAD_INPUT,
            f"lr_groups: {', '.join(idle)}: no trained parameter begins so; there are {known}",
        )


def _require_parity(
    dat: DatFile, layout: Layout, model: Qwen3, tokenizer: ChatTokenizer, result: Path, reporter: Reporter
) -> None:
    parity = check_parity(dat, layout, model, tokenizer.prompt_ids(_PARITY_PROMPT))
    parity_table.write_beside(result, parity, _PARITY_PROMPT, tokenizer)
    text = f"parity on {_PARITY_PROMPT!r}: {parity_table.summary(parity)}"
    if not parity.agrees:
        raise StageError(ExitCode.DISAGREE, f"{text}: the training forward is not the file's inference")
    reporter.note(text)


def _counts(model: Qwen3, names: list[str], layout: Layout) -> dict[str, float]:
    parameters = dict(model.named_parameters())
    return {
        "trainable_params": float(len(names)),
        "total_elems": float(sum(parameters[n].numel() for n in names)),
        "quantized_elems": float(sum(parameters[n].numel() for n in names if n in layout.bundles)),
    }


def main(argv: list[str] | None = None) -> int:
    """The command line; see `run_process`."""
    words = sys.argv[1:] if argv is None else argv
    with StopSignals(second_ends=True) as stop:
        return run_process(TrainRequest, partial(train, stop=stop), words, "Train one stage from a request.")
