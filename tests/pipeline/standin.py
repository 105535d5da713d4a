"""A stand-in for the processes of `stages`, with faults on demand: the same contract, no tensors.

Its weights are JSON: `{"identity": …, "collapsed": …, "history": […]}`. How a training ends follows from the
recipe: lr of 0.01 and more collapses, fewer than 10 steps leave the identity unlearned. A data row `@crash`,
`@non_finite`, `@memory` or `@slow` makes that happen.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from stages.contract.events import Answer, Event, EventKind, ExitCode, Finish, Phase, StageResult
from stages.contract.requests import InitRequest, ProbeRequest, TrainRequest
from stages.contract.rows import ProbeKind, read_probes, read_rows
from stages.contract.serial import dump, load_file, to_jsonable

stop = []


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + ".000000Z"


def write_new(path: str, text: str) -> str:
    with Path(path).open("x", encoding="utf-8") as file:
        file.write(text)
    return hashlib.sha256(text.encode()).hexdigest()


def tell(request, event: Event) -> None:
    with Path(request.events).open("a", encoding="utf-8") as file:
        file.write(event.line())


def train(request: TrainRequest) -> StageResult:
    weight = json.loads(Path(request.input_weight).read_text(encoding="utf-8"))
    prompts = [row.prompt for source in request.data for row in read_rows(Path(source.path))]
    tell(request, Event(now(), EventKind.PHASE, phase=Phase.START))
    for step in range(1, request.steps + 1):
        if "@slow" in prompts:
            time.sleep(0.05)
        if "@crash" in prompts and step == 2:
            os.abort()
        if "@non_finite" in prompts and step == 2:
            return StageResult(int(ExitCode.NON_FINITE), error="step 2: loss nan")
        if "@memory" in prompts and step == 2:
            ballast = bytearray(400 << 20)
            ballast[:: 1 << 12] = b"x" * len(ballast[:: 1 << 12])
            time.sleep(30)
        tell(
            request,
            Event(
                now(),
                EventKind.STEP,
                step=step,
                total=request.steps,
                values={"loss": 1.0 / step, "lr": request.lr},
            ),
        )
        if stop:
            return StageResult(int(ExitCode.INTERRUPTED), error="interrupted after its step", steps=step)
    weight["collapsed"] = weight["collapsed"] or request.lr >= 0.01
    weight["identity"] = weight["identity"] or request.steps >= 10
    if request.stop_after not in ("", Phase.EXPORTED):
        return StageResult(0, steps=1, figures={"loss": 1.0})
    weight["history"].append([request.lr, request.steps, request.seed, sorted(prompts)])
    digest = write_new(request.output_weight, json.dumps(weight))
    tell(request, Event(now(), EventKind.PHASE, phase=Phase.EXPORTED))
    return StageResult(
        0,
        output=request.output_weight,
        sha256=digest,
        steps=request.steps,
        figures={"loss": 1.0 / max(1, request.steps)},
    )


def probe(request: ProbeRequest) -> StageResult:
    weight = json.loads(Path(request.weight).read_text(encoding="utf-8"))
    lines = []
    for probe in [p for path in request.probes for p in read_probes(Path(path))]:
        good = " ".join(
            part.removeprefix("=")
            for alternative in probe.expectation.alternatives[:1]
            for part in alternative
        )
        text = good or "我不知道你是誰。"
        if probe.kind is ProbeKind.IDENTITY and not weight["identity"]:
            text = "我是通義千問。"
        ids = list(range(len(text)))
        if weight["collapsed"]:
            text, ids = "之神" * 30, [5, 6] * 30
        lines.append(
            json.dumps(
                to_jsonable(Answer(probe.file, probe.line, probe.prompt, text, ids, Finish.END_OF_TURN)),
                ensure_ascii=False,
            )
        )
    write_new(request.answers, "\n".join(lines) + "\n")
    return StageResult(0, output=request.answers)


def init(request: InitRequest) -> StageResult:
    folder = Path(request.output_dir)
    folder.mkdir(parents=True)
    write_new(str(folder / "config.json"), Path(request.config).read_text(encoding="utf-8"))
    write_new(str(folder / "tokenizer.json"), "{}")
    digest = write_new(
        request.output_weight, json.dumps({"identity": False, "collapsed": False, "history": []})
    )
    return StageResult(0, output=request.output_weight, sha256=digest)


def main() -> int:
    kind, work = {
        "train": (TrainRequest, train),
        "probe": (ProbeRequest, probe),
        "init": (InitRequest, init),
    }[sys.argv[1]]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.append(1))
    request = load_file(kind, Path(sys.argv[2]))
    try:
        result = work(request)
    except FileNotFoundError as error:
        result = StageResult(int(ExitCode.BAD_INPUT), error=str(error))
    write_new(request.result, dump(result))
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
