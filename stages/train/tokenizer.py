"""The nano model's tokenizer: byte-level BPE with Qwen's pre-tokenization, trained on given texts."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""They take the last ids of the vocabulary, in this order, as in Qwen's own tokenizers."""

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # English contractions
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"  # letters, with one leading space or sign
    r"|\p{N}"  # every digit is a token of its own
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"  # signs
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"  # white space
)
"""The split rule of Qwen2 and Qwen3 as published in their `tokenizer.json` (`pre_tokenizer`, with NFC as
`normalizer`).
"""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains a byte-level BPE of exactly `vocab_size` tokens, special tokens included.

    The same texts in the same order always give the same tokenizer.

    Args:
        texts: Training texts, without the chat template.
        vocab_size: Size of the whole vocabulary; the last ids are `SPECIAL_TOKENS`.

    Raises:
        ValueError: if the vocabulary cannot hold the 256 bytes and the special tokens, or if the texts have
            too few different words to fill it.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(alphabet) + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size {vocab_size}: must be {smallest} or more: 256 bytes and the special tokens"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    wanted = vocab_size - len(SPECIAL_TOKENS)
    trainer = trainers.BpeTrainer(vocab_size=wanted, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    if (size := tokenizer.get_vocab_size()) != wanted:
        raise ValueError(f"vocab_size {vocab_size}: the texts give only {size} of {wanted}: add texts")
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    return tokenizer
