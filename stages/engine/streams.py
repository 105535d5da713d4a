"""Side streams, and the ring buffers that they share with the main stream.

A step is a chain of matrix products, which wait for memory, with rounding and updates in between, which keep
the arithmetic units busy. Neither needs the other's result at once: the next weight is rounded while this one
is multiplied, and an update runs while the gradients of earlier layers are computed. All work on one buffer,
one master and the running norm keeps the order of a single stream, so the results are the same bit for bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from stages.memory.limits import RING_SLOTS

T = TypeVar("T")


class SideStream:
    """A CUDA stream beside the current one; on a CPU, work runs at once."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._alive: list[torch.Tensor] = []

    def run(self, work: Callable[[], T], *reads: torch.Tensor) -> T:
        """Runs `work` after everything that the current stream was given until now.

        Args:
            reads: Tensors that `work` reads; they stay in memory until `join`.
        """
        return self.run_after([self.record_current()], work, *reads)

    def run_after(
        self, events: Iterable[torch.cuda.Event | None], work: Callable[[], T], *reads: torch.Tensor
    ) -> T:
        """Runs `work` after the events, and after the earlier work of this side stream; see `run`."""
        if self._stream is None:
            return work()
        self._alive.extend(reads)
        with torch.cuda.stream(self._stream):
            for event in events:
                wait(event)
            return work()

    def record_current(self) -> torch.cuda.Event | None:
        """An event that follows everything that the current stream was given until now."""
        return None if self._stream is None else torch.cuda.current_stream().record_event()

    def record(self) -> torch.cuda.Event | None:
        """An event that follows all work of this side stream until now."""
        return None if self._stream is None else self._stream.record_event()

    def join(self) -> None:
        """Makes the current stream wait for all work of this side stream."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._alive.clear()


def wait(event: torch.cuda.Event | None) -> None:
    """Makes the current stream wait for an event, if there is one."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)


_ALIGNMENT = 256  # elements


@dataclass
class _Slot:
    """A range of a ring buffer's elements, `last` excluded."""

    first: int
    last: int
    event: torch.cuda.Event | None = None
    """Follows the last reader."""

    def overlaps(self, other: _Slot) -> bool:
        return self.first < other.last and other.first < self.last


class _RingBuffer:
    """Memory that is handed out in slots, one after the other and then from the beginning again."""

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self._memory = torch.empty(elements + _ALIGNMENT, dtype=dtype, device=device)
        self._next = 0

    def peek(self, elements: int) -> _Slot:
        """The slot that would come next."""
        first = self._next if self._next + elements <= len(self._memory) else 0
        return _Slot(first, first + elements)

    def take(self, slot: _Slot, columns: int) -> torch.Tensor:
        """The slot that `peek` returned, as [rows, columns]."""
        self._next = -(-slot.last // _ALIGNMENT) * _ALIGNMENT
        return self._memory[slot.first : slot.last].view(-1, columns)

    def reset(self) -> None:
        """Starts from the beginning, so that every step gets the same slots."""
        self._next = 0


@dataclass
class _WeightRequest:
    key: Hashable
    rows: int
    columns: int
    write: Callable[[torch.Tensor], None]


@dataclass
class _RoundedWeight:
    out: torch.Tensor
    event: torch.cuda.Event | None
    slot: _Slot


class WeightPrefetcher:
    """Rounds weights in a side stream ahead of their use, as many as the ring buffer has room for.

    It learns the order of weights in the first step: every step asks in the same order. It does not round a
    weight again while the last result is still in the buffer, because nothing changes a weight before its
    last use in a step.

    Args:
        elements: Of the largest weight.
    """

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self._stream = SideStream(device)
        self._ring = _RingBuffer(RING_SLOTS * elements, dtype, device)
        self._order: list[_WeightRequest] = []
        self._ready: deque[_RoundedWeight] = deque()
        """The weight in use and those after it."""
        self._intact: dict[Hashable, _RoundedWeight] = {}
        """All weights that nothing has overwritten yet, by key."""
        self._released: list[_Slot] = []
        """Slots whose readers were launched before their event."""
        self._position = 0

    def get(
        self, key: Hashable, rows: int, columns: int, write: Callable[[torch.Tensor], None]
    ) -> torch.Tensor:
        """The weight [rows, columns] that `write` fills in; valid until the next call.

        Args:
            key: The same in every step.

        Raises:
            RuntimeError: if the first step asked for another weight at this position.
        """
        if self._position == len(self._order):
            self._order.append(_WeightRequest(key, rows, columns, write))
        expected = self._order[self._position].key
        if expected != key:
            raise RuntimeError(
                f"weight {self._position} of the step is {key}, and was {expected} in the first"
            )
        if self._position:
            slot = self._ready.popleft().slot
            slot.event = self._stream.record_current()
            self._released.append(slot)
        self._position += 1
        while self._position - 1 + len(self._ready) < len(self._order) and self._round_next():
            pass
        wait(self._ready[0].event)
        return self._ready[0].out

    def reset(self) -> None:
        """Ends a step, after its last `get`."""
        self._stream.join()
        self._ring.reset()
        self._ready.clear()
        self._intact.clear()
        self._released.clear()
        self._position = 0

    def _round_next(self) -> bool:
        """Launches the next weight's rounding; False if there is no room for it."""
        request = self._order[self._position - 1 + len(self._ready)]
        if request.key not in self._intact:
            slot = self._ring.peek(request.rows * request.columns)
            if any(slot.overlaps(ready.slot) for ready in self._ready):
                return False
            out = self._ring.take(slot, request.columns)
            events = [released.event for released in self._released if released.overlaps(slot)]
            if not self._intact:  # the first of a step
                events.append(self._stream.record_current())
            self._stream.run_after(events, lambda: request.write(out))
            self._released = [released for released in self._released if not released.overlaps(slot)]
            self._intact = {k: w for k, w in self._intact.items() if not w.slot.overlaps(slot)}
            self._intact[request.key] = _RoundedWeight(out, self._stream.record(), slot)
        self._ready.append(self._intact[request.key])
        return True


class GradientBuffer:
    """Memory for gradients of weights: some are computed while the updates from others run.

    Args:
        elements: Of the largest weight.
        updates: Where the updates run.
    """

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device, updates: SideStream) -> None:
        self._ring = _RingBuffer(RING_SLOTS * elements, dtype, device)
        self._busy: list[_Slot] = []
        self._updates = updates

    @contextmanager
    def use(self, rows: int, columns: int) -> Iterator[torch.Tensor]:
        """[rows, columns] to write to; what the side stream is given inside the context may read it."""
        slot = self._ring.peek(rows * columns)
        for other in self._busy:
            if other.overlaps(slot):
                wait(other.event)
        self._busy = [other for other in self._busy if not other.overlaps(slot)]
        yield self._ring.take(slot, columns)
        slot.event = self._updates.record()
        self._busy.append(slot)

    def reset(self) -> None:
        """Ends a step, after the side stream's `join`: no event of this step concerns the next."""
        self._ring.reset()
        self._busy.clear()
