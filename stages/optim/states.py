"""`exp_avg` and `exp_avg_sq` in 8 bits each, in blocks of 256 elements with one float32 scale a block.

Codes are companded, because one block mixes values of very different size. With M the block's largest
magnitude:
- `exp_avg`: int8 c, value M · c·|c| / 127². Nearest code.
- `exp_avg_sq`: uint8 c, square root S · (c / 255)², S the largest square root. Stochastic code, so that
  growth smaller than a code's step is not lost for good; never 0 for a positive value, so that m / sqrt(v)
  stays bounded. (Linear codes round small second moments to 0, and m / eps explodes.) Same aim as the blocks
  of Dettmers et al. 2022, arXiv 2110.02861, with codes that need no table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

STATE_BLOCK = 256


@dataclass
class State8:
    """The 8-bit states of one parameter of n elements."""

    exp_avg: torch.Tensor
    """int8 [n]."""
    exp_avg_scale: torch.Tensor
    """float32 [ceil(n / 256)]."""
    exp_avg_sq: torch.Tensor
    """uint8 [n]."""
    exp_avg_sq_scale: torch.Tensor
    """float32 [ceil(n / 256)]: the largest square root of each block."""

    @classmethod
    def zeros(cls, count: int, device: torch.device) -> State8:
        """States before the first step."""
        blocks = -(-count // STATE_BLOCK)
        return cls(
            torch.zeros(count, dtype=torch.int8, device=device),
            torch.zeros(blocks, device=device),
            torch.zeros(count, dtype=torch.uint8, device=device),
            torch.zeros(blocks, device=device),
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors themselves by name, for saving and for restoring in place."""
        return vars(self)

    def load(self, piece: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """exp_avg and the square root of exp_avg_sq, float32 [k], of a piece that begins at a block."""
        blocks = _blocks(piece)
        code = self.exp_avg[piece].float()
        average = (code * code.abs()).mul_(_spread(self.exp_avg_scale[blocks] / 127.0**2, code))
        code = self.exp_avg_sq[piece].float()
        root = code.square_().mul_(_spread(self.exp_avg_sq_scale[blocks] / 255.0**2, code))
        return average, root

    def store(self, piece: slice, average: torch.Tensor, root: torch.Tensor, bits: torch.Tensor) -> None:
        """Encodes what `load` gave, updated.

        Args:
            bits: int32 [k] random bits; the upper 16 are used.
        """
        blocks = _blocks(piece)
        largest = _block_max(average.abs())
        code = (average.abs() / _spread(largest.clamp(min=1e-38), average)).sqrt_().mul_(127.0).round_()
        self.exp_avg[piece] = torch.copysign(code, average).to(torch.int8)
        self.exp_avg_scale[blocks] = largest
        largest = _block_max(root)
        code = (root / _spread(largest.clamp(min=1e-38), root)).sqrt_().mul_(255.0)
        uniform = ((bits >> 16) & 0xFFFF).float().mul_(1.0 / (1 << 16))
        code = code.add_(uniform).floor_().clamp_(max=255.0)
        self.exp_avg_sq[piece] = torch.maximum(code, (root > 0).float()).to(torch.uint8)
        self.exp_avg_sq_scale[blocks] = largest


@dataclass
class State32:
    """The float32 states of one parameter of n elements."""

    exp_avg: torch.Tensor
    exp_avg_sq_root: torch.Tensor

    @classmethod
    def zeros(cls, count: int, device: torch.device) -> State32:
        """States before the first step."""
        return cls(torch.zeros(count, device=device), torch.zeros(count, device=device))

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors themselves by name, for saving and for restoring in place."""
        return vars(self)

    def load(self, piece: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """exp_avg and the square root of exp_avg_sq, float32 [k]."""
        return self.exp_avg[piece].clone(), self.exp_avg_sq_root[piece].clone()

    def store(self, piece: slice, average: torch.Tensor, root: torch.Tensor, bits: torch.Tensor) -> None:
        """Keeps what `load` gave, updated."""
        self.exp_avg[piece] = average
        self.exp_avg_sq_root[piece] = root


def _blocks(piece: slice) -> slice:
    return slice(piece.start // STATE_BLOCK, -(-piece.stop // STATE_BLOCK))


def _spread(scales: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One value a block to one value an element."""
    return scales.repeat_interleave(STATE_BLOCK)[: len(like)]


def _block_max(values: torch.Tensor) -> torch.Tensor:
    short = -len(values) % STATE_BLOCK
    padded = torch.nn.functional.pad(values, (0, short)) if short else values
    return padded.view(-1, STATE_BLOCK).amax(dim=1)
