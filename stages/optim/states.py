"""`exp_avg` and `exp_avg_sq` in 8 bits each, in blocks of 256 elements with one float32 scale a block.

Codes are companded, because one block mixes values of very different size:
- `exp_avg`: int8 c, value M · c·|c| / 127², M the block's largest magnitude. The nearest code.
- `exp_avg_sq`: uint8 c, square root S · (c / 255)², S the block's largest square root. The code is rounded
  stochastically, so that growth smaller than a code's step is not lost for good, and is never 0 for a
  positive value, so that m / sqrt(v) stays bounded. (Linear codes round small second moments to 0, and
  m / eps explodes.)
The aim is that of the blocks of Dettmers et al. 2022, arXiv 2110.02861, with codes that need no table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

STATE_BLOCK = 256
"""Elements that share a scale."""
UPDATE_CHUNK = 2 * STATE_BLOCK
"""A chunk of a parameter that the fused update changes by itself begins at a multiple of this; elements."""


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
        """The tensors themselves by name, to be saved and restored in place."""
        return vars(self)

    def load(self, chunk: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """exp_avg and the square root of exp_avg_sq, float32 [k], of a chunk that begins at a block."""
        blocks = _blocks(chunk)
        code = self.exp_avg[chunk].float()
        exp_avg = (code * code.abs()).mul_(_per_element(self.exp_avg_scale[blocks] / 127.0**2, code))
        code = self.exp_avg_sq[chunk].float()
        root = code.square_().mul_(_per_element(self.exp_avg_sq_scale[blocks] / 255.0**2, code))
        return exp_avg, root

    def store(self, chunk: slice, exp_avg: torch.Tensor, root: torch.Tensor, bits: torch.Tensor) -> None:
        """Encodes the updated values of what `load` returned.

        Args:
            bits: int32 [k] random bits; the upper 16 are used.
        """
        blocks = _blocks(chunk)
        largest = _block_max(exp_avg.abs())
        code = (exp_avg.abs() / _per_element(largest.clamp(min=1e-38), exp_avg)).sqrt_().mul_(127.0).round_()
        self.exp_avg[chunk] = torch.copysign(code, exp_avg).to(torch.int8)
        self.exp_avg_scale[blocks] = largest
        largest = _block_max(root)
        code = (root / _per_element(largest.clamp(min=1e-38), root)).sqrt_().mul_(255.0)
        uniform = ((bits >> 16) & 0xFFFF).float().mul_(1.0 / (1 << 16))
        code = code.add_(uniform).floor_().clamp_(max=255.0)
        self.exp_avg_sq[chunk] = torch.maximum(code, (root > 0).float()).to(torch.uint8)
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
        """The tensors themselves by name, to be saved and restored in place."""
        return vars(self)

    def load(self, chunk: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """exp_avg and the square root of exp_avg_sq, float32 [k]."""
        return self.exp_avg[chunk].clone(), self.exp_avg_sq_root[chunk].clone()

    def store(self, chunk: slice, exp_avg: torch.Tensor, root: torch.Tensor, bits: torch.Tensor) -> None:
        """Stores the updated values of what `load` returned."""
        self.exp_avg[chunk] = exp_avg
        self.exp_avg_sq_root[chunk] = root


def _blocks(chunk: slice) -> slice:
    return slice(chunk.start // STATE_BLOCK, -(-chunk.stop // STATE_BLOCK))


def _per_element(scales: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Repeats one value a block for each of its elements."""
    return scales.repeat_interleave(STATE_BLOCK)[: len(like)]


def _block_max(values: torch.Tensor) -> torch.Tensor:
    short = -len(values) % STATE_BLOCK
    padded = torch.nn.functional.pad(values, (0, short)) if short else values
    return padded.view(-1, STATE_BLOCK).amax(dim=1)
