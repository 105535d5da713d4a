"""The estimate against peaks that were measured: the engine's on an H200, the plain path's here."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.contract.recipe import DataSource, LossKind, OptimizerStateMode, Overflow
from stages.contract.requests import InferencePath, TrainRequest
from stages.contract.serial import dump
from stages.engine.engine import plain_path_reason
from stages.memory.memory_model import GIB, Options, Shape, TrainingPath, estimate, read_shape
from stages.nvfp4.linear import Linear
from stages.process.process import Reporter
from stages.qwen3.batches import collate, encode_rows
from stages.qwen3.config import read_config
from stages.qwen3.template import load_tokenizer
from stages.train.trainer import Trainer, trainable_names
from stages.weights.dat import DatFile
from stages.weights.model_weights import load_model
from tests.conftest import TinyModel
from tests.recipes import PLAIN

SHAPE_4B = Shape(151936, 2560, 9728, 36, 32, 8, 128)
ROOT = Path(__file__).parents[3]
NANO = ROOT / "artifacts/base/qwen3-nano"
FP32, INT8 = OptimizerStateMode.FP32, OptimizerStateMode.INT8
MEASURED = json.loads((ROOT / "benchmarks/results/estimate.json").read_text(encoding="utf-8"))


def test_eight_configurations_or_more_were_measured() -> None:
    assert len(MEASURED) >= 8


@pytest.mark.parametrize("run", MEASURED, ids=lambda r: f"{r['batch']}x{r['tokens']}")
def test_within_five_percent_of_the_measured_peak(run: dict[str, float]) -> None:
    tied, checkpointing = bool(run["tied"]), bool(run["checkpointing"])
    last_layers = int(run["train_last_layers"])
    options = Options(int(run["batch"]), int(run["tokens"]) + 1, tied, checkpointing, last_layers)
    assert estimate(SHAPE_4B, options).peak / GIB == pytest.approx(run["measured_gib"], rel=0.05)


def request(folder: Path, model: Path, weight: Path, rows: Path, **changes: Any) -> TrainRequest:
    values: dict[str, Any] = {"steps": 2, "lr": 1e-4, "batch_size": 1, "seq_len": 96, "device": "cpu"}
    values |= {key: str(folder / key) for key in ("output_weight", "events", "result")}
    values |= {"model_dir": str(model), "input_weight": str(weight), "data": [DataSource(str(rows))]}
    return TrainRequest(**(PLAIN | values | changes))


def test_the_path_is_the_one_that_training_takes(tmp_path: Path) -> None:
    for device, accum, mode, loss in itertools.product(("cpu", "cuda"), (1, 2), OptimizerStateMode, LossKind):
        asked = request(tmp_path, NANO, NANO, NANO, grad_accum=accum, optimizer_state_mode=mode, loss=loss)
        options = Options(device=device, grad_accum=accum, optimizer_state_mode=mode, loss=loss)
        assert (options.path is TrainingPath.PLAIN) == bool(plain_path_reason(asked, torch.device(device))), (
            options
        )
        assert bool(options.plain_path_settings) == (options.path is TrainingPath.PLAIN)


@pytest.mark.parametrize("mode", [INT8, FP32])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_plain_bound_is_what_model_optimizer_and_autograd_hold(
    tiny: TinyModel, tmp_path: Path, mode: OptimizerStateMode, last: int, checkpointing: bool
) -> None:
    """Masters, states and rounded weights are counted in the objects themselves, in the middle of a step."""
    changes = {"train_last_layers": last, "gradient_checkpointing": checkpointing}
    asked = request(tmp_path, tiny.folder, tiny.weight, tiny.rows, optimizer_state_mode=mode, **changes)
    config, device = read_config(tiny.folder / "config.json"), torch.device("cpu")
    with DatFile(tiny.weight) as dat:
        kinds = {"rule": asked.scale_rule, "compute_dtype": asked.compute_dtype, "device": device}
        model, _ = load_model(dat, config, path=InferencePath.FP2, **kinds)  # type: ignore[arg-type]
    rows = encode_rows(
        asked.data, load_tokenizer(tiny.folder, config, asked.template), asked.seq_len, Overflow.ERROR
    )
    trainer = Trainer(model, trainable_names(model, last), rows, asked, Reporter(tmp_path / "events", device))
    shapes = {tuple(m.weight.shape) for m in model.modules() if isinstance(m, Linear)}
    held: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(tensor.shape) in shapes or tuple(tensor.shape[::-1]) in shapes:
            held[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        trainer._loss(collate(rows[:1], device))
    cached = [m._cached[1] for m in model.modules() if isinstance(m, Linear) and m._cached]
    held |= {weight.data_ptr(): weight.nbytes for weight in cached}
    shape, tied = read_shape(tiny.folder / "config.json")
    found = estimate(
        shape, Options(1, 96, tied, checkpointing, last, device="cpu", optimizer_state_mode=mode)
    )
    assert found.masters == sum(p.nbytes for p in model.parameters())
    states = sum(t.nbytes for state in trainer.optimizer.states.values() for t in state.tensors().values())
    assert 0.97 * states < found.states <= states  # a block that is not full has a whole scale
    expected = sum(held.values())
    if checkpointing:
        # Of the trained layers only one rounded weight at a time exists, in the backward pass; the head's is
        # in the graph.
        head = 4 * shape.vocab * shape.hidden
        expected += max(4 * shape.layer, head) - head
    assert found.weights == expected


def test_a_real_training_takes_more_than_the_bound(tmp_path: Path) -> None:
    """The nano model on this CPU: how much its process grows from its start, torch loaded, to its highest."""
    rows = tmp_path / "rows.tsv"
    rows.write_text("1+1=?\t2\n", encoding="utf-8")
    asked = request(
        tmp_path, NANO, NANO / "qwen3-nano-nvfp4.dat", rows, optimizer_state_mode=FP32, grad_accum=2
    )
    (tmp_path / "request.json").write_text(dump(asked), encoding="utf-8")
    code = "import resource, sys; from stages.train.stage import main; c = main(sys.argv[1:]); "
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(c)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "request.json")], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in Path(asked.events).read_text(encoding="utf-8").splitlines()]
    grown = int(done.stdout) / 1024 - next(e["values"]["device_mib"] for e in events if e["phase"] == "start")
    shape, tied = read_shape(NANO / "config.json")
    options = Options(1, 96, tied, device="cpu", grad_accum=2, optimizer_state_mode=FP32)
    bound = estimate(shape, options).peak / 2**20
    assert 90 < bound < grown
