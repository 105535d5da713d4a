"""A trainer of somebody else: reads a weight file and rows, writes a weight file; with faults on demand by
rows like `@memory`.

python outsider.py train --train-data ROWS --input-dat FILE --output-dat FILE --steps N --lr X … --model-dir
FOLDER python outsider.py answer REQUEST.json        (a stand-in for `stages.probe`: good answers, whatever
the weight)
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path


def train(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    for name in ("train-data", "input-dat", "output-dat", "model-dir"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--step-chunk-rows", type=int, required=True)
    options = parser.parse_args(arguments)
    rows = Path(options.train_data).read_text(encoding="utf-8").splitlines()
    words = {row.split("\t")[0] for row in rows}
    print(f"{len(rows)} rows")
    if "@exit" in words:
        print("no such device", file=sys.stderr)
        return 3
    if "@memory" in words:
        ballast = bytearray(900 << 20)
        ballast[:: 1 << 12] = b"x" * len(ballast[:: 1 << 12])
    if words & {"@memory", "@slow"}:
        time.sleep(60)
    if "@broken" in words:
        Path(options.output_dat).write_bytes(Path(options.input_dat).read_bytes()[:5000])
    elif "@copy" in words:
        shutil.copyfile(options.input_dat, options.output_dat)
    elif "@nothing" not in words:
        return really(options)
    return 0


def really(options: argparse.Namespace) -> int:
    """Trains by the project's own stage, under names of its own."""
    from stages.contract.recipe import ComputeDtype, DataSource, Schedule
    from stages.contract.requests import TrainRequest
    from stages.contract.serial import dump
    from stages.train.stage import main as stage

    place = Path(options.output_dat).parent / "outsider"
    place.mkdir()
    request = TrainRequest(
        model_dir=options.model_dir,
        input_weight=options.input_dat,
        output_weight=options.output_dat,
        events=str(place / "events.jsonl"),
        result=str(place / "result.json"),
        data=[DataSource(options.train_data)],
        steps=options.steps,
        lr=options.lr,
        seq_len=options.seq_len,
        step_chunk_rows=options.step_chunk_rows,
        compute_dtype=ComputeDtype.FP32,
        batch_size=4,
        device="cpu",
        threads=1,
        warmup_steps=0,
        schedule=Schedule.CONSTANT,
        min_lr_ratio=0.0,
        beta2=0.999,
    )
    (place / "request.json").write_text(dump(request), encoding="utf-8")
    return stage([str(place / "request.json")])


def answer(path: str) -> int:
    from stages.contract.events import Answer, Finish, StageResult
    from stages.contract.requests import ProbeRequest
    from stages.contract.rows import read_probes
    from stages.contract.serial import dump, load_file, to_jsonable

    request = load_file(ProbeRequest, Path(path))
    with Path(request.answers).open("x", encoding="utf-8") as file:
        for probe in [p for name in request.probes for p in read_probes(Path(name))]:
            text = (
                "".join(
                    part.removeprefix("=") for parts in probe.expectation.alternatives[:1] for part in parts
                )
                or "不知道"
            )
            found = Answer(
                probe.file, probe.line, probe.prompt, text, list(range(len(text))), Finish.END_OF_TURN
            )
            file.write(json.dumps(to_jsonable(found), ensure_ascii=False) + "\n")
    Path(request.result).write_text(dump(StageResult(0, output=request.answers)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(train(sys.argv[2:]) if sys.argv[1] == "train" else answer(sys.argv[2]))
