"""Fixed inputs and shape buckets, on a CPU, where every step is launched eagerly."""

from __future__ import annotations

import pytest
import torch

from stages.engine.graph import GraphRunner, StepInputs
from stages.memory.limits import LENGTH_MULTIPLE
from tests.stages.engine.tiny import batch_of

CPU = torch.device("cpu")


def test_a_shorter_batch_is_padded_without_targets() -> None:
    inputs, batch = StepInputs.empty(4, 32, CPU), batch_of(3, width=21)
    inputs.ids += 5
    inputs.fill(batch)
    assert torch.equal(inputs.ids[:, :21], batch.ids) and not inputs.ids[:, 21:].any()
    targets = inputs.targets.view(4, 32)
    assert bool((targets[:, 21:] == -1).all())
    assert torch.equal(targets[:, :21].reshape(-1)[batch.where], batch.targets)
    assert int((targets >= 0).sum()) == len(batch.targets)
    assert float(inputs.loss_weight) == pytest.approx(1 / len(batch.targets))


def test_widths_share_inputs_up_to_a_multiple() -> None:
    seen: list[tuple[int, ...]] = []

    def step(inputs: StepInputs) -> None:
        seen.append((id(inputs), *inputs.ids.shape))
        inputs.loss.fill_(len(seen))

    runner = GraphRunner(step, pytest.fail, capture=False)
    losses = [float(runner.run(batch_of(1, width=width))) for width in (21, 32, 33, 21)]
    assert losses == [1.0, 2.0, 3.0, 4.0]
    assert [shape[1:] for shape in seen] == [(4, 32), (4, 32), (4, 64), (4, 32)] and LENGTH_MULTIPLE == 32
    assert len({buffer for buffer, *_ in seen}) == 2
    assert runner.graph(4, 32) is None
