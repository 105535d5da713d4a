"""A conversation with one weight: the KV cache stays across turns, so a turn only computes what is new."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from stages.contract.events import Finish
from stages.inference.generate import GenerationConfig, sample_tokens
from stages.qwen3.kv_cache import KVCache
from stages.qwen3.model import Qwen3
from stages.qwen3.template import ChatTokenizer


class ContextError(ValueError):
    """A turn that does not fit into the model's context. The conversation is as it was before."""


@dataclass(frozen=True)
class Turn:
    """One answer and what it cost."""

    text: str
    token_ids: list[int]
    finish: Finish
    new_prompt_tokens: int
    """Tokens prefilled for this turn; earlier turns are in the cache."""
    cached_tokens: int
    """Tokens that were in the cache when the turn began."""
    prefill_seconds: float
    decode_seconds: float


class ChatSession:
    """Turns of one conversation.

    Args:
        model: Without gradients.
        tokenizer: Of the same model folder.
        config: How tokens are chosen, and how many at most in one answer.
        seed: For temperatures above 0.
    """

    def __init__(
        self, model: Qwen3, tokenizer: ChatTokenizer, config: GenerationConfig, seed: int = 0
    ) -> None:
        self._model, self._tokenizer, self._config = model, tokenizer, config
        self._generator = torch.Generator().manual_seed(seed)
        self._cache = KVCache(model.config.num_hidden_layers)
        self._uncached: list[int] = []
        """Tokens of the last answer that the cache does not hold yet: its last one and the end of turn."""

    @torch.inference_mode()
    def turn(
        self,
        prompt: str,
        on_text: Callable[[str], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Turn:
        """Answers the next user turn. An answer ends where the context does.

        Args:
            prompt: The user's words.
            on_text: Called with each new part of the answer as it is decoded.
            stop: Called before each token; True ends the answer there.

        Raises:
            ContextError: if the prompt and one token of an answer do not fit into `max_position_embeddings`.
        """
        cached = self._cache.length
        new = self._uncached + self._tokenizer.prompt_ids(prompt, first=cached == 0)
        limit = self._token_limit(cached, len(new))
        started = time.perf_counter()
        logits = self._forward(new)
        prefilled = time.perf_counter()
        ids: list[int] = []
        finish, shown = Finish.LENGTH, ""
        self._uncached = []
        while len(ids) < limit:
            if stop():
                finish = Finish.INTERRUPTED
                break
            if not bool(torch.isfinite(logits).all()):
                finish = Finish.NON_FINITE
                break
            token = int(sample_tokens(logits, self._config, self._generator))
            if token in self._tokenizer.stop_ids:
                finish = Finish.END_OF_TURN
                break
            ids.append(token)
            shown = self._show(ids, shown, on_text)
            if len(ids) < limit:
                logits = self._forward([token])
            else:
                self._uncached = [token]
        self._uncached = [*self._uncached, self._tokenizer.end_of_turn]
        text = self._tokenizer.text(ids)
        if on_text is not None and len(text) > len(shown):
            on_text(text[len(shown) :])
        return Turn(text, ids, finish, len(new), cached, prefilled - started, time.perf_counter() - prefilled)

    def _token_limit(self, cached: int, new: int) -> int:
        """Most tokens of an answer after `new` more tokens of prompt."""
        context = self._model.config.max_position_embeddings
        left = context - cached - new
        if left < 1:
            raise ContextError(
                f"{cached} tokens so far and {new} of this turn leave no room in the model's context of"
                f" {context} (max_position_embeddings): ask something shorter or start a new conversation"
            )
        return min(left, self._config.max_tokens)

    def _forward(self, ids: list[int]) -> torch.Tensor:
        device = self._model.model.embed_tokens.weight.device
        hidden = self._model.hidden(torch.tensor([ids], device=device), cache=self._cache)
        return self._model.head(hidden[:, -1]).float()

    def _show(self, ids: list[int], shown: str, on_text: Callable[[str], None] | None) -> str:
        if on_text is None:
            return shown
        text = self._tokenizer.text(ids)
        # A character may be spread over several tokens: wait until it is whole.
        if text.endswith("\ufffd") or not text.startswith(shown):
            return shown
        on_text(text[len(shown) :])
        return text
