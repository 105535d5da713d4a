"""One CUDA graph a sequence length: a step is one launch instead of about two thousand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from stages.engine.ops import uses_triton
from stages.memory.limits import padded_length
from stages.qwen3.batches import Batch


@dataclass
class StepInputs:
    """What a step reads, at fixed addresses. Padded positions have no target."""

    ids: torch.Tensor
    """int64 [batch, length]."""
    targets: torch.Tensor
    """int64 [batch × length]; -1 where there is none."""
    loss_weight: torch.Tensor
    """float32 0-dim: 1 / number of targets."""
    loss: torch.Tensor
    """float32 0-dim: the step's result."""

    @classmethod
    def empty(cls, batch: int, length: int, device: torch.device) -> StepInputs:
        """Inputs before the first batch."""
        return cls(
            torch.zeros(batch, length, dtype=torch.int64, device=device),
            torch.full((batch * length,), -1, dtype=torch.int64, device=device),
            torch.ones((), device=device),
            torch.zeros((), device=device),
        )

    def fill(self, batch: Batch) -> None:
        """Copies a batch in; its rows may be shorter."""
        width, length, count = batch.ids.shape[1], self.ids.shape[1], len(batch.targets)
        if width < length:
            self.ids.zero_()
        self.ids[:, :width] = batch.ids
        self.targets.fill_(-1)
        if uses_triton(self.targets):
            from stages.engine import head_kernels

            # Indexing would sort the positions first, because it cannot know that they are all different.
            head_kernels.scatter_targets[(-(-count // 1024),)](
                self.targets, batch.where, batch.targets, count, width, length, BLOCK=1024
            )
        else:
            rows = batch.where.div(width, rounding_mode="floor")
            self.targets[rows * length + batch.where % width] = batch.targets
        self.loss_weight.fill_(1.0 / count)


@dataclass
class _Bucket:
    inputs: StepInputs
    graph: torch.cuda.CUDAGraph | None = None
    runs: int = 0


@dataclass
class GraphRunner:
    """Runs a step eagerly the first time it sees a shape, captures it the second time, then replays it.

    The eager run compiles the kernels and is a step like any other. A capture executes nothing, so no step is
    lost or done twice.

    Args:
        step: Reads the inputs, updates the masters, writes `inputs.loss`.
        note: Receives one line if capture is not possible; all steps then run eagerly.
    """

    step: Callable[[StepInputs], None]
    note: Callable[[str], None]
    capture: bool = True
    _buckets: dict[tuple[int, int], _Bucket] = field(default_factory=dict)
    _pool: tuple[int, int] | None = None
    _stream: torch.cuda.Stream | None = None

    def run(self, batch: Batch) -> torch.Tensor:
        """Launches one step; returns its loss, 0-dim on the device, valid until the shape's next step."""
        rows, width = batch.ids.shape
        length = padded_length(width)
        bucket = self._buckets.get((rows, length))
        if bucket is None:
            bucket = self._buckets[rows, length] = _Bucket(StepInputs.empty(rows, length, batch.ids.device))
        bucket.inputs.fill(batch)
        self._launch(bucket)
        bucket.runs += 1
        return bucket.inputs.loss

    def graph(self, rows: int, length: int) -> torch.cuda.CUDAGraph | None:
        """The captured graph of one shape, if there is one."""
        return self._buckets[rows, length].graph

    def _launch(self, bucket: _Bucket) -> None:
        if self.capture and bucket.runs and bucket.graph is None:
            self._capture(bucket)
        if bucket.graph is not None:
            bucket.graph.replay()
        else:
            self.step(bucket.inputs)

    def _capture(self, bucket: _Bucket) -> None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            # The main stream of matrix products goes before the side streams (`stages.engine.streams`); a
            # graph keeps the priorities.
            self._stream = torch.cuda.Stream(priority=-1)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):  # type: ignore[arg-type]
                self.step(bucket.inputs)
        except RuntimeError as error:
            self.capture = False
            self.note(f"no CUDA graph: {str(error).splitlines()[0]}: steps are launched kernel by kernel")
            return
        bucket.graph = graph
