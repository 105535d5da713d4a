"""The probe command: answers of one weight to probe files."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from stages.contract.events import Answer, ExitCode, Phase, StageResult
from stages.contract.requests import InferencePath, ProbeRequest
from stages.contract.rows import Probe, RowFileError, read_probes
from stages.contract.serial import to_jsonable
from stages.inference.generate import GenerationConfig, generate
from stages.process.files import require_new, write_new_text
from stages.process.process import (
    Reporter,
    StageError,
    make_deterministic,
    pick_device,
    run_process,
    versions,
)
from stages.qwen3.config import read_config
from stages.qwen3.template import load_tokenizer
from stages.weights.dat import DatFile
from stages.weights.model_weights import load_model


def probe(request: ProbeRequest) -> StageResult:
    """Answers every probe of the request, in order, from the weight file.

    Raises:
        The errors of reading its inputs.
    """
    device = pick_device(request.device)
    make_deterministic(request.threads)
    reporter = Reporter(Path(request.events), device)
    reporter.phase(Phase.START)
    answers_path = Path(request.answers)
    require_new(answers_path)
    config = read_config(Path(request.model_dir) / "config.json")
    tokenizer = load_tokenizer(Path(request.model_dir), config, request.template)
    probes = _read_all([Path(p) for p in request.probes])
    with DatFile(Path(request.weight)) as dat:
        model, _ = load_model(
            dat,
            config,
            path=InferencePath(request.path),
            rule=request.scale_rule,
            compute_dtype=request.compute_dtype,
            device=device,
        )
    model.eval().requires_grad_(False)
    reporter.phase(Phase.MODEL_LOADED)
    started = time.perf_counter()
    prompts = [tokenizer.prompt_ids(p.prompt) for p in probes]
    _require_fit(probes, prompts, config.max_position_embeddings)
    done = 0

    def progress(more: int) -> None:
        nonlocal done
        done += more
        reporter.progress(done, len(prompts), "probes")

    completions = generate(
        model,
        prompts,
        tokenizer.stop_ids,
        GenerationConfig(request.max_tokens, request.temperature, request.top_p),
        batch_size=request.batch_size,
        seed=request.seed,
        progress=progress,
    )
    seconds = time.perf_counter() - started
    answers = [
        Answer(
            p.file, p.line, p.prompt, tokenizer.text(c.token_ids), c.token_ids, c.finish, c.first_token_logit
        )
        for p, c in zip(probes, completions, strict=True)
    ]
    lines = (json.dumps(to_jsonable(a), ensure_ascii=False) + "\n" for a in answers)
    write_new_text(answers_path, "".join(lines))
    tokens = sum(len(c.token_ids) for c in completions)
    figures = {"answers": float(len(answers)), "tokens": float(tokens), "seconds_answering": seconds}
    return StageResult(0, output=request.answers, figures=figures, notes=reporter.notes, versions=versions())


def _require_fit(probes: list[Probe], prompts: list[list[int]], context: int) -> None:
    too_long = [
        f"{p.file}:{p.line}: {len(ids)} tokens"
        for p, ids in zip(probes, prompts, strict=True)
        if len(ids) >= context
    ]
    if too_long:
        raise StageError(
            ExitCode.BAD_INPUT,
            f"{'; '.join(too_long)}: leave no room in the model's context of {context}: shorten them",
        )


def _read_all(paths: list[Path]) -> list[Probe]:
    probes: list[Probe] = []
    problems: list[str] = []
    for path in paths:
        try:
            probes += read_probes(path)
        except RowFileError as error:
            problems += error.problems
    if problems:
        raise RowFileError(paths[0], problems)
    return probes


def main(argv: list[str] | None = None) -> int:
    """The command line; see `run_process`."""
    return run_process(
        ProbeRequest, probe, sys.argv[1:] if argv is None else argv, "Answer probe files from a weight file."
    )
