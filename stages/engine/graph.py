"""One CUDA graph a sequence length: a step is launched once as a whole instead of some two thousand times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from stages.qwen3.batches import Batch

_LENGTH_STEP = 32  # widths are padded to a multiple: a graph for each


@dataclass
class Inputs:
    """What a step reads, at addresses that stay. Padded positions have no target."""

    ids: torch.Tensor
    """int64 [batch, length]."""
    targets: torch.Tensor
    """int64 [batch × length]; -1 where there is none."""
    share: torch.Tensor
    """float32 0-dim: 1 / count of targets."""
    loss: torch.Tensor
    """float32 0-dim: the step's result."""

    @classmethod
    def empty(cls, batch: int, length: int, device: torch.device) -> Inputs:
        """Inputs without a row."""
        return cls(
            torch.zeros(batch, length, dtype=torch.int64, device=device),
            torch.full((batch * length,), -1, dtype=torch.int64, device=device),
            torch.ones((), device=device),
            torch.zeros((), device=device),
        )

    def fill(self, batch: Batch) -> None:
        """Copies a batch in; its rows may be shorter."""
        width, length = batch.ids.shape[1], self.ids.shape[1]
        if width < length:
            self.ids.zero_()
        self.ids[:, :width] = batch.ids
        self.targets.fill_(-1)
        if self.targets.is_cuda:
            from stages.engine import kernels_head  # Triton comes with CUDA builds only

            # Indexing would sort the places first: they are all different, but it cannot know.
            count = len(batch.targets)
            kernels_head.place_targets[(-(-count // 1024),)](
                self.targets, batch.where, batch.targets, count, width, length, BLOCK=1024
            )
        else:
            self.targets[batch.where.div(width, rounding_mode="floor") * length + batch.where % width] = (
                batch.targets
            )
        self.share.fill_(1.0 / len(batch.targets))


@dataclass
class _Bucket:
    inputs: Inputs
    graph: torch.cuda.CUDAGraph | None = None
    runs: int = 0


@dataclass
class Replay:
    """Runs a step eagerly the first time it sees a shape, then captures it, then replays.

    The eager run compiles kernels and is a step like any other: capture executes nothing, so no step is lost
        or done twice.

    Args:
        step: Reads the inputs, updates the masters, writes `inputs.loss`.
        note: Receives one line if capture is not possible; steps are then run eagerly.
    """

    step: Callable[[Inputs], None]
    note: Callable[[str], None]
    capture: bool = True
    _buckets: dict[tuple[int, int], _Bucket] = field(default_factory=dict)
    _pool: tuple[int, int] | None = None
    _stream: torch.cuda.Stream | None = None

    def run(self, batch: Batch) -> torch.Tensor:
        """Launches one step; returns its loss, 0-dim on the device, valid until the next step of this shape."""
        rows, width = batch.ids.shape
        length = -(-width // _LENGTH_STEP) * _LENGTH_STEP
        bucket = self._buckets.get((rows, length))
        if bucket is None:
            bucket = self._buckets[rows, length] = _Bucket(Inputs.empty(rows, length, batch.ids.device))
        bucket.inputs.fill(batch)
        self._launch(bucket)
        bucket.runs += 1
        return bucket.inputs.loss

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
            # The chain of products before what runs beside it (`stages.engine.streams`): a graph keeps the
            # priorities.
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
