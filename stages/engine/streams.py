"""Work beside the main stream, and the buffers it shares with it.

A step is a chain of matrix products, which wait for memory, with rounding and updates in between, which keep
the arithmetic units busy. Neither needs the other's result at once: the next weight is rounded while this one
is multiplied, and an update runs while the gradients of earlier layers are made. The order of all work on one
buffer, one master and the running norm is the same as in one stream: so are the results, bit for bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")


class SideStream:
    """A stream beside the current one; on a CPU, the caller's own thread."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._kept: list[torch.Tensor] = []

    def run(self, work: Callable[[], T], *kept: torch.Tensor) -> T:
        """Runs `work` after all that the current stream was given until now. `kept` are what it reads: they
        stay until `join`.
        """
        return self.run_after([self.mark()], work, *kept)

    def run_after(
        self, events: Iterable[torch.cuda.Event | None], work: Callable[[], T], *kept: torch.Tensor
    ) -> T:
        """Runs `work` after the events, and after what the lane was given before."""
        if self._stream is None:
            return work()
        self._kept.extend(kept)
        with torch.cuda.stream(self._stream):
            for event in events:
                wait(event)
            return work()

    def mark(self) -> torch.cuda.Event | None:
        """An event that comes once all that the current stream was given is done."""
        return None if self._stream is None else torch.cuda.current_stream().record_event()

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


ROOM = 3
"""Rounded weights and gradients each have room for so many of the largest group: with less, one stream waits
for another's memory.
"""
_ALIGNED = 256  # elements


@dataclass
class _Request:
    key: Hashable
    rows: int
    columns: int
    write: Callable[[torch.Tensor], None]


@dataclass
class _Piece:
    """A piece of a ring's memory, from the element `first` up to `last`."""

    first: int
    last: int
    event: torch.cuda.Event | None = None

    def overlaps(self, other: _Piece) -> bool:
        return self.first < other.last and other.first < self.last


class _Ring:
    """Memory that is handed out in pieces, one after the other and round and round."""

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self._memory = torch.empty(elements + _ALIGNED, dtype=dtype, device=device)
        self._next = 0

    def peek(self, elements: int) -> _Piece:
        """The piece that would come next."""
        first = self._next if self._next + elements <= len(self._memory) else 0
        return _Piece(first, first + elements)

    def give(self, piece: _Piece, columns: int) -> torch.Tensor:
        """What `peek` returned, as [rows, columns]."""
        self._next = -(-piece.last // _ALIGNED) * _ALIGNED
        return self._memory[piece.first : piece.last].view(-1, columns)

    def rewind(self) -> None:
        """Begins at the beginning again: every step is alike."""
        self._next = 0


@dataclass
class _Made:
    out: torch.Tensor
    event: torch.cuda.Event | None
    piece: _Piece


class Weights:
    """Rounded weights, made beside the products that use the ones before, as many ahead as there is room for.

    Which weight comes next is learned in the first step: every step asks in the same order. One that is asked
        for again while its values
    are still there is not made again: nothing changes a weight before its last use in a step.

    Args:
        elements: Of the largest weight.
    """

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self._lane = SideStream(device)
        self._ring = _Ring(ROOM * elements, dtype, device)
        self._order: list[_Request] = []
        self._made: deque[_Made] = deque()
        """From the weight in use on."""
        self._intact: dict[Hashable, _Made] = {}
        """By key, all whose values nothing overwrote yet."""
        self._used: list[_Piece] = []
        """Pieces whose readers were launched before the event."""
        self._place = 0

    def take(
        self, key: Hashable, rows: int, columns: int, write: Callable[[torch.Tensor], None]
    ) -> torch.Tensor:
        """The weight [rows, columns] that `write` fills in; valid until the next call.

        Args:
            key: The same in every step.
        """
        if self._place == len(self._order):
            self._order.append(_Request(key, rows, columns, write))
        if self._order[self._place].key != key:
            raise RuntimeError(
                f"weight {self._place} of the step is {key}, and was {self._order[self._place].key} in the first"
            )
        if self._place:
            used = self._made.popleft().piece
            used.event = self._lane.mark()
            self._used.append(used)
        self._place += 1
        while self._place - 1 + len(self._made) < len(self._order) and self._make():
            pass
        wait(self._made[0].event)
        return self._made[0].out

    def end_step(self) -> None:
        """Belongs after the last `take` of a step."""
        self._lane.join()
        self._ring.rewind()
        self._made.clear()
        self._intact.clear()
        self._used.clear()
        self._place = 0

    def _make(self) -> bool:
        """Launches the next weight, if there is room for it."""
        request = self._order[self._place - 1 + len(self._made)]
        if request.key not in self._intact:
            piece = self._ring.peek(request.rows * request.columns)
            if any(piece.overlaps(made.piece) for made in self._made):
                return False
            out = self._ring.give(piece, request.columns)
            events = [used.event for used in self._used if used.overlaps(piece)]
            if not self._intact:  # the first of a step
                events.append(self._lane.mark())
            self._lane.run_after(events, lambda: request.write(out))
            self._used = [used for used in self._used if not used.overlaps(piece)]
            self._intact = {key: made for key, made in self._intact.items() if not made.piece.overlaps(piece)}
            self._intact[request.key] = _Made(out, self._lane.done(), piece)
        self._made.append(self._intact[request.key])
        return True


class Gradients:
    """Gradients of weights: some are filled while the updates of others run.

    Args:
        elements: Of the largest group of weights.
        lane: Where the updates run.
    """

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device, lane: SideStream) -> None:
        self._ring = _Ring(ROOM * elements, dtype, device)
        self._busy: list[_Piece] = []
        self._lane = lane

    @contextmanager
    def use(self, rows: int, columns: int) -> Iterator[torch.Tensor]:
        """[rows, columns] to write to; what the lane is given inside the context may read it."""
        piece = self._ring.peek(rows * columns)
        for other in self._busy:
            if other.overlaps(piece):
                wait(other.event)
        self._busy = [other for other in self._busy if not other.overlaps(piece)]
        yield self._ring.give(piece, columns)
        piece.event = self._lane.done()
        self._busy.append(piece)

    def end_step(self) -> None:
        """Belongs after the lane's `join`: no event of this step means anything to the next."""
        self._ring.rewind()
        self._busy.clear()
