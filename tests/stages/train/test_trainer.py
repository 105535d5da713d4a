"""The training loop itself: which parameters it trains, what persists between steps, and when it stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stages.contract.events import ExitCode
from stages.contract.recipe import ComputeDtype, ScaleRule, Template
from stages.contract.requests import InferencePath, newest_checkpoint
from stages.contract.signals import StopSignals
from stages.process.process import Reporter, StageError
from stages.qwen3.batches import encode_rows
from stages.qwen3.config import read_config
from stages.qwen3.model import Qwen3
from stages.qwen3.template import load_tokenizer
from stages.train.trainer import Trainer, trainable_names
from stages.weights.dat import DatFile
from stages.weights.model_weights import load_model
from tests.conftest import TinyModel
from tests.stages.train.test_stage import _events, _request

CPU = torch.device("cpu")


def model_of(tiny: TinyModel) -> Qwen3:
    config = read_config(tiny.folder / "config.json")
    with DatFile(tiny.weight) as dat:
        return load_model(
            dat,
            config,
            path=InferencePath.FP2,
            rule=ScaleRule.SEARCH,
            compute_dtype=ComputeDtype.FP32,
            device=CPU,
        )[0]


def trainer_of(tiny: TinyModel, folder: Path, train_last_layers: int = 0, **changes: Any) -> Trainer:
    request = _request(tiny, folder, **changes)
    model = model_of(tiny)
    tokenizer = load_tokenizer(tiny.folder, read_config(tiny.folder / "config.json"), Template.QWEN)
    rows = encode_rows(request.data, tokenizer, request.seq_len, request.overflow)
    names = trainable_names(model, train_last_layers)
    return Trainer(model, names, rows, request, Reporter(Path(request.events), CPU))


def test_the_last_layers_are_trained_with_the_final_norm_and_the_head(tiny: TinyModel) -> None:
    model = model_of(tiny)
    every = [name for name, _ in model.named_parameters()]
    assert trainable_names(model, 0) == every
    last = trainable_names(model, 1)
    assert {name for name in every if name.startswith("model.layers.1.")} < set(last)
    assert {name for name in last if not name.startswith("model.layers.1.")} == {
        "model.norm.weight",
        "lm_head.weight",
    }
    with pytest.raises(StageError, match="the model has 2 layers"):
        trainable_names(model, 3)


def test_only_trained_parameters_change_and_all_of_them_persist(tiny: TinyModel, tmp_path: Path) -> None:
    trainer = trainer_of(tiny, tmp_path, train_last_layers=1, steps=2)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    result = trainer.run(StopSignals())
    assert result.steps == 2 and not result.stopped_at
    changed = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == set(trainer.trainable)
    tensors = trainer.state_tensors()
    assert {name for name in tensors if name.startswith("master/")} == {f"master/{name}" for name in changed}
    for name in changed:
        assert tensors[f"master/{name}"].data_ptr() == trainer.trainable[name].data_ptr()


def test_a_request_to_stop_ends_after_the_step_with_a_checkpoint(tiny: TinyModel, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    trainer = trainer_of(tiny, tmp_path, steps=9, checkpoint_every=5, checkpoints=str(folder))
    stop = StopSignals()
    stop.count = 1
    with pytest.raises(StageError, match="stopped after step 1") as caught:
        trainer.run(stop)
    assert caught.value.code == ExitCode.INTERRUPTED
    newest = newest_checkpoint(folder)
    assert newest is not None and newest.name == "step-00000001.dat"


def test_steps_are_reported_at_the_interval_and_at_the_end(tiny: TinyModel, tmp_path: Path) -> None:
    trainer = trainer_of(tiny, tmp_path, steps=5, log_every=2)
    trainer.run(StopSignals())
    events = _events(trainer.request, "step")
    assert [event["step"] for event in events] == [2, 4, 5]
    assert set(events[0]["values"]) == {"loss", "lr", "grad_norm", "update_ratio", "tokens", "step_seconds"}
