"""Work beside the main stream, and the buffers it shares with it.

A step is a chain of matrix products, which wait for memory, with rounding and updates in between, which keep the arithmetic units busy.
Neither needs the other's result at once: the next weight is rounded while this one is multiplied, and an update runs while the gradients
of earlier layers are made. The order of all work on one buffer, one master and the running norm is the same as in one stream: so are
the results, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


class Lane:
    """A stream beside the current one; on a CPU, the caller's own thread."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._kept: list[torch.Tensor] = []

    def run(self, work: Callable[[], object], *kept: torch.Tensor) -> None:
        """Runs `work` after all that the current stream was given until now. `kept` are what it reads: they stay until `join`."""
        if self._stream is None:
            work()
            return
        self._kept.extend(kept)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()

    def done(self) -> torch.cuda.Event | None:
        """An event that comes once all work until now is done."""
        return None if self._stream is None else self._stream.record_event()

    def join(self) -> None:
        """Lets the current stream wait for all of it."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._kept.clear()


def wait(event: torch.cuda.Event | None) -> None:
    """Lets the current stream wait for an event, if there is one."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)


@dataclass
class _Request:
    key: Hashable
    rows: int
    columns: int
    write: Callable[[torch.Tensor], None]


class Weights:
    """Rounded weights, each made while the one before it is in use, in two buffers.

    Which weight comes next is learned in the first step: every step asks in the same order.

    Args:
        elements: Of the largest weight.
    """

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self._lane = Lane(device)
        self._buffers = [torch.empty(elements, dtype=dtype, device=device) for _ in range(2)]
        self._order: list[_Request] = []
        self._place = 0
        self._ready: tuple[torch.Tensor, torch.cuda.Event | None] | None = None

    def take(self, key: Hashable, rows: int, columns: int, write: Callable[[torch.Tensor], None]) -> torch.Tensor:
        """The weight [rows, columns] that `write` fills in; valid until the next call.

        Args:
            key: The same in every step.
        """
        if self._place == len(self._order):
            self._order.append(_Request(key, rows, columns, write))
        if self._order[self._place].key != key:
            raise RuntimeError(f"weight {self._place} of the step is {key}, and was {self._order[self._place].key} in the first")
        out, event = self._ready or self._start(self._place)
        self._place += 1
        # The other buffer's reader is before this point of the current stream, and the lane waits for that.
        self._ready = self._start(self._place) if self._place < len(self._order) else None
        wait(event)
        return out

    def end_step(self) -> None:
        """Belongs after the last `take` of a step."""
        self._lane.join()
        self._place, self._ready = 0, None

    def _start(self, place: int) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        request = self._order[place]
        out = self._buffers[place % 2][: request.rows * request.columns].view(request.rows, request.columns)
        self._lane.run(lambda: request.write(out))
        return out, self._lane.done()


class Gradients:
    """Gradients of weights in two buffers: one is filled while the other's update runs.

    Args:
        elements: Of the largest group of weights.
        lane: Where the updates run.
    """

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device, lane: Lane) -> None:
        self._buffers = [torch.empty(elements, dtype=dtype, device=device) for _ in range(2)]
        self._busy: list[torch.cuda.Event | None] = [None, None]
        self._lane, self._uses = lane, 0

    @contextmanager
    def use(self, rows: int, columns: int) -> Iterator[torch.Tensor]:
        """[rows, columns] to write to; what the lane is given inside the context may read it."""
        place = self._uses % 2
        self._uses += 1
        wait(self._busy[place])
        yield self._buffers[place][: rows * columns].view(rows, columns)
        self._busy[place] = self._lane.done()

    def end_step(self) -> None:
        """Belongs after the lane's `join`: no event of this step means anything to the next."""
        self._busy = [None, None]
        self._uses = 0
