"""The estimate against peaks that were measured: on an H200 the engine's, here the plain path's; and what it
recommends under a limit.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.contract import DataSource, InferencePath, LossKind, OptimizerStateMode, Overflow, TrainRequest
from stages.contract.serial import dump
from stages.engine.engine import why_not
from stages.memory.estimate import fitting, main
from stages.memory.model import GIB, Options, Shape, TrainingPath, estimate, read_shape
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
MEASURED = json.loads(
    (Path(__file__).parents[3] / "benchmarks/results/estimate.json").read_text(encoding="utf-8")
)


def test_eight_configurations_or_more_were_measured() -> None:
    assert len(MEASURED) >= 8


@pytest.mark.parametrize("run", MEASURED, ids=lambda r: f"{r['batch']}x{r['tokens']}")
def test_within_five_percent_of_the_measured_peak(run: dict[str, float]) -> None:
    options = Options(
        int(run["batch"]),
        int(run["tokens"]) + 1,
        bool(run["tied"]),
        bool(run["checkpointing"]),
        int(run["train_last_layers"]),
    )
    assert estimate(SHAPE_4B, options).peak / GIB == pytest.approx(run["measured_gib"], rel=0.05)


def test_the_recipe_under_a_limit_fits_it_and_a_lower_one_has_none() -> None:
    options = Options(32, 513)
    words, changed, found = fitting(SHAPE_4B, options, 18.0)[0]
    assert (
        changed.checkpointing
        and changed.batch < 32
        and found.peak + found.slack <= 18 * GIB
        and "batch_size" in words
    )
    assert fitting(SHAPE_4B, options, 2.0) == []
    assert fitting(SHAPE_4B, Options(1, 97), 17.0)[0][0] == "as asked"


def test_the_command_needs_no_torch_and_says_what_fits(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    keys = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    )
    numbers = (151936, 2560, 9728, 36, 32, 8, 128)
    config.write_text(json.dumps(dict(zip(keys, numbers, strict=True)) | {"tie_word_embeddings": True}))
    code = "import sys; from stages.estimate import main; r = main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(r)"
    command = [
        sys.executable,
        "-c",
        code,
        str(tmp_path),
        "--batch",
        "1",
        "--seq-len",
        "97",
        "--limit-gb",
        "17",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["fits"] == "as asked" and 4.1 < report["bytes_per_parameter"] < 4.3
    assert main([str(tmp_path), "--limit-gb", "1"]) == 1
    config.write_text("{}")
    assert main([str(tmp_path)]) == 2


def request(folder: Path, model: Path, weight: Path, rows: Path, **changes: Any) -> TrainRequest:
    values: dict[str, Any] = {
        "steps": 2,
        "lr": 1e-4,
        "batch_size": 1,
        "seq_len": 96,
        "device": "cpu",
        **changes,
    }
    places = {key: str(folder / key) for key in ("output_weight", "events", "result")}
    return TrainRequest(
        model_dir=str(model),
        input_weight=str(weight),
        data=[DataSource(str(rows))],
        **(PLAIN | places | values),
    )


def test_the_path_is_the_one_that_training_takes(tmp_path: Path) -> None:
    for device, accum, mode, loss in itertools.product(("cpu", "cuda"), (1, 2), OptimizerStateMode, LossKind):
        asked = request(tmp_path, NANO, NANO, NANO, grad_accum=accum, optimizer_state_mode=mode, loss=loss)
        options = Options(device=device, grad_accum=accum, optimizer_state_mode=mode, loss=loss)
        assert (options.path is TrainingPath.PLAIN) == bool(why_not(asked, torch.device(device))), options
        assert bool(options.plain_because) == (options.path is TrainingPath.PLAIN)


@pytest.mark.parametrize("mode", [INT8, FP32])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_plain_bound_is_what_model_optimizer_and_autograd_hold(
    tiny: TinyModel, tmp_path: Path, mode: OptimizerStateMode, last: int, checkpointing: bool
) -> None:
    """Masters, states and rounded weights are counted in the objects themselves, in the middle of a step."""
    asked = request(
        tmp_path,
        tiny.folder,
        tiny.weight,
        tiny.rows,
        optimizer_state_mode=mode,
        train_last_layers=last,
        gradient_checkpointing=checkpointing,
    )
    config, device = read_config(tiny.folder / "config.json"), torch.device("cpu")
    with DatFile(tiny.weight) as dat:
        model, _ = load_model(
            dat,
            config,
            path=InferencePath.FP2,
            rule=asked.scale_rule,
            compute_dtype=asked.compute_dtype,
            device=device,
        )
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
    held |= {
        m._kept[1].data_ptr(): m._kept[1].nbytes for m in model.modules() if isinstance(m, Linear) and m._kept
    }
    shape, tied = read_shape(tiny.folder / "config.json")
    found = estimate(
        shape, Options(1, 96, tied, checkpointing, last, device="cpu", optimizer_state_mode=mode)
    )
    assert found.masters == sum(p.nbytes for p in model.parameters())
    states = sum(t.nbytes for state in trainer.optimizer.states.values() for t in state.tensors().values())
    assert 0.97 * states < found.states <= states  # a block that is not full has a whole scale
    if (
        checkpointing
    ):  # of trained layers one at a time exists, in the backward pass; the head's is in the graph
        layer = 4 * shape.layer
        assert found.weights == sum(held.values()) - 4 * shape.vocab * shape.hidden + max(
            layer, 4 * shape.vocab * shape.hidden
        )
    else:
        assert found.weights == sum(held.values())


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


def test_what_fits_on_the_plain_path_is_lighter_or_the_engine() -> None:
    on_cuda = Options(8, 192, grad_accum=4, optimizer_state_mode=FP32)
    words, changed, found = fitting(SHAPE_4B, on_cuda, 18.0)[0]
    assert words == "grad_accum=1 optimizer_state_mode=int8 gradient_checkpointing=true"
    assert changed.path is TrainingPath.ENGINE and not found.lower_bound
    on_cpu = Options(8, 192, device="cpu")
    assert fitting(SHAPE_4B, on_cpu, 31.0)[0][0] == "as asked"
    assert fitting(SHAPE_4B, on_cpu, 20.0)[0][0] == "gradient_checkpointing=true"
    assert (
        fitting(SHAPE_4B, on_cpu, 16.0) == []
    )  # layers that are not trained keep their rounded weights: fewer save nothing here
    for words, changed, found in fitting(SHAPE_4B, on_cpu, 40.0):
        assert "batch_size" not in words and found == estimate(SHAPE_4B, changed)


def test_the_weight_file_says_whether_it_has_a_head(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((tiny.folder / "config.json").read_text(encoding="utf-8")) | {
        "tie_word_embeddings": True
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    counts = []
    for more in ([], ["--weight", str(tiny.weight)]):
        assert main([str(tmp_path), "--json", *more]) == 0
        counts.append(json.loads(capsys.readouterr().out)["parameters"])
    assert counts[1] - counts[0] == config["vocab_size"] * config["hidden_size"]
    whole = tiny.weight.read_bytes()
    for cut in (0, 1, 20, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.dat").write_bytes(whole[:cut])
        assert main([str(tmp_path), "--weight", str(tmp_path / "cut.dat")]) == 2
        assert "cut.dat" in capsys.readouterr().err
